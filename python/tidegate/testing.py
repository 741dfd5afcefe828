"""Test your own code against a server that fails as told.

>>> with FaultServer(script=[{"status": 500}, {"status": 429, "headers": {"retry-after": "0.1"}}]) as server:
...     client = Client(base_url=server.url, api_key="test")
...     client.post("/chat/completions", json={"model": "m", "messages": []})
...     assert server.ledger["requests"]["total"] == 3

In pytest, ``pytest_plugins = ["tidegate.testing"]`` in ``conftest.py`` brings the fixture ``fault_server``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate import _core
from tidegate._fields import known_keywords

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

__all__ = ["FaultServer"]

Answer: TypeAlias = "Mapping[str, Any]"


class FaultServer:
    """An OpenAI-compatible server on loopback that answers as told, breaks as told, and keeps a ledger.

    It serves chat completions, responses, embeddings and models, streams included. Its threads are not
    Python's: it goes on while the test's event loop is busy.

    An answer is a dict of, all optional:

    * ``status``, ``headers``; ``error`` (``"rate_limit"``, ``"insufficient_quota"``, ``"overloaded"``, …)
      with ``provider``, ``message`` and ``retry_after_s``: an error in the provider's own form;
    * one of ``body_json``, ``body_text``, ``body_b64``, ``chunks``, ``drip``, ``raw_b64``; or ``content`` and
      ``usage``, which vary the default answer;
    * ``fault``: ``"reset"``, ``"close"``, ``"hang"``, ``"cut"``, ``"stall"``, ``"empty"``, ``"malformed"``,
      ``"html_502"``, ``"stream_error"``, …;
    * ``delay_s`` before the answer, ``chunk_delay_s`` between a stream's events, ``close`` (``"fin"``,
      ``"rst"``, ``"hang"``, ``"keep"``), ``cut_after_bytes``, ``name`` for the ledger.

    Values in headers may hold ``{http_date:+N}``, the HTTP date in N seconds, and ``{PORT}``.
    """

    @known_keywords("")
    def __init__(
        self,
        script: Sequence[Answer] = (),
        *,
        rules: Sequence[Mapping[str, Any]] = (),
        repeat_last: bool = False,
        quota: Mapping[str, Any] | None = None,
        latency_ms: float | tuple[float, float] | None = None,
        chunk_delay_ms: float | None = None,
        usage: Mapping[str, int] | None = None,
        content: str | None = None,
        models: Sequence[str] | None = None,
        embedding_dimensions: int | None = None,
        prices: Mapping[str, Mapping[str, Any]] | None = None,
        api_key: str | None = None,
        ledger: Mapping[str, Any] | None = None,
        port: int | None = None,
        workers: int | None = None,
        seed: int | None = None,
    ) -> None:
        """Start a server.

        Args:
            script: Answers in order of arrival; then the default answer.
            rules: ``{"match": …, "respond": …}``, looked at before the script. ``match`` knows ``path``,
                ``method``, ``header``, ``model`` (patterns), ``stream``, ``nth``, ``every``, ``between_s``,
                ``probability``; ``respond`` is an answer or a list of them.
            repeat_last: Serve the last answer of `script` for ever.
            quota: What is granted: ``rpm``, ``rpd``, ``tpm``, ``concurrency``; more is answered 429.
                ``announce`` (default true) tells of it in headers.
            latency_ms: Before each answer that names no delay; a pair is the least and the most. Default 0.
            chunk_delay_ms: Between the events of a default stream. Default 0.
            usage: Tokens of a default answer. Default 12 of prompt, 5 of completion.
            content: Text of a default answer.
            models: Those that exist. Default: every model does.
            embedding_dimensions: Default 1,536.
            prices: US dollars per million tokens, as in `tidegate.Prices`, for the ledger's bill.
            api_key: Requests with another key are answered 401. Default: any request is served.
            ledger: What it keeps: ``entries`` (10,000), ``record_bodies`` (false), ``record_headers``.
            port: Default: one that is free.
            workers: Threads. Default 1.
            seed: Of everything random. Default 1.

        Raises:
            ConfigError: A setting is not known, or its value breaks a rule.
            OSError: The port is taken.
        """
        given = {
            "script": {"responses": list(script), "rules": list(rules), "repeat_last": repeat_last},
            "quota": quota,
            "latency_ms": latency_ms,
            "chunk_delay_ms": chunk_delay_ms,
            "usage": usage,
            "content": content,
            "models": models,
            "embedding_dimensions": embedding_dimensions,
            "prices": prices,
            "api_key": api_key,
            "ledger": ledger,
            "port": port,
            "workers": workers,
            "seed": seed,
        }
        settings = {name: value for name, value in given.items() if value is not None}
        self._server = _core.MockServer(json.dumps(settings, default=str))

    @property
    def url(self) -> str:
        """The base URL for a client; ends in ``/v1``."""
        return self._server.url

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return self._server.port

    @property
    def ledger(self) -> dict[str, Any]:
        """What was asked, sent and billed until now.

        ``requests`` (``total``, ``in_flight``, ``max_in_flight``, ``by_status``, ``by_finish``), ``usage``,
        ``bill`` (``usd`` as a decimal string), ``connections``, and ``entries``, one per request.
        """
        found: dict[str, Any] = json.loads(self._server.ledger())
        return found

    def script(
        self,
        responses: Sequence[Answer] = (),
        *,
        rules: Sequence[Mapping[str, Any]] = (),
        repeat_last: bool = False,
        extend: bool = False,
    ) -> None:
        """Replace the script, or with `extend` add to it; see the constructor.

        Raises:
            ConfigError: An answer or a rule is not understood.
        """
        script = {
            "responses": list(responses),
            "rules": list(rules),
            "repeat_last": repeat_last,
            "extend": extend,
        }
        self._server.script(json.dumps(script, default=str))

    def reset_ledger(self) -> None:
        """Forget what was served."""
        self._server.reset_ledger()

    def stop(self) -> None:
        """Close every connection and stop. The ledger stays."""
        self._server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<FaultServer at {self.url}>"


def __getattr__(name: str) -> Any:
    if name != "fault_server":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Only pytest, collecting fixtures, asks for it: nobody else pays for the import.
    import pytest

    @pytest.fixture
    def fault_server() -> Iterator[FaultServer]:
        """Provide a `FaultServer` that serves default answers until it is given a script."""
        with FaultServer() as server:
            yield server

    globals()[name] = fault_server
    return fault_server


def __dir__() -> list[str]:
    return sorted({*globals(), "fault_server"})

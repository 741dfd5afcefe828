"""The engine as a transport for httpx2 and for legacy httpx, so that any SDK built on them can ride it.

>>> import httpx2, tidegate.httpx
>>> client = httpx2.AsyncClient(transport=tidegate.httpx.AsyncTransport(gate), timeout=600)

A request goes out as it was made: method, target, headers and body. Retries, breaker, admission, budgets
and bills are the gate's; what holds per model and credential takes the model from the body, the credential
from the request's own header (``authorization``, ``api-key``, ``x-api-key`` or ``x-goog-api-key``).

Turn off the retries of an SDK that has its own (``max_retries=0``): stacked retries multiply. What an SDK
sends again all the same, known by ``x-stainless-retry-count``, gets a single attempt.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

from tidegate import _core
from tidegate._errors import ConfigError
from tidegate._exchange import Call, described
from tidegate._gate import Gate, default_gate
from tidegate._library import library_of
from tidegate._raised import raised

if TYPE_CHECKING:
    from types import ModuleType

    import httpx2
    from httpx2 import AsyncBaseTransport as _AsyncBase
    from httpx2 import BaseTransport as _Base

    from tidegate._exchange import Ended
else:

    def _installed() -> ModuleType:
        for name in ("httpx2", "httpx"):
            if importlib.util.find_spec(name):
                return importlib.import_module(name)
        raise ImportError("tidegate.httpx needs httpx2 or httpx: pip install httpx2")

    _module = _installed()
    _AsyncBase, _Base = _module.AsyncBaseTransport, _module.BaseTransport

__all__ = ["AsyncTransport", "Transport"]

_RETRY_COUNT = b"x-stainless-retry-count"
_ERROR = 300


class _Settings:
    """What the two transports have in common."""

    def __init__(
        self,
        gate: Gate | None = None,
        *,
        ca_bundle: str | os.PathLike[str] | None = None,
        http2: bool = False,
        proxy: str | None = None,
    ) -> None:
        """Make a transport.

        Args:
            gate: The engine and its state. Default: `tidegate.default_gate`.
            ca_bundle: File of certificates (PEM) trusted besides the operating system's.
            http2: Use HTTP/2 where the server speaks it. Default false.
            proxy: URL of a proxy. Default: the one that the environment names.

        Raises:
            ConfigError: A setting breaks a rule.
        """
        if gate is not None and not isinstance(gate, Gate):
            raise ConfigError("gate", repr(gate), "must be a Gate")
        self.gate = default_gate() if gate is None else gate
        self._core = _core.Transport(
            self.gate._engine,
            ca_bundle=None if ca_bundle is None else os.fspath(ca_bundle),
            http2=http2,
            proxy=proxy,
        )

    def _call(self, request: Any) -> Call | None:
        """The call that a request is an attempt of, where the client under it asks for attempts."""
        call = request.extensions.get("tidegate")
        return call if isinstance(call, Call) else None

    def _alone(self, request: Any) -> Call:
        count = next((value for name, value in request.headers.raw if name.lower() == _RETRY_COUNT), b"0")
        return Call(self._core.exchange, None if count == b"0" else 1)


def _answer(attempt: Ended, request: Any, *, alone: bool) -> Any:
    library, by_sdk = library_of(request), not alone or _by_sdk(request)
    unread = attempt.status is not None and attempt.status < _ERROR and _failed(attempt)
    unread = unread and not attempt.as_it_came
    if attempt.status is None or unread:
        raise raised(attempt, request, library, by_sdk=by_sdk)
    response = library.response(attempt, request, by_sdk=by_sdk)
    if alone and attempt.error is not None:
        # SDKs of this make look here whether their own loop is to go on.
        response.headers["x-should-retry"] = "false"
    return response


def _failed(attempt: Ended) -> bool:
    return attempt.error is not None or attempt.retry_in is not None


def _by_sdk(request: Any) -> bool:
    return "OpenAI/Python" in request.headers.get("user-agent", "") and "openai" in sys.modules


class AsyncTransport(_Settings, _AsyncBase):
    """Sends the requests of an ``AsyncClient``."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return its answer; errors of the server are answers.

        Raises:
            TransportError: There was no answer, or the gate refused; of the library of the request, and of
                tidegate's own classes where the gate refused.
        """
        content = await request.aread()
        call = self._call(request)
        alone = call is None
        call = call or self._alone(request)
        attempt = await call.run_async("whole" if alone else "attempt", described(request, content))
        answer: httpx2.Response = _answer(attempt, request, alone=alone)
        return answer


class Transport(_Settings, _Base):
    """Sends the requests of a ``Client``. The interpreter is free while it waits."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return its answer; see `AsyncTransport`."""
        content = request.read()
        call = self._call(request)
        alone = call is None
        call = call or self._alone(request)
        attempt = call.run("whole" if alone else "attempt", described(request, content))
        answer: httpx2.Response = _answer(attempt, request, alone=alone)
        return answer

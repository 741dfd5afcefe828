"""The native clients: the engine without the openai package."""

from __future__ import annotations

import contextvars
import functools
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from tidegate import _core
from tidegate._errors import CallError, ConfigError
from tidegate._fields import known_keywords
from tidegate._layers import failed
from tidegate._log import NOTHING, level_for_calls
from tidegate._settings import CallOptions, ClientOptions, ClientSettings, Closed, call_options
from tidegate._stream import AsyncStream, Stream, StreamEvent, maker, streaming

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from typing import Self, Unpack

    from tidegate._core import CallInfo, Response, Ticket, Upstream
    from tidegate._gate import Gate
    from tidegate._policies import Timeouts


Form: TypeAlias = Literal["events", "bytes"]


def info(answer: object) -> CallInfo:
    """Return how a call went: attempts, retries, usage, cost, times and trace id.

    Args:
        answer: What a call returned, whole or parsed or raw, or the error that it raised, also where a
            framework has raised one of its own `from` it.

    Raises:
        TypeError: It is neither, or a plain value that nothing can be attached to.
    """
    told: object = answer
    while told is not None:
        for found in _told_by(told):
            if isinstance(found, _core.CallInfo):
                return found
        told = told.__cause__ if isinstance(told, BaseException) else None
    raise TypeError(f"tidegate.info() takes the response or the error of a call, not {type(answer).__name__}")


def _told_by(answer: object) -> Iterator[object]:
    yield getattr(answer, "info", None)
    yield getattr(answer, "_tidegate_info", None)
    # Raw answers, streams, files and errors of the SDK hold a response of httpx, or are one. The helpers that
    # its `.stream()` methods enter keep it to themselves.
    holders = ("response", "http_response", "_response")
    for response in (answer, *(getattr(answer, name, None) for name in holders)):
        extensions = getattr(response, "extensions", None)
        if isinstance(extensions, dict):
            yield getattr(extensions.get("tidegate"), "info", None)


class _BaseClient:
    """What the two clients have in common."""

    @known_keywords("", secret=True)
    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        gate: Gate | None = None,
        timeout: float | None = None,
        total_timeout: float | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
        ca_bundle: str | os.PathLike[str] | None = None,
        http2: bool = False,
        proxy: str | None = None,
    ) -> None:
        """Make a client of one upstream.

        Args:
            base_url: Where the API is, version included. Default: ``OPENAI_BASE_URL``, else
                ``https://api.openai.com/v1``.
            api_key: Sent as ``Authorization: Bearer``. Default: ``OPENAI_API_KEY``.
            gate: The engine and its state. Default: `tidegate.default_gate`.
            timeout: Bound on each attempt, in seconds. Default: the gate's, 600.
            total_timeout: Bound on the whole call with queues, retries and waits, in seconds. Default: the
                gate's, none.
            max_retries: Attempts after the first. Default: the gate's, 3.
            headers: Sent with every request.
            ca_bundle: File of certificates (PEM) trusted besides the operating system's.
            http2: Use HTTP/2 where the server speaks it. Default false.
            proxy: URL of a proxy. Default: the one that the environment names.

        Raises:
            ConfigError: A setting breaks a rule, or there is no API key.
        """
        self._settings = ClientSettings(
            {
                "base_url": base_url,
                "api_key": api_key,
                "gate": gate,
                "timeout": timeout,
                "total_timeout": total_timeout,
                "max_retries": max_retries,
                "headers": headers,
                "ca_bundle": ca_bundle,
                "http2": http2,
                "proxy": proxy,
            }
        )
        self._upstream: Upstream | Closed = self._settings.upstream

    @property
    def gate(self) -> Gate:
        """The engine and its state."""
        return self._settings.gate

    @property
    def base_url(self) -> str:
        """Where the API is."""
        return self._settings.shown_url

    @property
    def timeouts(self) -> Timeouts:
        """The bounds that hold for a call that names none."""
        return self._settings.timeouts

    def with_options(self, **changes: Unpack[ClientOptions]) -> Self:
        """Return another client that shares this one's gate and differs in the settings that are named.

        Raises:
            ConfigError: A setting is not known, or breaks a rule.
        """
        return type(self)(**self._settings.changed(changes))

    copy = with_options

    def _close(self) -> None:
        self._upstream = Closed(self._upstream.base_url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self.base_url!r})"


class AsyncClient(_BaseClient):
    """Calls an OpenAI-compatible API from asyncio.

    >>> async with AsyncClient() as client:
    ...     answer = await client.post("/chat/completions", json={"model": "gpt-5.4-mini", "messages": [...]})
    ...     answer.json()["choices"][0]["message"]["content"]

    One client serves any number of tasks, and event loops one after another or at the same time. Cancelling a
    call closes its request to the server.
    """

    def _start(
        self, method: str, path: str, json: object, content: bytes | None, given: CallOptions
    ) -> Ticket[Response]:
        options = call_options(given)
        level = level_for_calls()
        context = None if level == NOTHING else contextvars.copy_context()
        if json is None:
            return self._upstream.submit(
                method, path, options, content=content, log_level=level, context=context
            )
        if content is not None:
            raise _two_bodies()
        return self._upstream.submit(method, path, options, json=json, log_level=level, context=context)

    def _start_stream(
        self, method: str, path: str, body: dict[str, Any], form: Form, given: CallOptions
    ) -> Ticket[Response | _core.Stream]:
        options = call_options(given)
        level = level_for_calls()
        context = None if level == NOTHING else contextvars.copy_context()
        return self._upstream.submit(
            method, path, options, **body, log_level=level, context=context, stream=form
        )

    async def post(
        self,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        **options: Unpack[CallOptions],
    ) -> Response:
        """Make a POST request and return the answer.

        Args:
            path: Below the base URL, ``"/chat/completions"``.
            json: The body, to be written as JSON. `None` is no body.
            content: The body as it is; instead of `json`.
            options: ``params``, ``headers``, ``timeout``, ``total_timeout``, ``max_attempts``, ``tags``,
                ``trace_id``; `None` leaves what the client has.

        Raises:
            CallError: The call failed; which way, its class tells.
            EncodeError: The body cannot be written as JSON.
            ConfigError: An option is not known, or breaks a rule.
        """
        ticket = self._start("POST", path, json, content, options)
        try:
            return await ticket.future
        except BaseException as error:
            failed(error)
            ticket.cancel()
            # The future holds the error and the error this frame: a cycle, were the ticket still in it.
            del ticket
            raise

    @overload
    def stream(
        self,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        method: str = "POST",
        form: Literal["events"] = "events",
        **options: Unpack[CallOptions],
    ) -> AsyncStream[StreamEvent]: ...

    @overload
    def stream(
        self,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        method: str = "POST",
        form: Literal["bytes"],
        **options: Unpack[CallOptions],
    ) -> AsyncStream[bytes]: ...

    def stream(
        self,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        method: str = "POST",
        form: Literal["events", "bytes"] = "events",
        **options: Unpack[CallOptions],
    ) -> AsyncStream[Any]:
        """Make a request and read its answer while it comes.

        >>> async with client.stream("/chat/completions", json={...}) as events:
        ...     async for event in events:
        ...         print(event.json()["choices"][0]["delta"].get("content", ""), end="")
        >>> events.usage, events.cost_usd

        Until the first content has come, what fails is tried again as in `post`. From then on it is told:
        `StreamInterruptedError` holds the text so far and what it used.

        Args:
            path: Below the base URL.
            json: The body, to be written as JSON. With events, ``"stream": true`` is added where it says
                nothing.
            content: The body as it is; instead of `json`.
            method: Default ``"POST"``.
            form: ``"events"`` gives each `StreamEvent`; ``"bytes"`` gives the bytes of any answer as they
                come.
            options: As in `post`; ``timeout`` bounds the time to the first content and then each gap between
                two events, ``total_timeout`` the whole.

        Raises:
            CallError: The call failed before its first content.
            StreamInterruptedError: From the iteration: the stream broke off.
            ConfigError: An option is not known, or breaks a rule.
        """
        start = functools.partial(
            self._start_stream, method, path, _one_body(json, content, form), form, options
        )
        return AsyncStream(start, maker(form))

    async def get(self, path: str, **options: Unpack[CallOptions]) -> Response:
        """Make a GET request and return the answer; see `post`."""
        return await self.request("GET", path, **options)

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        **options: Unpack[CallOptions],
    ) -> Response:
        """Make a request with any method and return the answer; see `post`."""
        ticket = self._start(method, path, json, content, options)
        try:
            return await ticket.future
        except BaseException as error:
            failed(error)
            ticket.cancel()
            del ticket
            raise

    async def aclose(self) -> None:
        """Refuse further calls of this client. Its gate and other clients go on."""
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Client(_BaseClient):
    """Calls an OpenAI-compatible API from any thread. The interpreter is free while it waits.

    >>> with Client() as client:
    ...     answer = client.post("/chat/completions", json={"model": "gpt-5.4-mini", "messages": [...]})
    """

    def post(
        self,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        **options: Unpack[CallOptions],
    ) -> Response:
        """Make a POST request and return the answer; see `AsyncClient.post`."""
        return self.request("POST", path, json=json, content=content, **options)

    def get(self, path: str, **options: Unpack[CallOptions]) -> Response:
        """Make a GET request and return the answer; see `AsyncClient.post`."""
        return self.request("GET", path, **options)

    def request(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        **options: Unpack[CallOptions],
    ) -> Response:
        """Make a request with any method and return the answer; see `AsyncClient.post`."""
        level, told = level_for_calls(), call_options(options)
        if json is not None and content is not None:
            raise _two_bodies()
        body = {"content": content} if json is None else {"json": json}
        try:
            return self._upstream.call(method, path, told, **body, log_level=level)
        except CallError as error:
            failed(error)
            raise

    @overload
    def stream(
        self,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        method: str = "POST",
        form: Literal["events"] = "events",
        **options: Unpack[CallOptions],
    ) -> Stream[StreamEvent]: ...

    @overload
    def stream(
        self,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        method: str = "POST",
        form: Literal["bytes"],
        **options: Unpack[CallOptions],
    ) -> Stream[bytes]: ...

    def stream(
        self,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        method: str = "POST",
        form: Literal["events", "bytes"] = "events",
        **options: Unpack[CallOptions],
    ) -> Stream[Any]:
        """Make a request and read its answer while it comes; see `AsyncClient.stream`.

        >>> with client.stream("/chat/completions", json={...}) as events:
        ...     for event in events:
        ...         print(event.json()["choices"][0]["delta"].get("content", ""), end="")

        The call is made at once: what fails before its first content is raised here.
        """
        level, told = level_for_calls(), call_options(options)
        body = _one_body(json, content, form)
        try:
            opened = self._upstream.call(method, path, told, **body, log_level=level, stream=form)
        except CallError as error:
            failed(error)
            raise
        return Stream(opened, maker(form))

    def close(self) -> None:
        """Refuse further calls of this client. Its gate and other clients go on."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _one_body(json: object, content: bytes | None, form: Form) -> dict[str, Any]:
    if json is None:
        return {"content": content}
    if content is not None:
        raise _two_bodies()
    return {"json": streaming(json) if form == "events" else json}


def _two_bodies() -> ConfigError:
    return ConfigError("content", "(bytes)", "must not be given together with json: a request has one body")

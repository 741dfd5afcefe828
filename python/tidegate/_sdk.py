"""The SDK's clients with the gate below their retry loop.

The SDK prepares each attempt (fresh tokens, signatures, its own headers); the core decides whether it may be
sent, whether another may follow and after what wait. So there is one policy, and whatever the SDK does per
attempt is done. Nothing of the SDK is patched; these are methods of its clients, overridden in subclasses:

* ``request`` opens the call that all attempts belong to;
* ``_send_request`` passes the gates, then sends: by tidegate, or by the user's client;
* ``_should_retry`` and ``_calculate_retry_timeout`` are the core's decision and the core's wait;
* ``_make_status_error`` tells attempts, reason and trace id with the SDK's own error;
* ``_process_response`` leaves with the result how the call went.

The fast path for single methods stands above these: it may serve a call where `Shared.takes_fast_path` is
true, and has to leave any other to ``super()``.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, cast

from openai import APIStatusError, DefaultAsyncHttpxClient, DefaultHttpxClient
from openai._base_client import AsyncAPIClient, SyncAPIClient

from tidegate import _guard
from tidegate._errors import ConfigError, QuotaExhaustedError
from tidegate._exchange import Call
from tidegate._gate import Gate, default_gate
from tidegate._raised import both
from tidegate.httpx import AsyncTransport, Transport

if TYPE_CHECKING:
    from tidegate._core import CallInfo
    from tidegate._exchange import Ended

_current: contextvars.ContextVar[Call | None] = contextvars.ContextVar("tidegate_sdk_call", default=None)
# What the fast path got for a request that the SDK is about to make: it goes on from there.
answered: contextvars.ContextVar[Ended | None] = contextvars.ContextVar("tidegate_answered", default=None)


class OwnClient(DefaultHttpxClient):
    """The SDK's default client of httpx2, with tidegate's transport."""


class OwnAsyncClient(DefaultAsyncHttpxClient):
    """The SDK's default client of httpx2, with tidegate's transport."""


_MOST = 2**32 - 1
_TOLD = ("attempts", "elapsed", "retry_after", "reason", "trace_id")


class Shared:
    """What the four clients have in common. Stands before the SDK's class."""

    _gate: Gate
    _transport: Transport | AsyncTransport
    _client: Any

    def _open_gate(self, gate: Gate | None, transport: type[Transport | AsyncTransport]) -> None:
        if gate is not None and not isinstance(gate, Gate):
            raise ConfigError("gate", repr(gate), "must be a Gate")
        self._gate = default_gate() if gate is None else gate
        self._transport = transport(self._gate)

    @property
    def gate(self) -> Gate:
        """The engine and its state."""
        return self._gate

    @property
    def takes_fast_path(self) -> bool:
        """Whether requests leave by tidegate's own transport, with nothing of the user's between."""
        return type(self._client) in {OwnClient, OwnAsyncClient}

    def _call(self, options: Any) -> Call:
        retries = options.get_max_retries(self.max_retries)  # type: ignore[attr-defined]
        once = self._gate._settings["retry"] is None or not isinstance(retries, int)
        theirs = self._client._transport
        # A transport of tidegate's in the user's own client has settings of its own.
        transport = theirs if isinstance(theirs, Transport | AsyncTransport) else self._transport
        call = Call(transport._core.exchange, 1 if once else min(max(retries, 0) + 1, _MOST))
        call.given = answered.get()
        return call

    def _should_retry(self, response: Any) -> bool:
        attempt = _attempt_of(response)
        if attempt is None:
            inherited: bool = super()._should_retry(response)  # type: ignore[misc]
            return inherited
        return attempt.retry_in is not None

    def _calculate_retry_timeout(
        self, remaining_retries: int, options: Any, response_headers: Any = None
    ) -> float:
        call = _current.get()
        wait = None if call is None else call.retry_in
        if wait is None:
            wait = super()._calculate_retry_timeout(remaining_retries, options, response_headers)  # type: ignore[misc]
        return wait

    def _make_status_error(self, err_msg: str, *, body: object, response: Any) -> APIStatusError:
        error: Any = super()._make_status_error(err_msg, body=body, response=response)  # type: ignore[misc]
        attempt = _attempt_of(response)
        if attempt is None or attempt.error is None:
            return error  # type: ignore[no-any-return]
        if isinstance(attempt.error, QuotaExhaustedError) and response.status_code == 429:  # noqa: PLR2004
            told = {**vars(attempt.error), **vars(error)}
            cls = both(QuotaExhaustedError, type(error))
            error = cls.__new__(cls, *error.args)
            vars(error).update(told)
        for name in _TOLD:
            setattr(error, name, getattr(attempt.error, name))
        error.info = attempt.info
        return error  # type: ignore[no-any-return]

    def _remember(self, keywords: dict[str, Any]) -> None:
        """Have how the call went left with whatever is parsed from its answer."""
        attempt, options = _attempt_of(keywords["response"]), keywords["options"]
        if attempt is None or attempt.info is None:
            return
        inner, info = options.post_parser, attempt.info

        def parser(parsed: Any) -> Any:
            if callable(inner):
                parsed = inner(parsed)
            return _with_info(parsed, info)

        options.post_parser = parser


def _with_info(parsed: Any, info: CallInfo) -> Any:
    # As the SDK leaves its own `_request_id`.
    if hasattr(type(parsed), "model_fields"):
        parsed._tidegate_info = info
    return parsed


def _attempt_of(response: Any) -> Ended | None:
    found: Ended | None = response.extensions.get("tidegate")
    return found


class SyncSeams(Shared):
    """Before the SDK's synchronous class."""

    def __init__(self, *, gate: Gate | None = None, **settings: Any) -> None:
        self._open_gate(gate, Transport)
        if settings.get("http_client") is None:
            settings["http_client"] = OwnClient(transport=cast("Transport", self._transport))
        super().__init__(**settings)

    def copy(self, *, gate: Gate | None = None, **changes: Any) -> Any:
        """Create a client that differs in the options that are named; see the SDK's ``copy``."""
        return super().copy(**_copied(self, gate, changes))  # type: ignore[misc]

    def request(self, cast_to: Any, options: Any, **keywords: Any) -> Any:
        """Make a request; see the SDK's ``request``."""
        token = _current.set(self._call(options))
        try:
            return super().request(cast_to, options, **keywords)  # type: ignore[misc]
        finally:
            _current.reset(token)

    def _process_response(self, **keywords: Any) -> Any:
        self._remember(keywords)
        return super()._process_response(**keywords)  # type: ignore[misc]


class AsyncSeams(Shared):
    """Before the SDK's asynchronous class."""

    def __init__(self, *, gate: Gate | None = None, **settings: Any) -> None:
        self._open_gate(gate, AsyncTransport)
        if settings.get("http_client") is None:
            settings["http_client"] = OwnAsyncClient(transport=cast("AsyncTransport", self._transport))
        super().__init__(**settings)

    def copy(self, *, gate: Gate | None = None, **changes: Any) -> Any:
        """Create a client that differs in the options that are named; see the SDK's ``copy``."""
        return super().copy(**_copied(self, gate, changes))  # type: ignore[misc]

    async def request(self, cast_to: Any, options: Any, **keywords: Any) -> Any:
        """Make a request; see the SDK's ``request``."""
        token = _current.set(self._call(options))
        try:
            return await super().request(cast_to, options, **keywords)  # type: ignore[misc]
        finally:
            _current.reset(token)

    async def _process_response(self, **keywords: Any) -> Any:
        self._remember(keywords)
        return await super()._process_response(**keywords)  # type: ignore[misc]


def _copied(client: Shared, gate: Gate | None, changes: dict[str, Any]) -> dict[str, Any]:
    return {**changes, "_extra_kwargs": {"gate": gate or client.gate, **(changes.get("_extra_kwargs") or {})}}


class SyncSend(SyncAPIClient):
    """After the SDK's synchronous class: what its ``super()._send_request`` finds."""

    def _send_request(self, request: Any, *, stream: bool, **keywords: Any) -> Any:
        call = _current.get()
        if call is None or isinstance(self._client._transport, Transport):
            request.extensions["tidegate"] = call
            return super()._send_request(request, stream=stream, **keywords)
        send = super()._send_request
        return _guard.send(call, request, lambda: send(request, stream=stream, **keywords), stream=stream)


class AsyncSend(AsyncAPIClient):
    """After the SDK's asynchronous class: what its ``super()._send_request`` finds."""

    async def _send_request(self, request: Any, *, stream: bool, **keywords: Any) -> Any:
        call = _current.get()
        if call is None or isinstance(self._client._transport, AsyncTransport):
            request.extensions["tidegate"] = call
            return await super()._send_request(request, stream=stream, **keywords)
        send = super()._send_request
        return await _guard.send_async(
            call, request, lambda: send(request, stream=stream, **keywords), stream=stream
        )

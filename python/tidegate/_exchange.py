"""Calls whose requests are made elsewhere: by an SDK, which hands them to a transport of tidegate."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate import _context, _core, _layers
from tidegate._log import NOTHING, level_for_calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate._core import Attempt, CallInfo, Exchange, Receipt, Stream, _Errand

Request = tuple[str, str, list[tuple[bytes, bytes]], bytes, tuple[float | None, ...] | None]

_PHASES = ("connect", "read", "write", "pool")


def described(request: Any, content: bytes) -> Request:
    """Return a request of httpx as the core takes it."""
    timeout = request.extensions.get("timeout")
    phases = None if timeout is None else tuple(timeout.get(phase) for phase in _PHASES)
    return request.method, str(request.url), request.headers.raw, content, phases


class Call:
    """One call, whose attempts a retry loop asks for one by one.

    It keeps no answer: contexts that were copied during the call hold it, and must not hold a stream.

    Attributes:
        given: What the first attempt came to, where it was made before.
        retry_in: Seconds to wait before another attempt, as far as the last one told.
    """

    __slots__ = ("_make", "_over", "exchange", "given", "level", "max_attempts", "retry_in")

    def __init__(self, make: Callable[..., Exchange], max_attempts: int | None) -> None:
        self._make = make
        self.max_attempts = max_attempts
        self.level = level_for_calls()
        self.exchange: Exchange | None = None
        self.given: Ended | None = None
        self.retry_in: float | None = None
        self._over = False

    def _current(self) -> Exchange:
        # An attempt after the last one, as a redirect or a resend with a fresh token, is a call of its own.
        if self.exchange is None or self._over:
            # What the SDK sends again, it has a reason for: that is no layer of retries.
            around = _layers.add(None) if self.exchange is None else None
            self.exchange = self._make(
                max_attempts=self.max_attempts,
                tags=_context.ambient() or None,
                log_level=self.level,
                **(around or {}),
            )
        self._over, self.retry_in = False, None
        return self.exchange

    def _take(self) -> Ended | None:
        given, self.given = self.given, None
        if given is not None:
            self._over = True
        return given

    def run(self, errand: _Errand, request: Request) -> Ended:
        """Do an errand and wait for its end without the interpreter."""
        if (given := self._take()) is not None:
            return given
        exchange = self._current()
        return self._end(exchange.call(errand, request))

    async def run_async(self, errand: _Errand, request: Request) -> Ended:
        """Do an errand from asyncio; where another library runs the tasks, from a thread."""
        if (given := self._take()) is not None:
            return given
        exchange = self._current()
        context = None if self.level == NOTHING else contextvars.copy_context()
        try:
            ticket = exchange.submit(errand, request, context=context)
        except RuntimeError:
            import anyio.to_thread

            ended: Attempt | Stream = await anyio.to_thread.run_sync(
                exchange.call, errand, request, abandon_on_cancel=True
            )
            return self._end(ended)
        try:
            return self._end(await ticket.future)
        except BaseException:
            ticket.cancel()
            # The future holds the error and the error this frame: a cycle, were the ticket still in it.
            del ticket
            raise

    def answered(
        self,
        request: Request,
        status: int,
        headers: list[tuple[bytes, bytes]],
        content: bytes,
        first_byte: float,
    ) -> Ended:
        """Tell of the answer to an attempt that was admitted and sent by somebody else."""
        assert self.exchange is not None  # noqa: S101 admitted before
        return self._end(self.exchange.answered(request, status, headers, content, first_byte))

    def streamed(self, request: Request, status: int, headers: list[tuple[bytes, bytes]]) -> Streaming | None:
        """Tell of the head of such an answer; `None` if the rest is to be told as one."""
        assert self.exchange is not None  # noqa: S101 admitted before
        receipt = self.exchange.streamed(request, status, headers)
        if receipt is None:
            return None
        self._over = True
        return Streaming(receipt)

    def hand_on(self) -> Exchange:
        """Leave such an attempt to whoever reads its answer."""
        assert self.exchange is not None  # noqa: S101 admitted before
        exchange, self.exchange = self.exchange, None
        return exchange

    def failed(self, kind: str, message: str) -> Ended:
        """Tell that such an attempt got no answer."""
        assert self.exchange is not None  # noqa: S101 admitted before
        return self._end(self.exchange.failed(kind, message))

    def cut(self) -> Ended:
        """Tell that the call's deadline came during such an attempt."""
        assert self.exchange is not None  # noqa: S101 admitted before
        return self._end(self.exchange.cut())

    def leave(self) -> None:
        """Give up the call; what it holds goes back."""
        self.exchange = None

    def _end(self, ended: Attempt | Stream) -> Ended:
        told = Streaming(ended) if isinstance(ended, _core.Stream) else ended
        if told.error is not None:
            _layers.failed(told.error)
        self.retry_in = told.retry_in
        self._over = told.retry_in is None
        return told


class Streaming:
    """An attempt whose answer comes in pieces."""

    __slots__ = ("stream",)

    # As an `Attempt` that has succeeded.
    as_it_came = False
    error = None
    failure = None
    retry_in = None

    def __init__(self, stream: Stream | Receipt) -> None:
        self.stream = stream

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.stream.status

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Raw pairs, names in lower case."""
        return self.stream.headers

    @property
    def info(self) -> CallInfo:
        """How the call went, as far as it has."""
        return self.stream.info


Ended: TypeAlias = "Attempt | Streaming"

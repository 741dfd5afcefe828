"""Streams that the user's own HTTP client receives: the gate is told what comes, and settles the call."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from tidegate._errors import CallError
from tidegate._raised import of_sdk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tidegate._core import CallInfo, Exchange, Receipt
    from tidegate._exchange import Request
    from tidegate._library import Library

_DECODED = ("content-encoding", "content-length")


def observe(response: Any, receipt: Receipt | Whole, library: Library) -> None:
    """Have the gate told of all that is read of a response from now on."""
    module = library.module
    try:
        content = response.content
    except module.ResponseNotRead:
        pass
    else:
        # Somebody has read it, as hooks do: it is the official client's from here on.
        receipt.feed(content)
        receipt.feed(None)
        return
    response.stream = _body_class(library)(receipt, _decoded(response, library), library)


def _decoded(response: Any, library: Library) -> Any:
    """Return another response that reads and decompresses this one's body, which is plain from now on."""
    inner = library.module.Response(
        response.status_code, headers=response.headers, stream=response.stream, request=response.request
    )
    if "content-encoding" in response.headers:
        for name in _DECODED:
            response.headers.pop(name, None)
    return inner


class Whole:
    """What a `Receipt` is, for an answer that is one piece and is read bit by bit: judged at its end."""

    # As an `Attempt` that has succeeded.
    as_it_came = False
    error = None
    failure = None
    retry_in = None
    info: CallInfo | None = None

    def __init__(self, exchange: Exchange, asked: Request, response: Any, limit: float | None) -> None:
        # What was asked and what came is kept for the verdict, which may be long in coming.
        self._exchange: Exchange | None = exchange
        self._asked = asked
        self._began = time.monotonic()
        self._limit = limit
        self._pieces: list[bytes] = []
        self._late: CallError | None = None
        self.status: int = response.status_code
        self.headers: list[tuple[bytes, bytes]] = response.headers.raw

    @property
    def limit(self) -> float | None:
        """Seconds within which the answer has to end; `None` if it has for ever."""
        return None if self._limit is None else max(self._limit - (time.monotonic() - self._began), 0.0)

    def feed(self, piece: bytes | None) -> None:
        """Tell of a piece that came, decompressed, or with `None` of the end."""
        if self._exchange is None:
            return
        if piece is None:
            exchange, self._exchange = self._exchange, None
            content, self._pieces = b"".join(self._pieces), []
            self.info = exchange.answered(self._asked, self.status, self.headers, content, 0.0).info
        else:
            self._pieces.append(piece)

    def fail(self, kind: str, message: str) -> None:
        """Tell that it broke off."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self.info = exchange.failed(kind, message).info

    def cut(self) -> None:
        """Tell that the call's deadline came first."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._late = exchange.cut().error

    def close(self) -> None:
        """Tell that nobody wants the rest."""
        self._exchange = None

    def check(self) -> None:
        """Raise if the deadline came first. What came is its reader's to judge."""
        if self._late is not None:
            raise self._late


class Observed:
    """A body, decompressed, piece by piece. A second iteration goes on where the first stopped."""

    def __init__(self, receipt: Receipt | Whole, inner: Any, library: Library) -> None:
        self._receipt = receipt
        self._inner = inner
        self._library = library
        self._has_limit = receipt.limit is not None
        self._pieces: Any = None

    def __iter__(self) -> Iterator[bytes]:
        if self._pieces is None:
            self._pieces = self._inner.iter_bytes()
        while (piece := self._next()) is not None:
            yield piece
            self._check()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._pieces is None:
            self._pieces = self._inner.aiter_bytes()
        while (piece := await self._anext()) is not None:
            yield piece
            self._check()

    def _next(self) -> bytes | None:
        # Its timeouts were bounded by the call's, so that no wait for a piece is longer than a call.
        self._in_time()
        try:
            piece = next(self._pieces, None)
        except self._library.module.RequestError as error:
            self._in_time(error)
            self._broken(error)
            return None
        return self._came(piece)

    async def _anext(self) -> bytes | None:
        if not self._has_limit:
            return self._came(await self._received())
        import anyio

        piece = None
        with anyio.move_on_after(self._receipt.limit) as scope:
            piece = await self._received()
        if scope.cancelled_caught:
            self._receipt.cut()
            self._check()
        return self._came(piece)

    async def _received(self) -> bytes | None:
        try:
            found: bytes | None = await anext(self._pieces, None)
        except self._library.module.RequestError as error:
            self._broken(error)
            return None
        return found

    def _in_time(self, error: Exception | None = None) -> None:
        if self._has_limit and self._receipt.limit == 0:
            self._receipt.cut()
            self._check(error)

    def _came(self, piece: bytes | None) -> bytes | None:
        # After a failure or a cut, nothing is told by it.
        self._receipt.feed(piece)
        if piece is None:
            self._check()
        return piece

    def _broken(self, error: Exception) -> None:
        self._receipt.fail(*(self._library.failure(error) or ("reset", str(error))))
        self._check(error)
        if isinstance(self._receipt, Whole):
            raise error
        # All that matters had come before.

    def _check(self, cause: Exception | None = None) -> None:
        try:
            self._receipt.check()
        except CallError as error:
            raise of_sdk(error, self._inner.request) from cause

    def close(self) -> None:
        """Stop the answer, if it still comes."""
        try:
            self._inner.close()
        finally:
            self._receipt.close()

    async def aclose(self) -> None:
        """Stop the answer, if it still comes."""
        try:
            await self._inner.aclose()
        finally:
            self._receipt.close()


@functools.cache
def _body_class(library: Library) -> type[Any]:
    class _Observed(Observed, library.module.AsyncByteStream, library.module.SyncByteStream):  # type: ignore[misc, name-defined]
        pass

    return _Observed

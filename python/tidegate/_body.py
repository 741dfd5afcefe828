"""Bodies that are read while they come."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tidegate._errors import CallError
from tidegate._raised import of_sdk, of_transport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tidegate._core import Stream
    from tidegate._library import Library


class Body:
    """The body of an answer, in pieces. A second iteration goes on where the first stopped."""

    _library: Library

    def __init__(self, stream: Stream, request: Any, *, by_sdk: bool) -> None:
        self._stream = stream
        self._request = request
        self._by_sdk = by_sdk
        self._pieces: deque[bytes] = deque()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            try:
                found = self._stream.read_blocking()
            except CallError as error:
                made, cause = self._raised(error)
                raise made from cause
            if not found:
                return
            self._pieces.extend(found)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            try:
                found = await self._read()
            except CallError as error:
                made, cause = self._raised(error)
                raise made from cause
            if not found:
                return
            self._pieces.extend(found)

    async def _read(self) -> list[bytes]:
        try:
            ticket = self._stream.read()
        except RuntimeError:
            # Another library than asyncio runs the tasks.
            import anyio.to_thread

            return await anyio.to_thread.run_sync(self._stream.read_blocking, abandon_on_cancel=True)
        try:
            return await ticket.future
        except BaseException:
            ticket.cancel()
            del ticket
            raise

    def _raised(self, error: CallError) -> tuple[Exception, Exception | None]:
        kind = "idle_timeout" if error.kind == "timeout" else "body"
        plain = self._library.exception(kind, error.message, self._request)
        if self._by_sdk:
            return of_sdk(error, self._request), plain
        return of_transport(error, type(plain), self._request), None

    def close(self) -> None:
        """Stop the answer, if it still comes."""
        self._stream.close()

    async def aclose(self) -> None:
        """Stop the answer, if it still comes."""
        try:
            ticket = self._stream.aclose()
        except RuntimeError:
            self._stream.close()
            return
        await ticket.future

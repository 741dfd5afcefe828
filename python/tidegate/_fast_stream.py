"""The official client's streams over the engine's: typed chunks, built batch by batch as they arrive."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
import openai

from tidegate._errors import CallError
from tidegate._raised import of_sdk
from tidegate._turn import ITEMS, turn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator

    from tidegate import _core

T = TypeVar("T")
Build = "Callable[[bytes, str | None], Any]"


def _encoded(item: tuple[str | None, bytes]) -> bytes:
    """Write an event as it may have come."""
    name, data = item
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"".join(b"data: " + line + b"\n" for line in data.split(b"\n")) + b"\n"


class _Typed:
    """What the two kinds of stream have in common."""

    _tidegate: _core.Stream
    _make_request: Callable[[], Any]

    def _begin(self, opened: _core.Stream, build: Any, client: Any, request: Callable[[], Any]) -> None:
        self._tidegate = opened
        self._build = build
        self._cast_to = build.cls
        self._client = client
        self._make_request = request

    @property
    def _tidegate_info(self) -> _core.CallInfo:
        return self._tidegate.info

    def _raised(self, error: CallError) -> CallError:
        """Return the error as the official client's as well."""
        response = self.response  # type: ignore[attr-defined]
        made: Any = of_sdk(error, response.request)
        return made  # type: ignore[no-any-return]

    def _response(self, stream: Any) -> httpx2.Response:
        opened = self._tidegate
        request = self._make_request()
        return httpx2.Response(
            opened.status,
            headers=[
                pair for pair in opened.headers if pair[0] not in {b"content-encoding", b"content-length"}
            ],
            stream=stream,
            request=request,
            extensions={"http_version": b"HTTP/1.1", "tidegate": opened},
        )


class Stream(_Typed, openai.Stream[T]):
    """A stream for callers without an event loop."""

    _iterator: Generator[T, None, None]

    def __init__(  # made by the engine instead of the official client
        self, opened: _core.Stream, build: Any, client: Any, request: Callable[[], Any]
    ) -> None:
        self._begin(opened, build, client, request)
        self._iterator = self.__stream__()

    @cached_property
    def response(self) -> httpx2.Response:  # type: ignore[override]
        """The answer. Its body is what of the stream is not read yet."""
        return self._response(_Remainder(self._tidegate))

    def __iter__(self) -> Iterator[T]:
        return self._iterator

    def __stream__(self) -> Generator[T, None, None]:
        build, read = self._build, self._tidegate.read_blocking
        try:
            while batch := read():
                for name, data in batch:
                    yield build(data, name)
        except CallError as error:
            raise self._raised(error) from error.__cause__
        finally:
            self._tidegate.close()

    def close(self) -> None:
        """Stop the stream and release what it holds. It may be called again."""
        if not self._iterator.gi_running:  # type: ignore[attr-defined]
            self._iterator.close()
        self._tidegate.close()


class AsyncStream(_Typed, openai.AsyncStream[T]):
    """A stream for asyncio."""

    _iterator: AsyncGenerator[T, None]

    def __init__(  # made by the engine instead of the official client
        self, opened: _core.Stream, build: Any, client: Any, request: Callable[[], Any]
    ) -> None:
        self._begin(opened, build, client, request)
        self._iterator = self.__stream__()

    @cached_property
    def response(self) -> httpx2.Response:  # type: ignore[override]
        """The answer. Its body is what of the stream is not read yet."""
        return self._response(_AsyncRemainder(self._tidegate))

    def __aiter__(self) -> AsyncIterator[T]:
        return self._iterator

    async def __stream__(self) -> AsyncGenerator[T, None]:
        build, opened = self._build, self._tidegate
        handed_on = 0
        try:
            while True:
                batch = opened.ready()
                if batch is None:
                    batch, handed_on = await _read(opened), 0
                if not batch:
                    return
                for name, data in batch:
                    if handed_on == ITEMS:
                        handed_on = 0
                        await turn()
                    handed_on += 1
                    yield build(data, name)
        except CallError as error:
            raise self._raised(error) from error.__cause__
        finally:
            await opened.aclose().future

    async def close(self) -> None:
        """Stop the stream and release what it holds. It may be called again."""
        if not self._iterator.ag_running:  # type: ignore[attr-defined]
            await self._iterator.aclose()
        await self._tidegate.aclose().future


async def _read(opened: _core.Stream) -> list[Any]:
    ticket = opened.read()
    try:
        return await ticket.future
    except BaseException:
        ticket.cancel()
        # The future holds the error and the error this frame: a cycle, were the ticket still in it.
        del ticket
        raise


class _Remainder(httpx2.SyncByteStream):
    """The events that are not read yet, as bytes."""

    def __init__(self, opened: _core.Stream) -> None:
        self._opened = opened

    def __iter__(self) -> Iterator[bytes]:
        while batch := self._opened.read_blocking():
            yield from map(_encoded, batch)

    def close(self) -> None:
        self._opened.close()


class _AsyncRemainder(httpx2.AsyncByteStream):
    """The events that are not read yet, as bytes."""

    def __init__(self, opened: _core.Stream) -> None:
        self._opened = opened

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while batch := await _read(self._opened):
            for item in batch:
                yield _encoded(item)

    async def aclose(self) -> None:
        await self._opened.aclose().future

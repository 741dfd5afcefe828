"""Answers that are read while they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from tidegate import _core
from tidegate._layers import failed
from tidegate._turn import ITEMS, turn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from decimal import Decimal
    from types import TracebackType
    from typing import Self

    from tidegate._core import CallInfo, Response, Ticket, Usage

T = TypeVar("T")


@final
class StreamEvent:
    """One event of a stream.

    Attributes:
        event: Its name; `None` where the server gives none, as in chat completions.
        data: What it says, almost always JSON.
    """

    __slots__ = ("data", "event")

    def __init__(self, event: str | None, data: bytes) -> None:
        self.event = event
        self.data = data

    @property
    def text(self) -> str:
        """The data as text."""
        return self.data.decode()

    def json(self) -> Any:
        """Return the data read as JSON.

        Raises:
            ValueError: It is none.
        """
        import json

        return json.loads(self.data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamEvent) and (self.event, self.data) == (other.event, other.data)

    def __hash__(self) -> int:
        return hash((self.event, self.data))

    def __repr__(self) -> str:
        return f"StreamEvent(event={self.event!r}, data={self.data!r})"


def of_event(item: tuple[str | None, bytes]) -> StreamEvent:
    """Make the event that the core gave as a pair."""
    return StreamEvent(*item)


def of_bytes(item: bytes) -> bytes:
    """Return the piece as it is."""
    return item


def streaming(json: object) -> object:
    """Return the body with ``"stream": true``, unless it says something about it."""
    if isinstance(json, Mapping) and "stream" not in json:
        return {**json, "stream": True}
    return json


class _Stream(Generic[T]):
    """What is known of a stream, however it is read."""

    __slots__ = ("_batch", "_make", "_opened")

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._opened: _core.Stream | Response | None = None
        self._batch: Iterator[Any] = iter(())

    def _begin(self, opened: _core.Stream | Response) -> None:
        self._opened = opened
        if isinstance(opened, _core.Response):
            # The server answered in one piece.
            whole = opened.content
            self._batch = iter([whole if self._make is of_bytes else (None, whole)])

    @property
    def _answer(self) -> _core.Stream | Response:
        if self._opened is None:
            raise RuntimeError("the stream has not been started: await it, or enter it with `async with`")
        return self._opened

    @property
    def response(self) -> Response | None:
        """The answer, where the server gave it in one piece in spite of the request."""
        return self._opened if isinstance(self._opened, _core.Response) else None

    @property
    def status(self) -> int:
        """HTTP status, 2xx."""
        return self._answer.status

    @property
    def headers(self) -> dict[str, str]:
        """Names in lower case; repeated ones are joined by ``", "``."""
        answer = self._answer
        if isinstance(answer, _core.Response):
            return answer.headers
        joined: dict[str, str] = {}
        for name, value in answer.headers:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            joined[key] = f"{joined[key]}, {text}" if key in joined else text
        return joined

    @property
    def request_id(self) -> str | None:
        """The server's id of the request, for its support."""
        return self._answer.request_id

    @property
    def info(self) -> CallInfo:
        """How the call went; usage and cost are known once it has ended."""
        return self._answer.info

    @property
    def usage(self) -> Usage | None:
        """What was used, once the stream has ended; ``usage.source`` says who says so."""
        return self.info.usage

    @property
    def cost_usd(self) -> Decimal | None:
        """US dollars, once the stream has ended; `None` where the price or the usage is not known."""
        return self.info.cost_usd

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._opened!r}>"


class AsyncStream(_Stream[T]):
    """An answer that is read while it comes, from asyncio.

    Enter it with ``async with``, which closes it in the end, or await it. Iterating gives what comes, in
    order, and raises `StreamInterruptedError` if it breaks off. One task reads it at a time.
    """

    __slots__ = ("_handed_on", "_start")

    def __init__(self, start: Callable[[], Ticket[Any]], make: Callable[[Any], T]) -> None:
        super().__init__(make)
        self._handed_on = 0
        self._start: Callable[[], Ticket[Any]] | None = start

    async def _open(self) -> Self:
        start, self._start = self._start, None
        if start is None:
            return self
        ticket = start()
        try:
            self._begin(await ticket.future)
        except BaseException as error:
            failed(error)
            ticket.cancel()
            del ticket
            raise
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        # Before anything is taken, so that a reader that is cancelled here loses nothing.
        if self._handed_on == ITEMS:
            self._handed_on = 0
            await turn()
        self._handed_on += 1
        for item in self._batch:
            return self._make(item)
        await self._read()
        for item in self._batch:
            return self._make(item)
        raise StopAsyncIteration

    async def _read(self) -> None:
        answer = self._answer
        if isinstance(answer, _core.Response):
            return
        batch = answer.ready()
        if batch is None:
            self._handed_on = 1
            ticket = answer.read()
            future = ticket.future
            try:
                batch = await future
            except BaseException:
                ticket.cancel()
                # Cancelled between its arrival and this line, it is for who reads next.
                if future.done() and not future.cancelled() and future.exception() is None:
                    self._batch = iter(future.result())
                del ticket, future
                raise
        self._batch = iter(batch)

    async def aclose(self) -> None:
        """Stop the stream, if it still runs, and forget what was not read. It may be called again."""
        self._start = None
        self._batch = iter(())
        if isinstance(self._opened, _core.Stream):
            await self._opened.aclose().future


class Stream(_Stream[T]):
    """An answer that is read while it comes, from any thread. The interpreter is free while it waits.

    Leaving the ``with`` block closes it. Iterating gives what comes, in order, and raises
    `StreamInterruptedError` if it breaks off. One thread reads it at a time.
    """

    __slots__ = ()

    def __init__(self, opened: _core.Stream | Response, make: Callable[[Any], T]) -> None:
        super().__init__(make)
        self._begin(opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        for item in self._batch:
            return self._make(item)
        answer = self._answer
        if isinstance(answer, _core.Stream):
            self._batch = iter(answer.read_blocking())
        return self._make(next(self._batch))

    def close(self) -> None:
        """Stop the stream, if it still runs, and forget what was not read. It may be called again."""
        self._batch = iter(())
        if isinstance(self._opened, _core.Stream):
            self._opened.close()


def maker(form: str) -> Callable[[Any], Any]:
    """Return what turns the core's items into the user's."""
    return cast("Callable[[Any], Any]", of_event if form == "events" else of_bytes)

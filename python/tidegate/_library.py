"""httpx2 and legacy httpx, whichever a request belongs to: their responses, streams and exceptions."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from tidegate._exchange import Streaming

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tidegate._exchange import Ended

# The core's words for what kept an answer from coming, and the exception that both libraries raise for it.
_EXCEPTIONS = {
    "connect": "ConnectError",
    "connect_timeout": "ConnectTimeout",
    "first_byte_timeout": "ReadTimeout",
    "idle_timeout": "ReadTimeout",
    "attempt_timeout": "ReadTimeout",
    "reset": "ReadError",
    "not_processed": "RemoteProtocolError",
    "body": "RemoteProtocolError",
    "decode": "DecodingError",
    "redirect": "TooManyRedirects",
    "request": "LocalProtocolError",
}


# Longest piece of a body that its reader gets at once, as where the libraries decompress it themselves.
_PIECE = 1 << 20


class Library:
    """One of the two, by its module."""

    __slots__ = ("module",)

    def __init__(self, module: Any) -> None:
        self.module = module

    def exception(self, kind: str, message: str, request: Any) -> Exception:
        """Return what the library's own transport would raise."""
        cls = getattr(self.module, _EXCEPTIONS.get(kind, "ReadError"))
        made: Exception = cls(message, request=request)
        return made

    def response(self, attempt: Ended, request: Any, *, by_sdk: bool) -> Any:
        """Return the answer to an attempt; `by_sdk` as in `tidegate._raised`."""
        if isinstance(attempt, Streaming):
            stream = _body_class(self)(attempt.stream, request, by_sdk=by_sdk)
        else:
            content = attempt.content
            few = len(content) <= _PIECE
            stream = self.module.ByteStream(content) if few else _sliced_class(self)(content)
        return self.module.Response(
            attempt.status,
            headers=_described(attempt.headers),
            stream=stream,
            request=request,
            extensions={"http_version": b"HTTP/1.1", "tidegate": attempt},
        )

    def failure(self, error: Exception) -> tuple[str, str] | None:
        """Return the core's word for an exception of the library; `None` if it is none of a transport."""
        module = self.module
        if not isinstance(error, module.RequestError):
            return None
        kinds = (
            (module.ConnectTimeout, "connect_timeout"),
            (module.PoolTimeout, "connect_timeout"),
            (module.TimeoutException, "read_timeout"),
            (module.ConnectError, "connect"),
            (module.UnsupportedProtocol, "request"),
            (module.LocalProtocolError, "request"),
            (module.TooManyRedirects, "request"),
        )
        kind = next((kind for cls, kind in kinds if isinstance(error, cls)), "reset")
        return kind, str(error)


def _described(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    # The body has been decompressed, so these two are no longer about it.
    if any(name == b"content-encoding" for name, _ in headers):
        return [pair for pair in headers if pair[0] not in {b"content-encoding", b"content-length"}]
    return headers


@functools.cache
def _body_class(library: Library) -> type[Any]:
    from tidegate._body import Body

    class _Body(Body, library.module.AsyncByteStream, library.module.SyncByteStream):  # type: ignore[misc, name-defined]
        _library = library

    return _Body


@functools.cache
def _sliced_class(library: Library) -> type[Any]:
    class _Sliced(library.module.AsyncByteStream, library.module.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, content: bytes) -> None:
            self._content = content

        def __iter__(self) -> Iterator[bytes]:
            for start in range(0, len(self._content), _PIECE):
                yield self._content[start : start + _PIECE]

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in self:
                yield piece

    return _Sliced


@functools.cache
def _named(name: str) -> Library:
    return Library(sys.modules[name])


def library_of(request: Any) -> Library:
    """Return the library that a request, a response or a client was made with."""
    for cls in type(request).__mro__:
        root = cls.__module__.partition(".")[0]
        if root in {"httpx2", "httpx"}:
            return _named(root)
    raise TypeError(f"{type(request).__name__} is no object of httpx2 or httpx")

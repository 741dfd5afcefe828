"""The gates around requests that the user's own HTTP client sends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tidegate._exchange import described
from tidegate._library import library_of
from tidegate._observed import Whole, observe
from tidegate._raised import of_sdk, raised

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tidegate._exchange import Call, Ended, Request

# What a redirect that is not followed amounts to, the official client says.
_SUCCESS_ENDS = 300


class _Attempt:
    """One attempt of a call, between the gates and the answer."""

    def __init__(self, call: Call, request: Any, asked: Request, admitted: Ended) -> None:
        if admitted.error is not None:
            raise raised(admitted, request, library_of(request), by_sdk=True)
        self._call = call
        self._request = request
        self._asked = asked
        self.limit: float | None = getattr(admitted, "limit", None)
        self._began = time.monotonic()

    def bound(self) -> None:
        """Have no wait of the client take longer than the call may."""
        timeouts = self._request.extensions.get("timeout")
        if self.limit is not None and timeouts is not None:
            self._request.extensions["timeout"] = {
                phase: self.limit if seconds is None else min(seconds, self.limit)
                for phase, seconds in timeouts.items()
            }

    def streamed(self, response: Any) -> Any:
        """Tell the core of the head of an answer, and of the rest as the official client reads it."""
        library, limit = library_of(response), self.limit
        told: Any = self._call.streamed(self._asked, response.status_code, response.headers.raw)
        if told is None:
            left = None if limit is None else max(limit - (time.monotonic() - self._began), 0.0)
            told = receipt = Whole(self._call.hand_on(), self._asked, response, left)
        else:
            receipt = told.stream
        response.extensions["tidegate"] = told
        observe(response, receipt, library)
        return response

    def answered(self, response: Any, content: bytes) -> Any:
        """Tell the core of the answer; raise what ends the call, if this ends it."""
        library, request = library_of(response), self._request
        attempt = self._call.answered(
            self._asked, response.status_code, response.headers.raw, content, time.monotonic() - self._began
        )
        if attempt.status is not None and attempt.status < _SUCCESS_ENDS:
            if attempt.error is not None:
                raise raised(attempt, request, library, by_sdk=True)
            if attempt.retry_in is not None:
                raise library.exception("decode", "the answer cannot be read", request)
        # A 200 that holds an error has the error's status.
        response.status_code = attempt.status
        response.extensions["tidegate"] = attempt
        return response

    def failed(self, error: Exception) -> None:
        """Tell the core of the exception; raise in its place what ends the call, if this ends it."""
        if self.limit is not None and time.monotonic() - self._began >= self.limit:
            raise self.cut() from error
        failure = library_of(self._request).failure(error)
        if failure is None:
            self._call.leave()
            return
        attempt = self._call.failed(*failure)
        if attempt.error is not None:
            raise of_sdk(attempt.error, self._request) from error

    def cut(self) -> Exception:
        """Tell the core that the call's time is over; what to raise."""
        return raised(self._call.cut(), self._request, library_of(self._request), by_sdk=True)

    def leave(self) -> None:
        """Tell the core that nobody waits any more."""
        self._call.leave()


def _described(request: Any) -> Request:
    # A body that is made while it is sent cannot be read before; it names no model either.
    return described(request, getattr(request, "_content", b""))


def send(call: Call, request: Any, sends: Callable[[], Any], *, stream: bool) -> Any:
    """Pass the gates, have the request sent, and tell the core what came of it."""
    asked = _described(request)
    attempt = _Attempt(call, request, asked, call.run("admit", asked))
    attempt.bound()
    try:
        response = sends()
        if stream and response.status_code < _SUCCESS_ENDS:
            return attempt.streamed(response)
        content = response.read()
    except Exception as error:
        attempt.failed(error)
        raise
    except BaseException:
        attempt.leave()
        raise
    return attempt.answered(response, content)


async def send_async(call: Call, request: Any, sends: Callable[[], Awaitable[Any]], *, stream: bool) -> Any:
    """Pass the gates, have the request sent, and tell the core what came of it."""
    import anyio

    asked = _described(request)
    attempt = _Attempt(call, request, asked, await call.run_async("admit", asked))
    try:
        with anyio.move_on_after(attempt.limit) as scope:
            response = await sends()
            if stream and response.status_code < _SUCCESS_ENDS:
                return attempt.streamed(response)
            content = await response.aread()
    except Exception as error:
        attempt.failed(error)
        raise
    except BaseException:
        attempt.leave()
        raise
    if scope.cancelled_caught:
        raise attempt.cut()
    return attempt.answered(response, content)

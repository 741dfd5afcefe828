"""The gates around requests that the user's own HTTP client sends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tidegate._exchange import described
from tidegate._library import library_of
from tidegate._raised import of_sdk, raised

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tidegate._exchange import Call, Ended, Request
    from tidegate._library import Library

_ERROR = 400


def _request(request: Any) -> Request:
    # A body that is made while it is sent cannot be read before; it names no model either.
    return described(request, getattr(request, "_content", b""))


def _admitted(attempt: Ended, request: Any) -> None:
    if attempt.error is not None:
        raise raised(attempt, request, library_of(request), by_sdk=True)


def _failed(call: Call, request: Any, library: Library, error: Exception) -> None:
    """Tell the core of the exception; raise in its place what ends the call, if this ends it."""
    failure = library.failure(error)
    if failure is None:
        call.leave()
        return
    attempt = call.failed(*failure)
    if attempt.error is not None:
        raise of_sdk(attempt.error, request) from error


def _answered(  # noqa: PLR0917 what was asked and what came of it
    call: Call, asked: Request, request: Any, response: Any, content: bytes, began: float
) -> Any:
    library = library_of(response)
    attempt = call.answered(
        asked, response.status_code, response.headers.raw, content, time.monotonic() - began
    )
    if attempt.status is not None and attempt.status < _ERROR and attempt.error is not None:
        raise raised(attempt, request, library, by_sdk=True)
    if attempt.status is not None and attempt.status < _ERROR and attempt.retry_in is not None:
        raise library.exception("decode", "the answer cannot be read", request)
    # A 200 that holds an error has the error's status.
    response.status_code = attempt.status
    response.extensions["tidegate"] = attempt
    return response


def send(call: Call, request: Any, sends: Callable[[], Any], *, stream: bool) -> Any:
    """Pass the gates, have the request sent, and tell the core what came of it."""
    asked = _request(request)
    _admitted(call.run("admit", asked), request)
    began = time.monotonic()
    try:
        response = sends()
        if stream and response.status_code < _ERROR:
            return _streamed(call, asked, response, began)
        content = response.read()
    except Exception as error:
        _failed(call, request, library_of(request), error)
        raise
    except BaseException:
        call.leave()
        raise
    return _answered(call, asked, request, response, content, began)


async def send_async(call: Call, request: Any, sends: Callable[[], Awaitable[Any]], *, stream: bool) -> Any:
    """Pass the gates, have the request sent, and tell the core what came of it."""
    asked = _request(request)
    _admitted(await call.run_async("admit", asked), request)
    began = time.monotonic()
    try:
        response = await sends()
        if stream and response.status_code < _ERROR:
            return _streamed(call, asked, response, began)
        content = await response.aread()
    except Exception as error:
        _failed(call, request, library_of(request), error)
        raise
    except BaseException:
        call.leave()
        raise
    return _answered(call, asked, request, response, content, began)


def _streamed(call: Call, asked: Request, response: Any, began: float) -> Any:
    # Its head is all there is to judge: without a type, an empty body is none to be read.
    headers = [(name, value) for name, value in response.headers.raw if name.lower() != b"content-type"]
    attempt = call.answered(asked, response.status_code, headers, b"", time.monotonic() - began)
    response.extensions["tidegate"] = attempt
    return response

"""The methods of the fast path: which calls are theirs, what is sent for one, and what it returns."""

from __future__ import annotations

import array
import base64
import inspect
import logging
from typing import Any

import httpx2
import openai
from openai._base_client import AsyncAPIClient, make_request_options
from openai._models import FinalRequestOptions
from openai._types import NotGiven, Omit, not_given

from tidegate import _core
from tidegate._fast_stream import AsyncStream, Stream
from tidegate._layers import failed
from tidegate._library import library_of
from tidegate._official import Watched
from tidegate._prepared import Route, State
from tidegate._raised import raised
from tidegate._results import Event, Result

_SUCCESS_ENDS = 300
_ABSENT = (Omit, NotGiven)
_UNCOMMON = frozenset({"extra_headers", "extra_query", "extra_body", "timeout"})
_RAW = frozenset({"x-stainless-raw-response", "____stainless_override_cast_to"})
# What `_core.Route` writes models in.
_LISTS = frozenset({"messages", "input", "tools"})
_http_log = logging.getLogger("httpx2")
_sdk_log = logging.getLogger("openai")


class Method:
    """One of the methods: what it takes, where it goes, and what it returns."""

    def __init__(self, path: str, *, owner: type, required: str, result: type, part: Any) -> None:
        self._path = path
        self._create = Watched(owner, "create")
        self._plain = frozenset(inspect.signature(owner.create).parameters) - _UNCOMMON - {"self"}  # type: ignore[attr-defined]
        self._required = required
        self._build = Result(result)
        # Of a stream; `None` where there are none.
        self._part = part
        self._build_part = None if part is None else _builder_of(part)

    def begin(
        self, client: Any, given: dict[str, Any]
    ) -> tuple[State, object, Route | None, dict[str, Any], dict[str, Any]] | None:
        """Return the route of a call and its body, or the options to make the route from.

        `None` if the call is not for here.
        """
        state = State.of(client)
        if not (state.usable and self._create.is_own()):
            return None
        if self._required not in given or "model" not in given or client._client.is_closed:
            return None
        # Its lines tell of each request, and are the official client's to write.
        if _sdk_log.isEnabledFor(logging.DEBUG):
            return None
        key: object = self._path
        if state.by_model:
            if type(given["model"]) is not str:
                return None
            key = (key, given["model"])
        body = given
        options: dict[str, Any] = {}
        if not given.keys() <= self._plain:
            split = self._split(given)
            if split is None:
                return None
            body, options, more = split
            key = (key, more)
        body = self._completed(body)
        return state, key, state.routes.get(key), body, options

    def _completed(self, body: dict[str, Any]) -> dict[str, Any]:
        return body

    def _split(  # noqa: PLR0911 each for another reason
        self, given: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], object] | None:
        """Return the body, the options that are no part of it, and what tells such options apart."""
        if not given.keys() <= self._plain | _UNCOMMON:
            return None
        body, options = given.copy(), {}
        headers, query = body.pop("extra_headers", None), body.pop("extra_query", None)
        more, timeout = body.pop("extra_body", None), body.pop("timeout", not_given)
        if query is not None or not (
            timeout is not_given or timeout is None or type(timeout) in {int, float}
        ):
            return None
        if headers:
            if not all(type(name) is type(value) is str for name, value in headers.items()):
                return None
            if not _RAW.isdisjoint(map(str.lower, headers)):
                return None
            options["extra_headers"] = headers
        if timeout is not not_given:
            options["timeout"] = timeout
        if more is not None:
            if type(more) is not dict or not _LISTS.isdisjoint(more):
                return None
            if any(isinstance(value, _ABSENT) for value in more.values()):
                return None
            body.update(more)
        return body, options, (tuple(headers.items()) if headers else None, timeout)

    def options(self, given: dict[str, Any], extra: dict[str, Any]) -> FinalRequestOptions:
        """Return the official client's description of a request."""
        made = make_request_options(security={"bearer_auth": True}, **extra)
        json_data = {"model": given["model"]}
        return FinalRequestOptions.construct(method="post", url=self._path, json_data=json_data, **made)

    def finish(
        self, client: Any, route: Route, given: dict[str, Any], body: dict[str, Any], answer: Any
    ) -> Any:
        """Return the result of a call, or raise what it failed with."""
        streams = type(answer) is _core.Stream
        if not streams and type(answer) is not _core.Response:
            raise _failure(client, route, body, answer)
        if _http_log.isEnabledFor(logging.INFO):
            request, line = route.request, 'HTTP Request: %s %s "%s %d %s"'
            reason = httpx2.codes.get_reason_phrase(answer.status)
            _http_log.info(line, request.method, request.url, "HTTP/1.1", answer.status, reason)
        if streams:
            return self._stream(client)(answer, self._build_part, client, lambda: route.sent(body))
        if body.get("stream"):
            return self._in_one_piece(client, route, body, answer)
        try:
            result = self._build(answer.content)
        except ValueError:
            if (answer.header("content-type") or "*").split(";")[0].endswith("json"):
                raise
            return answer.text
        if isinstance(result, openai.BaseModel):
            self._parse(result, given)
            attributes = result.__dict__
            attributes["_request_id"] = answer.header("x-request-id")
            attributes["_tidegate_info"] = answer.info
        return result

    def _stream(self, client: Any) -> Any:
        return AsyncStream if isinstance(client, AsyncAPIClient) else Stream

    def _in_one_piece(self, client: Any, route: Route, body: dict[str, Any], answer: Any) -> Any:
        """Return the official client's stream of an answer that is none."""
        response = httpx2.Response(
            answer.status, headers=answer.headers, content=answer.content, request=route.sent(body)
        )
        official = openai.AsyncStream if isinstance(client, AsyncAPIClient) else openai.Stream
        return official(cast_to=self._part, response=response, client=client)

    def _parse(self, result: Any, given: dict[str, Any]) -> None:
        pass


def _builder_of(part: Any) -> Result | Event:
    return Result(part) if inspect.isclass(part) else Event(part, "type")


class EmbeddingsMethod(Method):
    """Asks for base64, which is a third of the bytes, where nobody asked for a format."""

    def _completed(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "encoding_format": "base64"} if _may_choose(body) else body

    def _parse(self, result: Any, given: dict[str, Any]) -> None:
        if not _may_choose(given):
            return
        if not result.data:
            raise ValueError("No embedding data received")
        for embedding in result.data:
            if isinstance(embedding.embedding, str):
                embedding.embedding = array.array("f", base64.b64decode(embedding.embedding)).tolist()


def _may_choose(arguments: dict[str, Any]) -> bool:
    return isinstance(arguments.get("encoding_format", not_given), _ABSENT)


def _failure(client: Any, route: Route, body: dict[str, Any], attempt: Any) -> Exception:
    failed(attempt.error)
    request = route.sent(body)
    library = library_of(request)
    if attempt.status is None or attempt.status < _SUCCESS_ENDS:
        return raised(attempt, request, library, by_sdk=True)
    response = library.response(attempt, request, by_sdk=True)
    response.read()
    error: Exception = client._make_status_error_from_response(response)
    return error

"""The fast path of the drop-ins: three methods straight into the engine.

The official client prepares the request of each method once, URL and headers, and again whenever one of its
settings changes; what differs from call to call is the body. Calls that ask for more than that are left to
the official method: raw responses, arguments that are not plain values, credentials that are fetched, a
user's own HTTP client, overridden or patched methods.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

from openai.resources.chat import AsyncChat, AsyncCompletions, Chat, Completions
from openai.resources.embeddings import AsyncEmbeddings, Embeddings
from openai.resources.responses import AsyncResponses, Responses
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from tidegate import _core
from tidegate._log import NOTHING, level_for_calls
from tidegate._method import EmbeddingsMethod, Method
from tidegate._sdk import answered
from tidegate._settings import call_options

if TYPE_CHECKING:
    from collections.abc import Callable

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


def _create(method: Method, base: Any) -> Callable[..., Any]:
    """Return a method `create` that takes the fast path where it can."""

    @functools.wraps(base.create)
    def create(self: Any, **given: Any) -> Any:
        client = self._client
        begun = method.begin(client, given)
        if begun is None:
            return base.create(self, **given)
        state, key, route, body, extra = begun
        if route is None:
            options = client._prepare_options(method.options(given, extra))
            request = client._build_request(options)
            client._prepare_request(request)
            route = state.keep(client, key, options, request)
        answer = route.core.call(
            body,
            call_options({}),
            stream=bool(body.get("stream")),
            log_level=level_for_calls(),
        )
        if answer is None:
            return base.create(self, **given)
        if _is_redirect(answer):
            token = answered.set(answer)
            try:
                return base.create(self, **given)
            finally:
                answered.reset(token)
        return method.finish(client, route, given, body, answer)

    return create


def _create_async(method: Method, base: Any) -> Callable[..., Any]:
    """Return a coroutine function `create` that takes the fast path where it can."""

    @functools.wraps(base.create)
    async def create(self: Any, **given: Any) -> Any:
        client = self._client
        begun = method.begin(client, given)
        if begun is None:
            return await base.create(self, **given)
        state, key, route, body, extra = begun
        if route is None:
            options = await client._prepare_options(method.options(given, extra))
            request = client._build_request(options)
            await client._prepare_request(request)
            route = state.keep(client, key, options, request)
        level = level_for_calls()
        context = None if level == NOTHING else contextvars.copy_context()
        try:
            ticket = route.core.submit(
                body,
                call_options({}),
                stream=bool(body.get("stream")),
                log_level=level,
                context=context,
            )
        except RuntimeError:
            # Another library than asyncio runs the tasks.
            ticket = None
        if ticket is None:
            return await base.create(self, **given)
        try:
            answer = await ticket.future
        except BaseException:
            ticket.cancel()
            # The future holds the error and the error this frame: a cycle, were the ticket still in it.
            del ticket
            raise
        if _is_redirect(answer):
            token = answered.set(answer)
            try:
                return await base.create(self, **given)
            finally:
                answered.reset(token)
        return method.finish(client, route, given, body, answer)

    return create


def _is_redirect(answer: Any) -> TypeGuard[_core.Attempt]:
    """Tell whether the official client's HTTP client would follow the answer elsewhere."""
    return (
        type(answer) is _core.Attempt
        and answer.status in _REDIRECTS
        and any(name == b"location" for name, _ in answer.headers)
    )


_Described = tuple[type[Method], str, str, type, Any]
_CHAT: _Described = (Method, "/chat/completions", "messages", ChatCompletion, ChatCompletionChunk)
_RESPONSES: _Described = (Method, "/responses", "input", Response, ResponseStreamEvent)
_EMBEDDINGS: _Described = (EmbeddingsMethod, "/embeddings", "input", CreateEmbeddingResponse, None)


def _resource(base: Any, described: _Described) -> Any:
    """Return a class of resources whose `create` takes the fast path."""
    kind, path, required, result, part = described
    method = kind(path, owner=base, required=required, result=result, part=part)
    wrap = _create_async if inspect.iscoroutinefunction(inspect.unwrap(base.create)) else _create
    names = {"create": wrap(method, base), "__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (base,), names)


class _FastChat(Chat):
    @cached_property
    def completions(self) -> Completions:
        return _Completions(self._client)  # type: ignore[no-any-return]


class _AsyncFastChat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncCompletions:
        return _AsyncCompletions(self._client)  # type: ignore[no-any-return]


_Completions = _resource(Completions, _CHAT)
_AsyncCompletions = _resource(AsyncCompletions, _CHAT)
_Responses = _resource(Responses, _RESPONSES)
_AsyncResponses = _resource(AsyncResponses, _RESPONSES)
_Embeddings = _resource(Embeddings, _EMBEDDINGS)
_AsyncEmbeddings = _resource(AsyncEmbeddings, _EMBEDDINGS)
_FastChat.__name__, _AsyncFastChat.__name__ = "Chat", "AsyncChat"


class _Settled:
    """A client that forgets what is prepared when one of its settings changes."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        self.__dict__.pop("_fast_state", None)


class FastSync(_Settled):
    """Before the official synchronous class, and before tidegate's part of it."""

    @cached_property
    def chat(self) -> Chat:
        """Chat completions."""
        return _FastChat(self)  # type: ignore[arg-type]

    @cached_property
    def responses(self) -> Responses:
        """Responses."""
        return _Responses(self)  # type: ignore[no-any-return]

    @cached_property
    def embeddings(self) -> Embeddings:
        """Embeddings."""
        return _Embeddings(self)  # type: ignore[no-any-return]


class FastAsync(_Settled):
    """Before the official asynchronous class, and before tidegate's part of it."""

    @cached_property
    def chat(self) -> AsyncChat:
        """Chat completions."""
        return _AsyncFastChat(self)  # type: ignore[arg-type]

    @cached_property
    def responses(self) -> AsyncResponses:
        """Responses."""
        return _AsyncResponses(self)  # type: ignore[no-any-return]

    @cached_property
    def embeddings(self) -> AsyncEmbeddings:
        """Embeddings."""
        return _AsyncEmbeddings(self)  # type: ignore[no-any-return]

"""Requests that the official client has prepared, kept until one of its settings changes."""

from __future__ import annotations

from typing import Any

from openai.lib.azure import BaseAzureClient

from tidegate import _core
from tidegate._exchange import described
from tidegate._official import has_official_hooks, senders

_ROUTES = 64
# Instrumentations set these on a client.
_PATCHED = frozenset({"request", "post", "_send_request", "_process_response", "_build_request"})
_FETCHING = ("_provider_runtime", "_api_key_provider", "_workload_identity_auth", "_azure_ad_token_provider")


class Route:
    """A prepared request: what each call adds is a body."""

    __slots__ = ("core", "request")

    def __init__(self, client: Any, options: Any, request: Any) -> None:
        _, url, headers, _, phases = described(request, b"")
        attempts = client._call(options).max_attempts
        self.core = _core.Route(client._transport._core, url, _without_length(headers), phases, attempts)
        self.request = request

    def sent(self, body: dict[str, Any]) -> Any:
        """Return the request as it was sent, for errors."""
        template = self.request
        return type(template)(
            template.method,
            template.url,
            headers=_without_length(template.headers.raw),
            content=_core.official_json(body) or b"",
            extensions=template.extensions,
        )


def _without_length(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [pair for pair in headers if pair[0].lower() != b"content-length"]


class State:
    """What is known of a client until one of its settings changes."""

    __slots__ = ("by_model", "headers", "query", "routes", "senders", "usable")

    def __init__(self, client: Any) -> None:
        self.routes: dict[Any, Route] = {}
        self.headers = dict(client._custom_headers)
        self.query = dict(client._custom_query)
        # Azure has the model in its paths.
        self.by_model = isinstance(client, BaseAzureClient)
        self.senders = senders(type(client))
        self.usable = (
            client.takes_fast_path
            and not client._strict_response_validation
            and client._idempotency_header is None
            and type(client.max_retries) is int
            and client.max_retries >= 0
            and all(getattr(client, name, None) is None for name in _FETCHING)
            and has_official_hooks(type(client))
            and _PATCHED.isdisjoint(vars(client))
        )

    @staticmethod
    def of(client: Any) -> State:
        """Return what is known, or find it out."""
        state: State | None = client.__dict__.get("_fast_state")
        if (
            state is not None
            and state.headers == client._custom_headers
            and state.query == client._custom_query
        ):
            for look, request in state.senders:
                if look("request") is not request:
                    break
            else:
                return state
        state = client.__dict__["_fast_state"] = State(client)
        return state

    def keep(self, client: Any, key: object, options: Any, request: Any) -> Route:
        """Make the route of a request and remember it."""
        if len(self.routes) >= _ROUTES:
            self.routes.clear()
        route = self.routes[key] = Route(client, options, request)
        return route

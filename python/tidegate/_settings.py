"""What the clients are made from, and how a call's options are read."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from tidegate import _context, _layers
from tidegate._errors import CallError, ConfigError
from tidegate._fields import unknown_field
from tidegate._gate import Gate, default_gate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidegate._policies import Timeouts

DEFAULT_BASE_URL = "https://api.openai.com/v1"

_Scalar = str | int | float | bool | None


class CallOptions(TypedDict, total=False):
    """What one call may set. `None` leaves what the client has.

    Keys:
        params: Query parameters; of a list, each item.
        headers: Headers added to the client's; the same name replaces it.
        timeout: Bound on each attempt, in seconds.
        total_timeout: Bound on the whole call, in seconds.
        max_attempts: Requests at most, the first included.
        tags: Labels for this call, added to those of `tidegate.tags`.
        trace_id: 32 hex digits for logs, instead of random ones.
        stream_end: Of streams. ``"required"``: one that closes without saying that it is complete was cut.
            ``"optional"``: it was not. Default: required, but of servers that never say so.
    """

    params: Mapping[str, _Scalar | Sequence[_Scalar]] | None
    headers: Mapping[str, str] | None
    timeout: float | None
    total_timeout: float | None
    max_attempts: int | None
    tags: Mapping[str, str] | None
    trace_id: str | None
    stream_end: Literal["required", "optional"] | None


class ClientOptions(TypedDict, total=False):
    """What `with_options` may change; see the clients' constructor."""

    base_url: str | None
    api_key: str | None
    gate: Gate | None
    timeout: float | None
    total_timeout: float | None
    max_retries: int | None
    headers: Mapping[str, str] | None
    ca_bundle: str | os.PathLike[str] | None
    http2: bool
    proxy: str | None


_CALL_OPTIONS = frozenset(CallOptions.__annotations__)
_CLIENT_OPTIONS = frozenset(ClientOptions.__annotations__)


def call_options(given: CallOptions) -> dict[str, Any] | None:
    """Return the options of a call as the core takes them; `None` if there are none."""
    ambient = _context.ambient()
    if not given:
        return _layers.add({"tags": ambient} if ambient else None)
    for name in given.keys() - _CALL_OPTIONS:
        raise unknown_field("", name, "***", _CALL_OPTIONS | {"json", "content"})
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    tags = options.get("tags")
    if tags is not None:
        options["tags"] = _context.merged(ambient, tags)
    elif ambient:
        options["tags"] = ambient
    return _layers.add(options or None)


class _Secret:
    """A credential that shows in no repr, no ``vars`` and no traceback with locals."""

    __slots__ = ("reveal",)

    def __init__(self, value: str) -> None:
        self.reveal = lambda: value

    def __repr__(self) -> str:
        return "'***'"

    def __reduce__(self) -> str:
        raise TypeError("a client that holds a credential cannot be pickled")


def _credential(api_key: str | _Secret | None) -> _Secret:
    if isinstance(api_key, _Secret):
        return api_key
    if api_key is None:
        api_key = os.environ.get("OPENAI_API_KEY") or None
    if api_key is None:
        raise ConfigError("api_key", None, "must be given, or set in the environment as OPENAI_API_KEY")
    if (
        not isinstance(api_key, str)
        or not api_key
        or not api_key.isascii()
        or not api_key.isprintable()
        or " " in api_key
    ):
        raise ConfigError("api_key", "***", "must be printable ASCII without spaces or line ends")
    return _Secret(api_key)


class ClientSettings:
    """One client's settings, and the upstream made from them."""

    __slots__ = ("_given", "gate", "timeouts", "upstream")

    def __init__(self, given: dict[str, Any]) -> None:
        given["api_key"] = _credential(given["api_key"])
        self._given = given
        gate = given["gate"]
        if gate is not None and not isinstance(gate, Gate):
            raise ConfigError("gate", repr(gate), "must be a Gate")
        self.gate = default_gate() if gate is None else gate
        bounds = {"attempt": given["timeout"], "total": given["total_timeout"]}
        named = {name: value for name, value in bounds.items() if value is not None}
        self.timeouts: Timeouts = (
            dataclasses.replace(self.gate.timeouts, **named) if named else self.gate.timeouts
        )
        for name in ("base_url", "proxy"):
            _typed(
                name,
                type(given[name]),
                given[name] is None or isinstance(given[name], str),
                "must be a URL, as text",
            )
        ca_bundle = given["ca_bundle"]
        is_path = ca_bundle is None or isinstance(ca_bundle, str | os.PathLike)
        _typed("ca_bundle", ca_bundle, is_path, "must be the path of a file")
        _typed("http2", given["http2"], isinstance(given["http2"], bool), "must be True or False")
        self.upstream = self.gate._engine.upstream(
            base_url=given["base_url"] or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL,
            api_key=given["api_key"].reveal(),
            headers={} if given["headers"] is None else given["headers"],
            timeouts=self.timeouts if named else None,
            max_attempts=_attempts(given["max_retries"]),
            ca_bundle=None if ca_bundle is None else os.fspath(ca_bundle),
            http2=given["http2"],
            proxy=given["proxy"],
        )

    def changed(self, changes: ClientOptions) -> dict[str, Any]:
        """Return the constructor's arguments for a client that differs in these settings."""
        for name in changes.keys() - _CLIENT_OPTIONS:
            raise unknown_field("", name, "***", _CLIENT_OPTIONS)
        return {**self._given, **changes}

    @property
    def shown_url(self) -> str:
        """The base URL without its query, which may hold a key."""
        return self.upstream.base_url.split("?", 1)[0]


def _typed(field: str, value: object, right: bool, rule: str) -> None:  # noqa: FBT001 said of the value
    if not right:
        raise ConfigError(field, repr(value), rule)


def _attempts(max_retries: object) -> int | None:
    if max_retries is None:
        return None
    if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
        raise ConfigError("max_retries", max_retries, "must be a whole number, 0 or more")
    return max_retries + 1


class Closed:
    """Stands in for the upstream of a client that was closed."""

    __slots__ = ("base_url",)

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def _refuse(self, *_: object, **__: object) -> Any:
        raise CallError("this client was closed: make another", kind="closed", reason="closed")

    submit = call = _refuse

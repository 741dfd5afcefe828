"""Labels for cost and metrics that follow the caller's context, not the call's arguments."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from tidegate._errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_R = TypeVar("_R")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_LONGEST_VALUE = 128
_MOST = 16

# The dicts in it are never changed, so that contexts can share them.
_ambient: ContextVar[dict[str, str]] = ContextVar("tidegate_tags", default={})  # noqa: B039 never mutated


def is_tag_name(name: str) -> bool:
    """Tell whether a tag may be called so."""
    return _NAME.fullmatch(name) is not None


def ambient() -> dict[str, str]:
    """Return the tags in force, not to be changed."""
    return _ambient.get()


def current_tags() -> dict[str, str]:
    """Return the tags in force here, as a dict of your own."""
    return dict(_ambient.get())


def merged(outer: dict[str, str], labels: Mapping[str, object]) -> dict[str, str]:
    """Add labels to those in force; of equal names the new value holds.

    Raises:
        ConfigError: A name or a value is not fit for a label, or there are too many.
    """
    if not isinstance(labels, Mapping):
        raise ConfigError("tags", labels, "must be a mapping of names to strings")
    for name, value in labels.items():
        if not isinstance(name, str) or not is_tag_name(name):
            raise ConfigError(
                f"tags.{name}", value, "must be named by at most 64 letters, digits and underscores"
            )
        if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_VALUE or not value.isprintable():
            raise ConfigError(
                f"tags.{name}", value, f"must be a string of 1 to {_LONGEST_VALUE} printable characters"
            )
    both = {**outer, **cast("Mapping[str, str]", labels)}
    if len(both) > _MOST:
        raise ConfigError("tags", len(both), f"must be at most {_MOST} in all")
    return both


class _Tagged:
    """What `tags` returns: a context manager, and a decorator."""

    __slots__ = ("_labels", "_tokens")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._tokens: list[Token[dict[str, str]]] = []

    def __enter__(self) -> None:
        self._tokens.append(_ambient.set(merged(_ambient.get(), self._labels)))

    def __exit__(self, *_: object) -> None:
        _ambient.reset(self._tokens.pop())

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            # Its body runs between the caller's steps, where the caller's tags would change.
            raise ConfigError(
                "tags", function, 'cannot decorate a generator; write "with tags(...)" inside it'
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def tagged_async(*args: _P.args, **keywords: _P.kwargs) -> Any:
                with _Tagged(self._labels):
                    return await function(*args, **keywords)

            return cast("Callable[_P, _R]", tagged_async)

        @functools.wraps(function)
        def tagged(*args: _P.args, **keywords: _P.kwargs) -> _R:
            with _Tagged(self._labels):
                return function(*args, **keywords)

        return tagged


def tags(**labels: str) -> _Tagged:
    """Label every call made inside, for cost and metrics per route, tenant or feature.

    Use it in a ``with`` statement or as a decorator of a function, async or not. Tags nest: inner ones are
    added to outer ones. They follow the context into the tasks that are started inside.

    >>> with tags(route="summarise"):
    ...     answer = client.post("/chat/completions", json=question)

    Args:
        labels: Names and values. A value is a string of 1 to 128 printable characters; at most 16 hold at
            once. Use few different values: each is a series of its own in metrics.

    Raises:
        ConfigError: A label breaks these rules.
    """
    merged({}, labels)
    return _Tagged(labels)

"""Names of settings: a misspelt one is refused with the name that was probably meant."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate._errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_F = TypeVar("_F", bound="Callable[..., Any]")
_C = TypeVar("_C", bound=type)


def unknown_field(prefix: str, name: str, value: object, known: Iterable[str]) -> ConfigError:
    """Return the error about a setting that does not exist.

    Args:
        prefix: Dotted place of the setting, ``"retry"``; ``""`` for the top.
        name: What was written.
        value: What it was set to. The error shows it: pass ``"***"`` for what may be secret.
        known: The settings that there are.
    """
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    field = f"{prefix}.{name}" if prefix else name
    return ConfigError(field, value, f"is not a setting here; {guess}The settings are {', '.join(names)}")


def known_keywords(prefix: str, *, secret: bool = False) -> Callable[[_F], _F]:
    """Make a function refuse unknown keywords with a `ConfigError` instead of a bare ``TypeError``.

    Args:
        prefix: Dotted place of the keywords; ``""`` for the top.
        secret: The error does not show the value: it may be that of a misspelt credential.
    """

    def decorate(function: _F) -> _F:
        code = function.__code__
        known = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]} - {"self"}

        @functools.wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            for name in keywords.keys() - known:
                raise unknown_field(prefix, name, "***" if secret else keywords[name], known)
            return function(*args, **keywords)

        return checked  # type: ignore[return-value]

    return decorate


def known_fields(prefix: str) -> Callable[[_C], _C]:
    """Do the same for the constructor of a dataclass."""

    def decorate(cls: _C) -> _C:
        cls.__init__ = known_keywords(prefix)(cls.__init__)  # type: ignore[misc]
        return cls

    return decorate

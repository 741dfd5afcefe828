"""Idempotency keys and fingerprints."""

from __future__ import annotations

import re
import string
import uuid
import warnings
from typing import TYPE_CHECKING, Any

from tidegate import _core
from tidegate._errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tidegate._callee import Callee


# An argument, and the way into it: order.lines[0].
_FIELD = re.compile(r"\w+(\.\w+|\[[^\[\]]+\])*")
_NO_FORMAT = "its fields must be plain, without a format"


class IdempotencyKeyWarning(UserWarning):
    """A key holds something that looks different on every retry, which would let a duplicate through."""


def idem_key(*, tenant: str, workflow: str, biz_id: str | int, step: str) -> str:
    """Return the key of one step of one business act: ``idem:{tenant}:{workflow}:{biz_id}:{step}``.

    Build it from what is the same on every retry: an order's number, not a random UUID or the time. Colons
    and the like in a part are escaped, so that different parts never make the same key.

    >>> idem_key(tenant="acme", workflow="refund", biz_id="order-7", step="pay")
    'idem:acme:refund:order-7:pay'

    Args:
        tenant: Whose act it is.
        workflow: What kind of act.
        biz_id: Which one, by a unique business field.
        step: Which step of it.

    Raises:
        ConfigError: A part is empty or no text, or the key is longer than 512 bytes.

    Warns:
        IdempotencyKeyWarning: A part looks like a random UUID or a time.
    """
    parts = {"tenant": tenant, "workflow": workflow, "biz_id": biz_id, "step": step}
    texts = [key_part(f"idem_key.{name}", part) for name, part in parts.items()]
    for name, text in zip(parts, texts, strict=True):
        warn_of_randomness(name, text)
    return _core.idem_key(*texts)


def checked_key(key: object) -> str:
    """Return a key that a caller made, if a store can hold it."""
    if not isinstance(key, str):
        raise ConfigError("key", repr(key), "must be a string, such as idem_key() makes")
    _core.check_key(key)
    return key


def warn_of_randomness(name: str, text: str) -> None:
    """Warn of a part that looks different on every retry."""
    why = _core.looks_random(text)
    if why is not None:
        warnings.warn(
            f"the key's {name} looks like {why}: if it is made anew on a retry, the tool runs again; "
            "use a field of the business act",
            IdempotencyKeyWarning,
            stacklevel=3,
        )


def key_part(name: str, part: object) -> str:
    """Return a part of a key as text, if it is one; `name` is how the caller knows it."""
    if isinstance(part, str) and part:
        return part
    if isinstance(part, int) and not isinstance(part, bool):
        return str(part)
    if isinstance(part, uuid.UUID):
        return str(part)
    raise ConfigError(name, repr(part), "must be a text that is not empty, or a whole number")


class _Escaping(string.Formatter):
    """Fills a template; what is filled in cannot be taken for the template's own colons."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec:
            raise ValueError(_NO_FORMAT)
        return _core.escape_key(key_part("tool.key", value))


def check_template(template: str, tool: str, callee: Callee) -> None:
    """Refuse a template that no call of the tool could fill."""
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise _unfillable(template, tool, callee.names, str(error)) from error
    for _, field, format_spec, conversion in fields:
        if field is None:
            continue
        # Of "order.lines[0]" the argument is "order".
        name = field.partition(".")[0].partition("[")[0]
        if field != "tool" and not callee.takes(name):
            raise _unfillable(template, tool, callee.names, f"{name!r} is no argument")
        if not _FIELD.fullmatch(field):
            raise _unfillable(template, tool, callee.names, f"{field!r} is no field")
        if format_spec:
            raise _unfillable(template, tool, callee.names, _NO_FORMAT)
        if conversion not in (None, "s", "r", "a"):
            raise _unfillable(template, tool, callee.names, f"!{conversion} is no conversion")


def key_from(template: str | Callable[..., str], tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the key of a call, from its template or function."""
    if callable(template):
        return checked_key(template(**arguments))
    try:
        key = _Escaping().vformat(template, (), {**arguments, "tool": tool})
    except ConfigError as error:
        raise _unfillable(template, tool, arguments, f"{error.value} {error.rule}") from error
    except (KeyError, IndexError, AttributeError, ValueError) as error:
        raise _unfillable(template, tool, arguments, repr(error)) from error
    return checked_key(key)


def _unfillable(template: str, tool: str, names: Iterable[str], problem: str) -> ConfigError:
    rule = f"cannot be filled from the arguments of {tool} ({', '.join(names)}): {problem}"
    return ConfigError("tool.key", template, rule)

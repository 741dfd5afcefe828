"""Results as bytes, such that what is given again equals what was given first.

JSON, with a mark where JSON would blur the type. Nothing that is read can run code: a model's class must have
been imported by the application itself.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import json
import math
import sys
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "json"
OMITTED = "omitted"
LARGEST = 1 << 20

_MARK = "$tidegate"
_write = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class NotStorableError(Exception):
    """A value that cannot be kept."""


def encode(value: object) -> tuple[str, bytes]:
    """Return the name of the codec and the bytes; of what cannot be kept, a note instead."""
    try:
        data = _write(_plain(value)).encode()
    except Exception as error:  # noqa: BLE001 the tool has run: whatever is wrong with its result, that counts
        return OMITTED, json.dumps({"why": text_of(error)}).encode()
    if len(data) > LARGEST:
        digest = hashlib.sha256(data).hexdigest()
        why = f"its {len(data):,} bytes are more than the {LARGEST:,} that a record holds"
        return OMITTED, json.dumps({"why": why, "sha256": digest}).encode()
    return NAME, data


def text_of(error: BaseException) -> str:
    """Return what an error says; its name, if it cannot say anything."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 it is the application's
        return type(error).__name__


def decode(data: bytes) -> Any:
    """Return the value that was encoded.

    Raises:
        NotStorableError: It belongs to a class that this program has not imported, or that has changed.
    """
    return _rich(json.loads(data))


def why_omitted(data: bytes) -> str:
    """Return why a result was not kept."""
    return str(json.loads(data)["why"])


_TEXTUAL: dict[type, tuple[str, Callable[[Any], str]]] = {
    bytes: ("bytes", bytes.hex),
    dt.datetime: ("datetime", dt.datetime.isoformat),
    dt.date: ("date", dt.date.isoformat),
    decimal.Decimal: ("decimal", str),
    uuid.UUID: ("uuid", str),
}
_READERS: dict[str, Callable[[str], Any]] = {
    "bytes": bytes.fromhex,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "decimal": decimal.Decimal,
    "uuid": uuid.UUID,
}
_COLLECTIONS: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_NAMES = {kind: name for name, kind in _COLLECTIONS.items()}


def _plain(value: Any) -> Any:  # noqa: PLR0911 one per type
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {_MARK: "float", "value": repr(value)}
    if kind is list:
        return [_plain(item) for item in value]
    if kind is dict:
        if all(type(name) is str for name in value) and _MARK not in value:
            return {name: _plain(item) for name, item in value.items()}
        return {_MARK: "dict", "value": [[_plain(name), _plain(item)] for name, item in value.items()]}
    if kind in _TEXTUAL:
        name, write = _TEXTUAL[kind]
        return {_MARK: name, "value": write(value)}
    if kind in _NAMES:
        return {_MARK: _NAMES[kind], "value": [_plain(item) for item in value]}
    if _is_model(kind):
        return _of_model(value, f"{kind.__module__}:{kind.__qualname__}")
    raise NotStorableError(f"a {kind.__qualname__} cannot be kept: return JSON values, or a pydantic model")


def _of_model(value: Any, place: str) -> dict[str, Any]:
    if _is_official(place):
        return {_MARK: "model", "class": place, "value": value.model_dump(mode="json", exclude_unset=True)}
    fields = value.model_dump(mode="json", exclude_unset=True, by_alias=True, round_trip=True)
    # Secrets, excluded fields, subclasses in a field of their base: better not at all than otherwise.
    if _model(place, fields) != value:
        raise NotStorableError(f"a {place} does not come back from JSON as it was: return plain values")
    return {_MARK: "model", "class": place, "value": fields}


def _is_official(place: str) -> bool:
    """Whether it is a model of the official client, which takes what a server sent, valid or not."""
    return place.startswith("openai.")


def _is_model(kind: type) -> bool:
    return "<locals>" not in kind.__qualname__ and any(
        base.__module__ == "pydantic.main" and base.__name__ == "BaseModel" for base in kind.__mro__
    )


def _rich(value: Any) -> Any:  # noqa: PLR0911 one per mark
    if isinstance(value, list):
        return [_rich(item) for item in value]
    if not isinstance(value, dict):
        return value
    mark = value.get(_MARK)
    if mark is None:
        return {name: _rich(item) for name, item in value.items()}
    inner = value["value"]
    if mark == "float":
        return float(inner)
    if mark == "dict":
        return {_rich(name): _rich(item) for name, item in inner}
    if mark in _READERS:
        return _READERS[mark](inner)
    if mark in _COLLECTIONS:
        return _COLLECTIONS[mark](_rich(item) for item in inner)
    return _model(value["class"], inner)


def _model(place: str, fields: dict[str, Any]) -> Any:
    module, _, name = place.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not _is_model(found):
        raise NotStorableError(f"its class {place} has not been imported by this program")
    model: Any = found
    if _is_official(place):
        return model.construct(**fields)
    try:
        return model.model_validate(fields)
    except Exception as error:  # its validators may raise anything
        raise NotStorableError(f"its class {place} does not take it: {text_of(error)}") from error

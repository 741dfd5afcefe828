"""Results of the official client's types, built from the bytes of an answer.

Equal to what the official client builds from them, at a twentieth of the time; see `tidegate._lenient`.
Nothing is compiled before the first answer of its type.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from openai._models import construct_type
from pydantic_core import SchemaValidator, ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic_core import CoreSchema

_compiling = threading.Lock()


def from_parsed(cls: Any, content: bytes | str) -> Any:
    """Build a result the official way.

    Raises:
        json.JSONDecodeError: The content is no JSON.
    """
    return construct_type(type_=cls, value=json.loads(content))


class Result:
    """Builds one type of answer."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self._validate: Callable[[bytes | str], Any] | None = None

    def __call__(self, content: bytes | str, name: str | None = None) -> Any:  # noqa: ARG002
        """Build the result from JSON.

        Args:
            content: The answer, or one event of it.
            name: Of the event; these types have none.

        Raises:
            json.JSONDecodeError: The content is no JSON.
        """
        validate = self._validate
        if validate is None:
            validate = self._validate = self._compile()
        try:
            return validate(content)
        except ValidationError:
            return from_parsed(self.cls, content)

    def _compile(self) -> Callable[[bytes | str], Any]:
        from tidegate import _lenient

        compiled = _compile(lambda: _lenient.top_level(self.cls))
        return compiled or (lambda content: from_parsed(self.cls, content))


class Event:
    """Builds the events of a stream, whose types are told apart by a text in each."""

    def __init__(self, union: Any, discriminator: str) -> None:
        self.cls = union
        self._discriminator = discriminator
        self._prefix = f'{{"{discriminator}":"'.encode()
        self._variants: dict[str, Any] | None = None
        self._validates: dict[str, Callable[[bytes | str], Any] | None] = {}

    def __call__(self, content: bytes, name: str | None = None) -> Any:
        """Build an event from JSON.

        Args:
            content: The event's data.
            name: What the event is likely to be: the name that the stream gave it.

        Raises:
            json.JSONDecodeError: The content is no JSON.
        """
        if name is None:
            name = self._leading_tag(content)
        validate = self._validates.get(name) or self._variant(name)
        if validate is not None:
            try:
                return validate(content)
            except ValidationError:
                pass
        return self._by_parsing(content, name)

    def _by_parsing(self, content: bytes, tried: str) -> Any:
        data = json.loads(content)
        name = data.get(self._discriminator) if isinstance(data, dict) else None
        validate = self._variant(name) if isinstance(name, str) and name != tried else None
        if validate is not None:
            try:
                return validate(content)
            except ValidationError:
                pass
        return construct_type(type_=self.cls, value=data)

    def _leading_tag(self, content: bytes) -> str:
        """Return the discriminator where it comes first; the validator holds it to that."""
        start = len(self._prefix)
        if not content.startswith(self._prefix):
            return ""
        return content[start : content.find(b'"', start)].decode("utf-8", "replace")

    def _variant(self, name: str) -> Callable[[bytes | str], Any] | None:
        if name in self._validates:
            return self._validates[name]
        from tidegate import _lenient

        if self._variants is None:
            args = _lenient.members(self.cls)
            self._variants = _lenient.tagged_variants(args, self._discriminator) or {}
        cls = self._variants.get(name)
        if cls is None:
            # Not remembered: a server may send any number of other names.
            return None
        validate = _compile(lambda: _lenient.member(cls, self._discriminator, name))
        self._validates[name] = validate
        return validate


def _compile(schema: Callable[[], CoreSchema]) -> Callable[[bytes | str], Any] | None:
    """Return the validator; `None` where this version of the client or of pydantic is not understood."""
    with _compiling:
        try:
            return SchemaValidator(schema(), None, _use_prebuilt=False).validate_json
        except Exception:  # noqa: BLE001 names of other packages move; the official way is right, only slower
            return None

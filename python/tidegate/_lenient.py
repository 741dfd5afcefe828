"""Core schemas that build the official client's models as its `construct_type` does, in one pass over JSON.

`construct_type` never fails: it validates a union as a whole and, where that fails, puts what came into the
variant that the discriminator names, unchecked. Plain validation raises instead, on an unknown enum value and
on every field that a server leaves out. So each model is compiled in up to three forms:

* ``SOUND`` accepts what validation accepts unchanged, and fails on all else, be it only that a number would
  be converted from text.
* ``BROKEN``, tried next within a union, accepts what validation surely refuses and constructs it. What is
  neither, such as text for a number, goes to `construct_type` itself, which therefore decides every doubt.
* ``PLAIN`` stands outside of unions, where nothing is validated: any value of a field is right.

The forms differ in ``model_fields_set`` also: unknown fields are in it after validation and are not after
construction.
"""

from __future__ import annotations

import enum
import inspect
from typing import TYPE_CHECKING, Any, get_args, get_origin

from openai import BaseModel
from openai._models import construct_type, validate_type
from openai._utils import PropertyInfo, is_annotated_type, is_type_alias_type, is_union_type
from pydantic_core import ValidationError, core_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic.fields import FieldInfo
    from pydantic_core import CoreSchema

# Above it a float may not hold an integer, and `construct_type` then keeps the integer.
_EXACT = 2**53 - 1
_NONE = type(None)
_OWN_HOOKS = ("construct", "build", "__get_pydantic_core_schema__", "model_post_init", "__init__")


class Form(enum.Enum):
    """What may be wrong with a value; see above."""

    SOUND = enum.auto()
    BROKEN = enum.auto()
    PLAIN = enum.auto()


class Unsupported(TypeError):  # noqa: N818 never leaves this package
    """A model has validators or settings of its own, of which nothing is known here."""


def top_level(cls: type) -> CoreSchema:
    """Return the schema of a whole answer, which is no part of a union."""
    return _Schemas().value(cls, (), Form.PLAIN)


def member(cls: type[BaseModel], discriminator: str, tag: str) -> CoreSchema:
    """Return the schema of a union's variant. It fails where the discriminator is not `tag`."""
    schemas = _Schemas()
    return _first_of(
        *(schemas.model(cls, form, tags={discriminator: tag}) for form in (Form.SOUND, Form.BROKEN))
    )


def members(union: Any) -> tuple[Any, ...]:
    """Return the variants of a union that may have a name and metadata."""
    return get_args(_unwrap(union, ())[0])


def tagged_variants(args: Sequence[Any], discriminator: str) -> dict[str, type[BaseModel]] | None:
    """Return a union's variants by the text of their discriminator.

    `None` unless exactly one variant can be valid for each text, and only for a text.
    """
    variants: dict[str, type[BaseModel]] = {}
    for arg in args:
        if arg is _NONE:
            continue
        cls = _unwrap(arg, ())[0]
        field: FieldInfo | None = cls.model_fields.get(discriminator) if _is_model(cls) else None
        if field is None or not field.is_required() or field.alias not in {None, discriminator}:
            return None
        tags = _texts(field.annotation)
        if tags is None or not variants.keys().isdisjoint(tags):
            return None
        variants.update(dict.fromkeys(tags, cls))
    return variants


def _is_model(annotation: object) -> bool:
    return inspect.isclass(annotation) and issubclass(annotation, BaseModel)


def _texts(annotation: object) -> tuple[str, ...] | None:
    """Return the values of a literal, if all are text."""
    values = get_args(annotation) if _is_literal(annotation) else ()
    return values if values and all(isinstance(value, str) for value in values) else None


def _is_literal(annotation: object) -> bool:
    return str(get_origin(annotation)) == "typing.Literal"


def _unwrap(annotation: Any, metadata: Sequence[object]) -> tuple[Any, tuple[Any, ...]]:
    if is_type_alias_type(annotation):
        annotation = annotation.__value__
    if metadata:
        return annotation, tuple(metadata)
    if is_annotated_type(annotation):
        return get_args(annotation)[0], get_args(annotation)[1:]
    return annotation, ()


def _as_it_is(annotation: Any) -> bool:
    """Tell whether any JSON comes out as it went in, valid or not."""
    annotation, _ = _unwrap(annotation, ())
    if annotation in {str, object, Any, _NONE} or _texts(annotation) is not None:
        return True
    origin, args = get_origin(annotation), get_args(annotation)
    if is_union_type(annotation) or origin is list:
        return bool(args) and all(map(_as_it_is, args))
    return origin is dict and bool(args) and args[0] is str and _as_it_is(args[1])


def _refuse(_: object) -> object:
    raise ValueError("only construct_type knows")


def _without_extras(built: Any) -> object:
    extra = built.__pydantic_extra__
    if extra:
        built.__pydantic_fields_set__.difference_update(extra)
    return built


def _function(function: Callable[[Any], object]) -> CoreSchema:
    return core_schema.no_info_plain_validator_function(function)


def _first_of(*choices: CoreSchema) -> CoreSchema:
    return core_schema.union_schema(list(choices), mode="left_to_right")


_ANY = core_schema.any_schema()
_REFUSE = _function(_refuse)
_TEXT = core_schema.str_schema(strict=True)
_EXACT_SCALARS: dict[Any, CoreSchema] = {
    bool: core_schema.bool_schema(strict=True),
    int: core_schema.int_schema(strict=True),
    float: core_schema.float_schema(strict=True, ge=-_EXACT, le=_EXACT),
}
_SIMPLE: dict[Any, CoreSchema] = {
    **_EXACT_SCALARS,
    str: _TEXT,
    object: _ANY,
    Any: _ANY,
    _NONE: core_schema.none_schema(),
}


class _Schemas:
    """Schemas of annotations. A model that contains itself is left to `construct_type` where it recurs."""

    def __init__(self) -> None:
        self._within: list[type] = []
        self._models: dict[tuple[type, Form], CoreSchema] = {}

    def value(self, annotation: Any, metadata: Sequence[object], form: Form) -> CoreSchema:
        annotation, metadata = _unwrap(annotation, metadata)
        if form is not Form.SOUND and _as_it_is(annotation):
            return _ANY
        if is_union_type(annotation):
            return self._union(annotation, metadata, form)
        if form is Form.PLAIN:
            return self._constructed(annotation)
        return self._typed(annotation, form)

    def _constructed(self, annotation: Any) -> CoreSchema:
        """Outside of a union: never fails."""
        if annotation in {int, bool}:
            return _ANY
        construct = _function(_constructor(annotation, ()))
        try:
            typed = self._typed(annotation, Form.PLAIN)
        except Unsupported:
            return construct
        return (
            _first_of(typed, _TEXT, construct)
            if get_origin(annotation) is list
            else _first_of(typed, construct)
        )

    def _typed(self, annotation: Any, form: Form) -> CoreSchema:
        """Fails where the value is not of the type, or not surely wrong."""
        simple = _SIMPLE.get(annotation)
        if simple is not None:
            return simple
        texts = _texts(annotation)
        if texts is not None:
            return core_schema.literal_schema(list(texts))
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is list and args:
            return core_schema.list_schema(self.value(args[0], (), form), strict=True)
        if origin is dict and args and args[0] is str:
            return core_schema.dict_schema(_TEXT, self.value(args[1], (), form), strict=True)
        if not _is_model(annotation):
            raise Unsupported(annotation)
        return self._nested(annotation, form)

    def _nested(self, cls: type[BaseModel], form: Form) -> CoreSchema:
        if cls in self._within:
            return _REFUSE
        known = self._models.get((cls, form))
        if known is None:
            known = self._models[cls, form] = self.model(cls, form)
        return known

    def model(self, cls: Any, form: Form, tags: dict[str, str] | None = None) -> CoreSchema:
        """Return the schema of a model, whose fields named in `tags` must have the text given there."""
        if not _is_ordinary(cls):
            raise Unsupported(cls)
        self._within.append(cls)
        try:
            fields: dict[str, Any] = {}
            for name, field in cls.model_fields.items():
                tag = tags.get(name) if tags else None
                fields[name] = self._field(name, field, form) if tag is None else _tag(tag)
        finally:
            self._within.pop()
        schema = core_schema.model_schema(
            cls,
            core_schema.model_fields_schema(fields, model_name=cls.__name__, extra_behavior="allow"),
            config=core_schema.CoreConfig(title=cls.__name__, extra_fields_behavior="allow"),
        )
        if form is Form.SOUND:
            return schema
        return core_schema.no_info_after_validator_function(_without_extras, schema)

    def _field(self, name: str, field: FieldInfo, form: Form) -> core_schema.ModelField:
        annotation, metadata = field.annotation, field.metadata
        alias = None if field.alias in {None, name} else field.alias
        if form is Form.SOUND:
            schema = self.value(annotation, metadata, form)
            if not field.is_required():
                schema = core_schema.with_default_schema(schema, default=field.default)
            return core_schema.model_field(schema, validation_alias=alias)
        default = None if field.is_required() else field.default
        if default is not None:
            raise Unsupported(f"the default of {name}")
        if alias is not None:
            # Construction also keeps the alias among the unknown fields.
            schema = core_schema.with_default_schema(_REFUSE, default=None)
            paths: list[list[str | int]] = [[alias], [name]]
            return core_schema.model_field(schema, validation_alias=paths)
        schema = self.value(annotation, metadata, form)
        if schema is not _ANY:
            schema = core_schema.nullable_schema(schema)
        return core_schema.model_field(core_schema.with_default_schema(schema, default=None))

    def _union(self, annotation: Any, metadata: Sequence[object], form: Form) -> CoreSchema:
        sound = self._variants(annotation, metadata, Form.SOUND)
        texts = _texts_of(annotation, form)
        if form is Form.SOUND:
            return sound or _first_of(*texts, _function(_validator(annotation)))
        construct = _constructor(annotation, tuple(metadata))
        if form is Form.BROKEN:
            construct = _unless_valid(annotation, construct)
        if sound is None:
            return _first_of(*texts, _function(construct))
        broken = self._variants(annotation, metadata, Form.BROKEN)
        return _first_of(sound, *([broken] if broken else []), _function(construct))

    def _variants(self, annotation: Any, metadata: Sequence[object], form: Form) -> CoreSchema | None:
        """Return the schema of a union of which one variant can be right; `None` for any other."""
        args = get_args(annotation)
        known = [arg for arg in args if arg is not _NONE]
        discriminator = next(
            (item.discriminator for item in metadata if isinstance(item, PropertyInfo)), None
        )
        variants = tagged_variants(known, discriminator) if discriminator else None
        try:
            if variants and discriminator:
                choices = {tag: self._typed(cls, form) for tag, cls in variants.items()}
                schema: CoreSchema = core_schema.tagged_union_schema(choices, discriminator)
            elif len(known) == 1 and args[0] is not _NONE:
                schema = self.value(known[0], (), form)
            elif str in known and all(arg is str or _texts(arg) for arg in known):
                schema = _TEXT
            else:
                return None
        except Unsupported:
            return None
        return core_schema.nullable_schema(schema) if _NONE in args else schema


def _texts_of(annotation: Any, form: Form) -> list[CoreSchema]:
    """Return what takes the texts that no variant of a union would convert."""
    args = get_args(annotation)
    if str in args:
        return [_TEXT]
    if any(arg in _EXACT_SCALARS for arg in args):
        return []
    if form is not Form.SOUND:
        return [_TEXT]
    return [core_schema.literal_schema(list(texts)) for texts in map(_texts, args) if texts]


def _tag(tag: str) -> core_schema.ModelField:
    return core_schema.model_field(core_schema.literal_schema([tag]))


def _is_ordinary(cls: type[BaseModel]) -> bool:
    if cls.model_config.get("extra") != "allow" or not cls.__pydantic_fields_complete__:
        return False
    if "__pydantic_extra__" in cls.__annotations__:
        return False
    decorators = cls.__pydantic_decorators__
    if any(getattr(decorators, kind) for kind in decorators.__dataclass_fields__):
        return False
    ancestors = cls.__mro__[: cls.__mro__.index(BaseModel)]
    return not any(hook in ancestor.__dict__ for ancestor in ancestors for hook in _OWN_HOOKS)


def _constructor(annotation: Any, metadata: tuple[object, ...]) -> Callable[[Any], object]:
    found = list(metadata) or None
    return lambda value: construct_type(value=value, type_=annotation, metadata=found)


def _unless_valid(annotation: Any, construct: Callable[[Any], object]) -> Callable[[Any], object]:
    """A valid value does not break the union around it."""

    def construct_invalid(value: Any) -> object:
        try:
            validate_type(type_=annotation, value=value)
        except ValidationError:
            return construct(value)
        return _refuse(value)

    return construct_invalid


def _validator(annotation: Any) -> Callable[[Any], object]:
    return lambda value: validate_type(type_=annotation, value=value)

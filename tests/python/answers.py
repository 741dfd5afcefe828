"""JSON as servers send it for a type of the official client: right, wrong, and incomplete."""

from typing import Any, get_args, get_origin

from openai import BaseModel
from openai._utils import is_annotated_type, is_type_alias_type, is_union_type

JUNK = (
    None,
    True,
    False,
    0,
    1,
    -7,
    2**53 + 1,
    2**70,
    1.0,
    0.5,
    1e300,
    "",
    "12",
    "1.5",
    "true",
    "no such value",
    "2026-11-30T12:00:00Z",
    [],
    [1, None, {"a": 1}],
    {},
    {"type": "unheard_of", "id": 3},
)
DEEP = 7


class Answers:
    """Draws answers. `wrong` is the share of values that are not what the type says."""

    def __init__(self, random: Any, wrong: float) -> None:
        self.random = random
        self.wrong = wrong

    def value(self, annotation: Any, depth: int = 0) -> Any:  # noqa: PLR0911 one for each kind of type
        random = self.random
        if is_type_alias_type(annotation):
            return self.value(annotation.__value__, depth)
        if is_annotated_type(annotation):
            return self.value(get_args(annotation)[0], depth)
        if random.random() < self.wrong:
            return random.choice(JUNK)
        origin, args = get_origin(annotation), get_args(annotation)
        if is_union_type(annotation):
            if type(None) in args and (depth > DEEP or random.random() < 0.3):
                return None
            return self.value(random.choice([arg for arg in args if arg is not type(None)]), depth)
        if str(origin) == "typing.Literal":
            return random.choice(args)
        if origin is list:
            return [
                self.value(args[0], depth + 1) for _ in range(random.randint(0, 2) if depth < DEEP else 0)
            ]
        if origin is dict:
            return {key: self.value(args[1], depth + 1) for key in random.sample(["a", "type", "id"], 2)}
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return self.model(annotation, depth + 1)
        return random.choice(SCALARS[annotation])

    def model(self, cls: type[BaseModel], depth: int) -> dict[str, Any]:
        random = self.random
        fields = {}
        for name, field in cls.model_fields.items():
            missing = self.wrong if field.is_required() else 0.5 if depth < DEEP else 1.0
            if random.random() >= missing:
                fields[field.alias or name] = self.value(field.annotation, depth)
        if random.random() < self.wrong:
            fields[
                random.choice(["provider", "name", "cost", "schema_", "async_", "async", "model_config"])
            ] = random.choice(JUNK)
        return fields


SCALARS: dict[Any, tuple[Any, ...]] = {
    str: ("", "text", "é😀", "7"),
    int: (0, 1, 1_700_000_000, 2**53 + 1),
    float: (0.0, 1.5, 2, 1e22, -3),
    bool: (True, False),
    object: JUNK,
    Any: JUNK,
}

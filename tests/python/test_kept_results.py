"""Results of models: what is given again equals what was given first, or it is said that it is not."""

import sys

import pydantic
import pytest

from tidegate import Gate, ResultNotStoredError


class Base(pydantic.BaseModel):
    a: int


class Sub(Base):
    b: int


class Receipt(pydantic.BaseModel):
    number: int = pydantic.Field(alias="receiptNumber")


class Nested(pydantic.BaseModel):
    receipts: list[Receipt]
    base: Base | None = None


class Secret(pydantic.BaseModel):
    token: pydantic.SecretStr


class Hidden(pydantic.BaseModel):
    shown: int
    hidden: int = pydantic.Field(default=0, exclude=True)


class Private(pydantic.BaseModel):
    _inner: int = pydantic.PrivateAttr(default=0)


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    value: object


class Broken(pydantic.BaseModel):
    value: int

    @pydantic.field_serializer("value")
    def write(self, _):
        raise RuntimeError


def private():
    made = Private()
    made._inner = 7
    return made


def once(value):
    """Return the first result and a function that asks for it again."""
    gate, runs = Gate(), []

    def tool():
        runs.append(1)
        return value

    def again():
        try:
            return gate.once("k", tool)
        finally:
            assert len(runs) == 1

    return gate.once("k", tool), again


@pytest.mark.parametrize(
    "value",
    [Base(a=1), Receipt(receiptNumber=7), Nested(receipts=[Receipt(receiptNumber=7)], base=Base(a=1))],
)
def test_a_model_comes_back_as_it_was(value):
    first, again = once({"models": [value]})
    assert again() == first
    assert type(again()["models"][0]) is type(value)
    assert again()["models"][0].model_fields_set == value.model_fields_set


@pytest.mark.parametrize(
    "value",
    [
        Nested(receipts=[], base=Sub(a=1, b=2)),
        Secret(token="hush"),  # noqa: S106 no secret
        Hidden(shown=1, hidden=2),
        private(),
        Loose(value=object()),
        Loose(value=float("nan")),
        Broken(value=1),
        10**5000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_otherwise_is_given_once_and_never_run_again(value):
    first, again = once(value)
    assert first is value
    with pytest.raises(ResultNotStoredError):
        again()


def test_a_model_that_has_changed_is_told_of(monkeypatch):
    first, again = once(Base(a=1))
    assert first == Base(a=1)

    class Changed(pydantic.BaseModel):
        a: int
        new: str

    monkeypatch.setattr(sys.modules[__name__], "Base", Changed)
    Changed.__qualname__ = "Base"
    with pytest.raises(ResultNotStoredError, match="does not take it"):
        again()

"""The drop-ins: the official classes, and `gate=`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import openai

from tidegate._fast import FastAsync, FastSync
from tidegate._gate import Gate
from tidegate._sdk import AsyncSeams, AsyncSend, SyncSeams, SyncSend

if TYPE_CHECKING:
    from collections.abc import Callable


class OpenAI(FastSync, SyncSeams, openai.OpenAI, SyncSend):  # type: ignore[misc]
    """The official client with tidegate below it.

    Args:
        gate: The engine and its state. Default: `tidegate.default_gate`.
        settings: The official class's own, unchanged. ``max_retries=N`` means at most N + 1 attempts.
    """

    with_options = SyncSeams.copy


class AsyncOpenAI(FastAsync, AsyncSeams, openai.AsyncOpenAI, AsyncSend):  # type: ignore[misc]
    """The official asynchronous client with tidegate below it; see `OpenAI`."""

    with_options = AsyncSeams.copy


class AzureOpenAI(FastSync, SyncSeams, openai.AzureOpenAI, SyncSend):  # type: ignore[misc]
    """The official client for Azure with tidegate below it; see `OpenAI`."""

    with_options = SyncSeams.copy


class AsyncAzureOpenAI(FastAsync, AsyncSeams, openai.AsyncAzureOpenAI, AsyncSend):  # type: ignore[misc]
    """The official asynchronous client for Azure with tidegate below it; see `OpenAI`."""

    with_options = AsyncSeams.copy


def _signed_as(official: Callable[..., Any], ours: Callable[..., Any]) -> inspect.Signature:
    """Return the official signature with `gate`."""
    theirs = inspect.signature(official)
    gate = inspect.signature(ours).parameters["gate"]
    return theirs.replace(parameters=[*theirs.parameters.values(), gate])


def _own(cls: type, official: type, name: str) -> None:
    """Give a class a method of its own that shows the official one's signature."""
    inherited = getattr(cls, name)

    def method(self: Any, **settings: Any) -> Any:
        return inherited(self, **settings)

    method.__name__, method.__qualname__, method.__doc__ = name, f"{cls.__name__}.{name}", inherited.__doc__
    theirs = getattr(official, name)
    method.__signature__ = _signed_as(theirs, inherited)  # type: ignore[attr-defined]
    # The names in their annotations are those of their module, which is found through the wrapped function.
    method.__wrapped__ = theirs  # type: ignore[attr-defined]
    method.__annotations__ = {**theirs.__annotations__, "gate": Gate | None}
    setattr(cls, name, method)


for _cls, _official in (
    (OpenAI, openai.OpenAI),
    (AsyncOpenAI, openai.AsyncOpenAI),
    (AzureOpenAI, openai.AzureOpenAI),
    (AsyncAzureOpenAI, openai.AsyncAzureOpenAI),
):
    for _name in ("__init__", "copy", "with_options"):
        _own(_cls, _official, _name)
    _cls.__module__ = "tidegate"

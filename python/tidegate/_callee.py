"""What has to be known of a function to run it under a key, read once: how it is called, by what names."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from typing import TYPE_CHECKING, Any

from tidegate import _core
from tidegate._call import is_async
from tidegate._errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tidegate._tool_policy import ToolPolicy


class Callee:
    """A function, as far as its calls are told apart."""

    __slots__ = (
        "_any",
        "_known",
        "_plain",
        "_required",
        "_signature",
        "defaults",
        "first",
        "has_signature",
        "is_async",
        "name",
        "names",
    )

    def __init__(self, function: Callable[..., Any], signature: inspect.Signature | None) -> None:
        self.is_async = is_async(function)
        self.name = str(getattr(function, "__qualname__", type(function).__qualname__))
        self._signature = signature
        self.has_signature = signature is not None
        parameters = signature.parameters if signature is not None else {}
        empty = inspect.Parameter.empty
        # Where each argument may be passed by place or by name, they can be bound without the signature.
        plain = all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in parameters.values())
        self._plain = tuple(parameters) if plain and signature is not None else None
        self.names = tuple(parameters)
        self._known = parameters.keys()
        self._any = signature is None or any(
            one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()
        )
        self._required = frozenset(name for name, one in parameters.items() if one.default is empty)
        self.defaults = {name: one.default for name, one in parameters.items() if one.default is not empty}
        self.first = next(iter(parameters), None)

    def bound(self, args: Any, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, the same however they were passed.

        Raises:
            TypeError: The function does not take them.
        """
        if self._signature is None:
            return {**{str(index): value for index, value in enumerate(args)}, **keywords}
        if self._plain is not None and len(args) <= len(self._plain):
            named = dict(zip(self._plain, args, strict=False))
            named.update(keywords)
            given_once = len(named) == len(args) + len(keywords)
            if given_once and self._required <= named.keys() <= self._known:
                # In the function's order, whatever the caller's: a key may be made of them.
                return {name: named[name] for name in self._plain if name in named} if keywords else named
        try:
            return _by_signature(self._signature, args, keywords)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None

    def takes(self, name: str) -> bool:
        """Whether it can be given an argument of that name."""
        return self._any or name in self.names

    def check(self, policy: ToolPolicy) -> None:
        """Refuse a policy that tells calls apart by what is no argument: all would be taken for one.

        Raises:
            ConfigError: `policy.fields` names none of the function's arguments.
        """
        # What is ignored may be no argument: one policy serves several tools, and no two calls become one.
        for name in policy.fields or ():
            if not self.takes(name):
                names = ", ".join(self.names) or "none"
                rule = f"must be names of arguments of {self.name}, which are: {names}"
                raise ConfigError("tool.fields", repr(name), rule)

    def fingerprint(self, tool: str, policy: ToolPolicy, arguments: Mapping[str, Any]) -> bytes:
        """Return what tells two calls under one key apart.

        An argument that equals its default is left out, so that a new one with a default changes nothing.

        Raises:
            ConfigError: See `check`.
            EncodeError: An argument has no form in JSON; names its path.
        """
        if not policy.ignore and policy.fields is None and not self.defaults:
            return _core.fingerprint(tool, policy.version, arguments)
        self.check(policy)
        chosen = {
            name: value
            for name, value in arguments.items()
            if name not in policy.ignore
            and (policy.fields is None or name in policy.fields)
            and not (name in self.defaults and _same(self.defaults[name], value))
        }
        return _core.fingerprint(tool, policy.version, chosen)


def _by_signature(signature: inspect.Signature, args: Any, keywords: Mapping[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, value in signature.bind(*args, **keywords).arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        else:
            named[name] = list(value) if kind is inspect.Parameter.VAR_POSITIONAL else value
    return named


def _same(default: object, value: object) -> bool:
    return default is value or (
        type(default) is type(value) and isinstance(value, str | int | float) and default == value
    )


_known: weakref.WeakKeyDictionary[Any, Callee] = weakref.WeakKeyDictionary()


def callee_of(function: Callable[..., Any]) -> Callee:
    """Return what is known of a function, remembered for as long as the function lives."""
    try:
        known = _known.get(function)
    except TypeError:  # it cannot be hashed, or not be referred to weakly
        return Callee(function, _signature(function))
    if known is None:
        known = Callee(function, _signature(function))
        with contextlib.suppress(TypeError):
            _known[function] = known
    return known


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return None

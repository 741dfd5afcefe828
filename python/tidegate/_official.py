"""Whether a function of the official client is still its own, or somebody's who wants to see the calls."""

from __future__ import annotations

import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
from openai._base_client import AsyncAPIClient, SyncAPIClient

if TYPE_CHECKING:
    from collections.abc import Callable

_HOME = str(Path(openai.__file__).parent)


def is_own(function: object) -> bool:
    """Tell whether a function, and all that it wraps, is code of the openai package."""
    # By type: proxies of wrapt, which most instrumentations use, pass as instances of what they wrap.
    while type(function) is types.FunctionType:
        if not function.__code__.co_filename.startswith(_HOME):
            return False
        if not hasattr(function, "__wrapped__"):
            return True
        function = function.__wrapped__
    return False


class Watched:
    """A method of one of the official classes. Patches come and go at any time, so every call looks."""

    __slots__ = ("_is_own", "_name", "_owner", "_seen")

    def __init__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name
        self._seen: object = None
        self._is_own = False

    def is_own(self) -> bool:
        """Tell whether nobody has patched it."""
        found = self._owner.__dict__.get(self._name)
        if found is not self._seen:
            self._seen, self._is_own = found, is_own(found)
        return self._is_own


# What a subclass may override to have a say in its requests and answers.
_HOOKS = (
    "_auth_headers",
    "_auth_query",
    "_build_headers",
    "_build_request",
    "_custom_auth",
    "_make_status_error_from_response",
    "_maybe_override_cast_to",
    "_merge_url",
    "_prepare_options",
    "_prepare_request",
    "_prepare_url",
    "_process_response_data",
    "_refresh_api_key",
    "_send_with_auth_retry",
    "_should_stream_response_body",
    "_validate_headers",
    "auth_headers",
    "base_url",
    "custom_auth",
    "default_headers",
    "default_query",
    "platform_headers",
    "post",
    "qs",
    "user_agent",
)


def senders(cls: type[Any]) -> tuple[tuple[Callable[[str], object], object], ...]:
    """Return how to look up `request` in each class where instrumentations replace it, and what is there."""
    classes = [ancestor for ancestor in cls.__mro__ if issubclass(ancestor, (SyncAPIClient, AsyncAPIClient))]
    looks = [each.__dict__.get for each in classes if not each.__module__.startswith("tidegate._")]
    return tuple((look, look("request")) for look in looks)


def has_official_hooks(cls: type[Any]) -> bool:
    """Tell whether a class of clients, apart from tidegate's own part in it, leaves requests to the SDK."""
    ours = {"request", "_send_request", "_process_response", "_make_status_error", "_should_retry"}
    for ancestor in cls.__mro__:
        if ancestor.__module__.startswith("tidegate._"):
            continue
        for name in (*_HOOKS, *ours):
            found = ancestor.__dict__.get(name)
            function = found.fget if isinstance(found, property) else found
            if function is not None and not is_own(function):
                return False
    return True

"""`Gate.journal`: a run of an agent that can be run again.

The model's answers are kept, and tools are keyed by their place in the run: the turn, and which of the
tool's calls in that turn. So a run that is repeated after a failure gets the same answers, asks for the same
tools, and finds them done. What the model writes, its ids and wording, is in no key: it would be different if
it were asked again.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from contextvars import ContextVar, Token
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidegate import _core, _drive_once
from tidegate._errors import ConfigError
from tidegate._keys import idem_key, key_part, warn_of_randomness
from tidegate._skipped import reset_deadline, set_deadline
from tidegate._tool_policy import ToolPolicy

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from tidegate._tool import Tools

_current: ContextVar[Journal | None] = ContextVar("tidegate_journal", default=None)

_MODEL = "llm"
# By which the SDK's methods know that a raw response is wanted.
_RAW = "x-stainless-raw-response"


def kept(policy: ToolPolicy) -> ToolPolicy:
    """Return the policy of a tool that is called here: a run that is repeated must find what it did."""
    journal = _current.get()
    if journal is None or journal.retention <= policy.retention:
        return policy
    return replace(policy, retention=journal.retention)


def tool_key(tool: str) -> str:
    """Return the key of the next call of a tool in the journal that is open here."""
    journal = _current.get()
    if journal is None:
        rule = "must be given, such as 'refund:{order_id}'; or call the tool in `with gate.journal(run_id)`"
        raise ConfigError("tool.key", f"None (of {tool})", rule)
    return journal.next_key(tool)


def _is_time_left(value: object) -> bool:
    """Whether it is a number; of who is late it is below zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


class Journal:
    """One run of an agent, between `with gate.journal(run_id)` and the end of its block.

    Attributes:
        run_id: The run's name.
        turn: How many times the model was asked so far.
        retention: Seconds for which answers of the model, and results of tools, are kept at least.
    """

    def __init__(
        self,
        tools: Tools,
        run_id: str | int,
        *,
        tenant: str,
        workflow: str,
        deadline: float | None,
        retention: float,
    ) -> None:
        self.run_id = key_part("journal.run_id", run_id)
        warn_of_randomness("run_id", self.run_id)
        self.turn = 0
        self._tools = tools
        self._tenant = key_part("journal.tenant", tenant)
        self._workflow = key_part("journal.workflow", workflow)
        if deadline is not None and not _is_time_left(deadline):
            raise ConfigError("journal.deadline", repr(deadline), "must be a number of seconds, or None")
        self._deadline = deadline
        self.retention = retention
        self._policy = ToolPolicy(effect="read", retention=retention, on_store_error="refuse")
        self._lock = threading.Lock()
        self._calls: dict[str, int] = {}
        self._tokens: list[tuple[Token[Any], Token[Any]]] = []

    def __enter__(self) -> Self:
        self.turn, self._calls = 0, {}
        self._tokens.append((_current.set(self), set_deadline(self._deadline)))
        return self

    def __exit__(self, *_: object) -> None:
        journal, deadline = self._tokens.pop()
        reset_deadline(deadline)
        _current.reset(journal)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    def ask(self, function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:
        """Ask the model, once per turn of the run: a repetition gets the answer that is kept.

        >>> answer = await journal.ask(client.chat.completions.create, model="gpt-5.4-mini", messages=[...])

        Args:
            function: What asks; async or not. A stream or a raw response cannot be kept: ask for the whole
                answer.
            args: Its arguments. A repetition may word them differently: the place in the run decides.
            keywords: The same.

        Returns:
            What `function` returns; awaitable if it is async.

        Raises:
            ConfigError: The answer would be a stream or a raw response.
            ResultNotStoredError: The answer that was kept belongs to a class that is not imported here.
        """
        if keywords.get("stream"):
            raise ConfigError("journal.ask", "stream=True", "must be a whole answer: a stream cannot be kept")
        if any(name.lower() == _RAW for name in keywords.get("extra_headers") or ()):
            raise ConfigError(
                "journal.ask", "with_raw_response", "must be a parsed answer: a raw one cannot be kept"
            )
        with self._lock:
            self.turn += 1
            self._calls = {}
            key = self._key(f"{self.turn}.{_MODEL}")
        call = functools.partial(function, *args, **keywords)
        # What is asked is left out: the place in the run is what is asked for.
        print_ = _core.fingerprint(_MODEL, self._policy.version, {})
        once = self._tools.once(_MODEL, key, self._policy, print_, call)
        if inspect.iscoroutinefunction(inspect.unwrap(function)):
            return _drive_once.run_async(once)
        return _drive_once.run(once)

    def client(self, client: Any) -> Any:
        """Return a copy of a client whose answers are kept, to be given to a framework.

        Its ``chat.completions.create`` and ``responses.create`` ask through `ask`, and so do those of copies
        that are made of it; all else is as before.

        >>> set_default_openai_client(journal.client(AsyncOpenAI()))

        Args:
            client: An official client, or tidegate's in its place, async or not.
        """
        copy = client.with_options()
        for resource in (copy.chat.completions, copy.responses):
            resource.create = functools.wraps(resource.create)(functools.partial(self.ask, resource.create))

        def changed(**changes: Any) -> Any:
            return self.client(client.copy(**changes))

        copy.copy = functools.wraps(copy.copy)(changed)
        copy.with_options = functools.wraps(copy.with_options)(changed)
        return copy

    def next_key(self, tool: str) -> str:
        """Return the key of the next call of a tool in this turn. Two equal calls are two."""
        with self._lock:
            position = self._calls[tool] = self._calls.get(tool, -1) + 1
            return self._key(f"{self.turn}.{position}.{tool}")

    def _key(self, step: str) -> str:
        return idem_key(tenant=self._tenant, workflow=self._workflow, biz_id=self.run_id, step=step)

"""What a tool's body can see of its own execution."""

from __future__ import annotations

import hashlib
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from tidegate import _core
from tidegate._tool_errors import StoreUnavailableError

if TYPE_CHECKING:
    from tidegate._core import Transaction

_NOTE = 500
_PATIENCE = 2.0

current: ContextVar[Execution | None] = ContextVar("tidegate_execution", default=None)


class Execution:
    """One execution of a tool, as its body sees it; see `tidegate.current_execution`.

    Attributes:
        tool: Name of the tool.
        key: The idempotency key.
        attempt: 1 for the first execution under the key, more after a crash.
        fence: Grows with each acquisition of the record. A resource that refuses lower ones than it has seen
            is safe from an owner that was paused. 0 if nothing guards this execution.
        is_guarded: False where the store cannot be reached and the tool runs all the same.
        connection: For ``effect="transactional"``: the connection through which the tool writes.
    """

    __slots__ = (
        "_connection",
        "_hold",
        "_is_away",
        "_lease",
        "_outer",
        "_owner",
        "_store",
        "attempt",
        "fence",
        "is_guarded",
        "key",
        "tool",
    )

    def __init__(
        self,
        store: _core.Store,
        *,
        tool: str,
        key: str,
        owner: bytes,
        fence: int,
        attempt: int,
        lease: float,
        is_guarded: bool = True,
    ) -> None:
        self.is_guarded = is_guarded
        self._store = store
        self._owner = owner
        self._lease = lease
        self._hold: _core.Hold | None = None
        self._connection: Transaction | None = None
        self._is_away = False
        self._outer = current.get()
        self.tool = tool
        self.key = key
        self.fence = fence
        self.attempt = attempt

    @property
    def downstream_key(self) -> str:
        """What to pass on as ``Idempotency-Key``: 64 hex digits, the same for each execution under a key."""
        return hashlib.sha256(self.key.encode()).hexdigest()

    @property
    def lease_lost(self) -> bool:
        """Whether another caller may be executing by now. A tool that can stop should."""
        return self._hold is not None and self._hold.lost

    @property
    def connection(self) -> Transaction:
        """The connection of a transactional tool. What it writes is committed with its result, or not at all.

        It leads to the store's own file. While a gate uses that file, nothing else in this process may open
        it with Python's `sqlite3`: two copies of SQLite in one process do not see each other's locks. Other
        processes may.
        """
        if self._connection is None:
            raise RuntimeError(f"{self.tool} has no connection: it is not declared effect='transactional'")
        return self._connection

    def progress(self, note: str) -> None:
        """Note how far the tool has come, for whoever must decide on the record if this process dies.

        Args:
            note: At most 500 characters; no secrets. Where no event loop runs it is kept on return; on a
                loop, which must not wait, a little later: a process killed at once takes it along. A store
                that is away does not stop the tool.
        """
        if not self.is_guarded:
            return
        operation = _core.Operation.heartbeat(self._owner, self.fence, self._lease, str(note)[:_NOTE])
        if self._store.answer(self.key, operation) is not None:
            return
        # In a transaction the tool itself holds the file, and its effect stands or falls with its outcome.
        if self._connection is not None or self._is_away or _on_a_loop():
            self._store.post(self.key, operation, _PATIENCE)
            return
        try:
            self._store.call(self.key, operation, _PATIENCE)
        except StoreUnavailableError:
            # It has been waited for once.
            self._is_away = True

    def holds(self, key: str) -> bool:
        """Whether this execution, or one around it, runs under the key."""
        execution: Execution | None = self
        while execution is not None:
            if execution.key == key:
                return True
            execution = execution._outer
        return False

    def __repr__(self) -> str:
        return f"<Execution of {self.tool}, attempt {self.attempt}>"


def current_execution() -> Execution:
    """Return the execution that this code is part of, inside a tool's body.

    Raises:
        RuntimeError: No tool is running here.
    """
    execution = current.get()
    if execution is None:
        raise RuntimeError("no tool is running here: call this in a function that runs by once() or @tool")
    return execution


def shown(value: Any) -> str:
    """Return a key as it may be shown in a message."""
    text = str(value)
    return text if len(text) <= 120 else f"{text[:119]}…"  # noqa: PLR2004 a line's length


def _on_a_loop() -> bool:
    # Whoever has not imported it runs no loop of it, and it takes long to import.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None

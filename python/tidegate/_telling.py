"""What is counted and logged of a tool's calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate._log import level_for_calls

if TYPE_CHECKING:
    from tidegate import _core


class Telling:
    """Counts and logs for one gate. The log holds digests of keys and arguments, never these themselves."""

    __slots__ = ("_store",)

    def __init__(self, store: _core.Store) -> None:
        self._store = store

    def level(self) -> int:
        """Return the lowest level of events that anybody listens to."""
        return level_for_calls()

    def tell(
        self,
        once: Any,
        status: str | None = None,
        *,
        decision: str | None = None,
        outcome: str | None = None,
        reason: str | None = None,
        attempts: int | None = None,
    ) -> None:
        """Tell of one decision.

        Args:
            once: The call: its tool, key, policy and fingerprint are told.
            status: How the call of the tool ended, for ``tool_call_total``.
            decision: What became of the execution, for the counters of idempotency.
            outcome: The event's outcome; `None` for no event.
            reason: The event's reason.
            attempts: Executions begun under the key.
        """
        self._store.tell(
            tool=once.tool,
            key=once.key,
            effect=once.policy.effect,
            fingerprint=once.fingerprint,
            status=status,
            decision=decision,
            outcome=outcome,
            reason=reason,
            attempts=attempts,
            log_level=level_for_calls(),
        )

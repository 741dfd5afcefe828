"""The calls in progress in this process, and who waits for them."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Flight:
    """A call in progress in this process; tells those who wait for it when it lands."""

    __slots__ = ("_landed", "_lock", "_waiters")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._landed = False
        self._waiters: list[Callable[[], object]] = []

    def on_landing(self, wake: Callable[[], object]) -> None:
        """Have `wake` called when the flight lands, or now if it has."""
        with self._lock:
            if not self._landed:
                self._waiters.append(wake)
                return
        wake()

    def land(self) -> None:
        """Wake everybody."""
        with self._lock:
            self._landed = True
            waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()


class Flights:
    """The calls in progress in this process, by key."""

    __slots__ = ("_by_key", "_pid")

    def __init__(self) -> None:
        self._by_key: dict[str, Flight] = {}
        self._pid = os.getpid()

    def take_off(self, key: str) -> Flight:
        """Enter a call."""
        flight = self._current()[key] = Flight()
        return flight

    def get(self, key: str) -> Flight | None:
        """Return the call that is in progress under the key here."""
        return self._current().get(key)

    def land(self, key: str, flight: Flight) -> None:
        """Remove a call, and wake those who wait for it."""
        if self._by_key.get(key) is flight:
            del self._by_key[key]
        flight.land()

    def _current(self) -> dict[str, Flight]:
        # The threads of a parent process are not here, and will not land.
        if self._pid != os.getpid():
            self._by_key, self._pid = {}, os.getpid()
        return self._by_key

"""Turns of tasks: a reader whose next item is always there would keep the loop to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate import _core

if TYPE_CHECKING:
    from asyncio import Future

# Items that a stream hands on before others have their turn. A turn costs about as much as an item.
ITEMS = 8


def turn() -> Future[None]:
    """Return what to await for the next turn, in line with everybody whom the loop is to wake."""
    return _core.turn().future

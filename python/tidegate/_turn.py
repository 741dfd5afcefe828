"""Turns of tasks: a reader whose next item is always there would keep the loop to itself."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

# Items that a stream hands on before others have their turn. A turn costs about as much as an item.
ITEMS = 4


@types.coroutine
def turn() -> Generator[None]:
    """Let the loop do what else is due."""
    yield

"""A case as its file tells it, and the checks that it asks for."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_FOLDER = Path(__file__).parents[2] / "vectors" / "cases"

# A case that asks for a race to be run 200 times gets fewer runs by default.
REPEATS = int(os.environ.get("TIDEGATE_CASES_REPEATS", "20"))


@dataclass(frozen=True)
class Case:
    """One entry of `index.json` with the file that it names."""

    kind: str
    stem: str
    folder: Path
    content: dict[str, Any]

    @property
    def expect(self):
        return self.content["expect"]

    def bytes_of(self, name):
        return (self.folder / name).read_bytes()


@dataclass(frozen=True)
class Check:
    """One thing to be held of a case; `skipped` says why it is not run."""

    name: str
    run: Callable[[], None] | None = None
    skipped: str | None = None


def folder():
    return Path(os.environ.get("TIDEGATE_CASES") or DEFAULT_FOLDER)


def load(where):
    """Return every case that the folder's index names."""
    cases = []
    for entry in json.loads((where / "index.json").read_text("utf-8")):
        path = where / entry["file"]
        content = json.loads(path.read_text("utf-8"))
        content.setdefault("expect", entry.get("expected", {}))
        cases.append(Case(entry["kind"], path.stem, where, content))
    return cases

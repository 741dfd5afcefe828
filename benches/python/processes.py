"""Starting the server and the contenders, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


class Server:
    """A fault server in another process."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url

    def requests(self) -> dict[str, Any]:
        """Return what it has been asked so far, counted."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(file=stdin, flush=True)
        counts: dict[str, Any] = json.loads(stdout.readline())
        return counts


@contextmanager
def server(**settings: Any) -> Iterator[Server]:
    """Serve while the block runs."""
    command = [sys.executable, str(HERE / "serve.py"), json.dumps({"ledger": {"entries": 0}, **settings})]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError("the fault server did not start")
        yield Server(process, url)
        process.communicate()


def result(*command: object) -> dict[str, Any]:
    """Run a program that prints a JSON object and return that."""
    words = [str(word) for word in command]
    if words[0].endswith(".py"):
        words = [sys.executable, str(HERE / words[0]), *words[1:]]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found

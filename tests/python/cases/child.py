"""Python processes of their own, for what may end or hang the process it happens in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import tidegate

_PATHS = (Path(__file__).parents[1], Path(tidegate.__file__).parents[1])
LIMIT_S = 60


def run(code, *arguments, env=None, expect=0, limit=LIMIT_S):
    """Run `code` in a new process and return it, finished. It finds its arguments in ``sys.argv``."""
    path = os.pathsep.join([*map(str, _PATHS), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(  # noqa: S603 this interpreter
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit,
        check=False,
    )
    assert expect is None or ran.returncode == expect, f"exit code {ran.returncode}\n{ran.stdout}{ran.stderr}"
    return ran


def told(code, *arguments, **options):
    """Run `code`, and return what the last line of its output says in JSON."""
    return json.loads(run(code, *arguments, **options).stdout.strip().splitlines()[-1])

"""Run the official suite against the drop-ins, and print both bars as one line of JSON.

    judge.py VENV [--select core] [--compare]

`known.json` lists what cannot pass (`fails`) and where the traffic has to differ from the stock client's
(`differs`), each with its reason. What else fails is run once more, for some tests look at once into what
the server does: what passes then is told as `unsteady`. Anything else that fails or differs makes the exit
status 1.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = pathlib.Path(__file__).resolve().parent
CLASSES = {
    "--sync": "OpenAI",
    "--async": "AsyncOpenAI",
    "--azure-sync": "AzureOpenAI",
    "--azure-async": "AsyncAzureOpenAI",
}
SHOWN = ("passed", "failed", "bar", "passed_with_class_under_test", "passed_through_httpx2")


def run(mode: str, options: argparse.Namespace, again: Sequence[str] = ()) -> dict[str, Any]:
    """Run one bar, or some of its tests again, and return what the runner says of it."""
    command = [sys.executable, str(HERE / "run_suite.py"), str(options.venv), "--mode", mode]
    command += ["--port", str(options.port), "--hang", "100"]
    for path in (HERE, *options.pythonpath):
        command += ["--pythonpath", str(path)]
    for flag, name in CLASSES.items():
        command += [flag, f"drop_in:{name}"]
    if again:
        ids = options.venv / "suite" / "again.txt"
        ids.write_text("\n".join(again) + "\n", encoding="utf-8")
        command += ["--ids", str(ids), "--out", str(options.venv / "suite" / f"again-{mode}")]
    elif options.select:
        command += ["--select", options.select]
    if options.compare and not again:
        command.append("--compare")
    process = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    lines = process.stdout.splitlines()
    if not lines:
        raise SystemExit(f"the {mode} bar did not run: exit status {process.returncode}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def verdict(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one bar; return the figures, and what is wrong with them."""
    result = run(mode, options)
    known = json.loads((HERE / "known.json").read_text(encoding="utf-8"))
    listed, differing = (
        [entry["test"] for entry in known[kind] if mode in entry["modes"]] for kind in ("fails", "differs")
    )
    failed = result["failed_ids"]
    shown: dict[str, Any] = {name: result.get(name) for name in SHOWN}
    shown["known"] = sum(_matches(name, listed) for name in failed)
    unexpected = [name for name in failed if not _matches(name, listed)]
    fails_again = run(mode, options, unexpected)["failed_ids"] if unexpected else []
    shown["unexpected"] = fails_again
    shown["unsteady"] = sorted(set(unexpected) - set(fails_again))
    shown["not_run"] = len(result.get("not_run", []))
    if "wire_diff" in result:
        found = result["wire_diff"]
        shown["compared"] = found["compared"]
        # A test that fails at times differs when it passes.
        shown["differs"] = {
            kind: unlisted
            for kind, names in found["kinds"].items()
            if (unlisted := [name for name in names if not _matches(name, listed + differing)])
        }
    if result.get("exit_problems"):
        shown["exit_problems"] = result["exit_problems"]
    return shown


def _matches(name: str, listed: list[str]) -> bool:
    return any(name == test or name.startswith(test + "[") for test in listed)


def main() -> int:
    """Run both bars."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("venv", type=pathlib.Path)
    parser.add_argument("--select")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--mode", choices=("wire", "tunnel"), action="append")
    parser.add_argument("--port", type=int, default=4010)
    parser.add_argument("--pythonpath", type=pathlib.Path, action="append", default=[])
    options = parser.parse_args()
    shown = {mode: verdict(mode, options) for mode in options.mode or ("wire", "tunnel")}
    print(json.dumps(shown))
    wrong = ("unexpected", "not_run", "passed_through_httpx2", "exit_problems", "differs")
    return 1 if any(bar.get(name) for bar in shown.values() for name in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())

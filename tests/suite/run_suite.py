#!/usr/bin/env python3
"""Run the openai-python test suite against a drop-in, and print one JSON line.

    run_suite.py VENV                                     stock classes, the bar, over the wire
    run_suite.py VENV --sync tidegate:OpenAI --async tidegate:AsyncOpenAI --install ./dist/x.whl
    run_suite.py VENV --mode tunnel --sync ... --async ...
    run_suite.py VENV --make-baseline                     rewrite the two baseline files

VENV is created when absent and reused when present. Everything this writes is inside it,
except the baseline files. See README.md.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
import xml.etree.ElementTree as ET
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
VERSION = "3.57.0"

CORE = """
tests/test_client.py tests/test_streaming.py tests/test_response.py tests/test_legacy_response.py
tests/test_sse_framing.py tests/test_stream_mode.py tests/test_retry_after_overflow.py
tests/test_status_error_messages.py tests/test_auth.py tests/test_transform.py tests/test_models.py
tests/test_httpx2.py tests/test_httpx2_base.py tests/test_httpx2_respx.py tests/test_files.py
tests/test_union_parsing.py tests/test_debug_logging.py tests/test_large_payload_contract.py
tests/lib/test_azure.py tests/lib/test_audio_response_format.py tests/lib/test_embeddings.py
tests/lib/test_assistant_tool_call_deltas.py tests/lib/test_fine_tuning_positional_arguments.py
tests/lib/chat tests/lib/responses tests/lib/streaming
""".split()
SELECTIONS = {"core": CORE, "api": ["tests/api_resources"], "all": ["tests"]}

MODES = {
    "respx": {},
    "wire": {"SUITE_WIRE": "1"},
    "tunnel": {"SUITE_WIRE": "1", "SUITE_TUNNEL": "1"},
}
BARS = {"wire": "baseline_ids.txt.gz", "tunnel": "baseline_tunnel_ids.txt.gz"}

SECTIONS = {
    "wire": "requests crossed the socket",
    "explicit": "the test hands the client its own httpx2 client: a drop-in must use it",
    "in-process": "another host than the wire server: answered inside httpx2 by respx2",
    "client": "a client takes part but sends nothing",
    "none": "no client takes part",
}


# -- environment --------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def python_of(venv: pathlib.Path) -> pathlib.Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def prepare(venv: pathlib.Path, extra: list[str]) -> pathlib.Path:
    """The unpacked sdist, with the dependencies of its tests installed in the venv."""
    python = python_of(venv)
    if not python.exists():
        say(f"creating {venv}")
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q"]
    groups = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    wanted = "\n".join(groups["suite"])
    marker = venv / "suite" / "requirements.done"
    marker.parent.mkdir(exist_ok=True)
    if not marker.exists() or marker.read_text(encoding="utf-8") != wanted:
        say("installing test dependencies")
        subprocess.run([*pip, "install", *groups["suite"]], check=True)
        marker.write_text(wanted, encoding="utf-8")
    for spec in extra:
        subprocess.run([*pip, "install", "--force-reinstall", "--no-deps", spec], check=True)

    root = venv / "suite" / f"openai-{VERSION}"
    if not (root / "tests" / "conftest.py").exists():
        say("downloading the sdist")
        command = [*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", str(root.parent), f"openai=={VERSION}"]
        subprocess.run(command, check=True)
        with tarfile.open(root.parent / f"openai-{VERSION}.tar.gz") as archive:
            archive.extractall(root.parent, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(root.parent)
    shown = subprocess.run(
        [str(python), "-c", "import openai; print(openai.__version__)"], check=True, capture_output=True, text=True
    )
    if shown.stdout.strip() != VERSION:
        raise SystemExit(f"the venv has openai {shown.stdout.strip()}, the suite is {VERSION}")
    return root


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# -- running ------------------------------------------------------------------------------


def read_ids(path: pathlib.Path) -> list[str]:
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")
    with opened as file:
        return [line.rstrip("\n") for line in file if line.strip() and not line.startswith("#")]


def run(
    options: argparse.Namespace, root: pathlib.Path, mode: str, targets: list[str], ids: list[str] | None, out: pathlib.Path
) -> dict[str, dict[str, Any]]:
    """Run pytest until every test has had its turn; a crash or a hang costs only its own test."""
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("pytest-*.log"), out / "junit.xml", out / "ledger.jsonl"]:
        old.unlink(missing_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SUITE_", "OPENAI_", "TEST_API_"))}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        env.pop(name, None)
        env.pop(name.lower(), None)
    env.update(MODES[mode], SUITE_PORT=str(options.port), SUITE_LEDGER=str(out / "ledger.jsonl"))
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), *(str(pathlib.Path(p).resolve()) for p in options.pythonpath)])
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    for key, value in (
        ("SUITE_SYNC", options.sync),
        ("SUITE_ASYNC", options.asynchronous),
        ("SUITE_AZURE_SYNC", options.azure_sync),
        ("SUITE_AZURE_ASYNC", options.azure_async),
    ):
        if value:
            env[key] = value
    if options.fingerprint:
        env["SUITE_FINGERPRINT"] = "1"
    if mode != "respx":
        env["SUITE_EXCLUDE"] = str(HERE / "exclusions.json")
        if not options.make_baseline:
            env["SUITE_EXCLUDE_MODE"] = mode
    if ids is not None:
        (out / "only.txt").write_text("\n".join(ids) + "\n", encoding="utf-8")
        env["SUITE_ONLY"] = str(out / "only.txt")

    done: dict[str, dict[str, Any]] = {}
    for attempt in range(1, options.restarts + 2):
        if done:
            (out / "skip.txt").write_text("\n".join(done) + "\n", encoding="utf-8")
            env["SUITE_SKIP"] = str(out / "skip.txt")
        command = [str(python_of(options.venv)), "-m", "pytest", "-p", "wire_plugin", "-p", "no:cacheprovider"]
        command += ["-o", "addopts=", "--tb=short", "-q", "-rfE", *targets]
        with open(out / f"pytest-{attempt}.log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(
                command, cwd=root, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            hung = not watch(process, out / "ledger.jsonl", options.hang)
        running, finished = read_ledger(out / "ledger.jsonl", done)
        if running is None:
            if not done or not finished:
                say((out / f"pytest-{attempt}.log").read_text(encoding="utf-8")[-3000:])
                raise SystemExit(f"pytest ended with {process.returncode} outside any test")
            if process.returncode not in (0, 1, 5):
                problem = "hung at exit" if hung else f"the process ended with {process.returncode} after the last test"
                options.exit_problems.append(problem)
            break
        verdict = "hung" if hung else f"the process ended with {process.returncode}"
        say(f"{running}: {verdict}; going on without it")
        if attempt > options.restarts:
            say("too many crashes; the rest was not run")
        done[running] = {"id": running, "outcome": "failed", "detail": verdict, "counts": {}, "made": [], "fixtures": []}
    write_junit(out, done)
    return done


def watch(process: subprocess.Popen[bytes], ledger: pathlib.Path, patience: float) -> bool:
    """Wait for the process; false when it made no progress and had to be killed."""
    size, since = -1, time.monotonic()
    while True:
        try:
            process.wait(timeout=0.5)
            return True
        except subprocess.TimeoutExpired:
            pass
        now = ledger.stat().st_size if ledger.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > patience:
            os.killpg(process.pid, signal.SIGKILL)  # our own child, in its own session
            process.wait()
            return False


def read_ledger(path: pathlib.Path, done: dict[str, dict[str, Any]]) -> tuple[str | None, bool]:
    """Add finished tests to `done`; return the test left unfinished, and whether pytest came to its end."""
    running: str | None = None
    finished = False
    if path.exists():
        with open(path, encoding="utf-8") as file:
            for line in file:
                try:
                    entry = json.loads(line)
                except ValueError:  # cut short by a crash
                    continue
                if "start" in entry:
                    running, finished = entry["start"], False
                elif "finish" in entry:
                    finished = True
                else:
                    done[entry["id"]] = entry
                    running = None
    return (None if running in done else running), finished


def write_junit(out: pathlib.Path, done: dict[str, dict[str, Any]]) -> None:
    """From the ledger, which survives a crash; tracebacks are in the pytest logs."""
    outcomes = collections.Counter(e["outcome"] for e in done.values())
    counts = {"tests": len(done), "failures": outcomes["failed"], "skipped": outcomes["skipped"] + outcomes["xfailed"]}
    suite = ET.Element("testsuite", name="openai-python", **{k: str(v) for k, v in counts.items()})
    for entry in done.values():
        place, _, name = entry["id"].rpartition("::") if "[" not in entry["id"] else split_parametrized(entry["id"])
        case = ET.SubElement(suite, "testcase", classname=place, name=name, time=str(entry.get("seconds", 0)))
        if entry["outcome"] == "failed":
            ET.SubElement(case, "failure", message=printable(entry.get("detail", "")))
        elif entry["outcome"] != "passed":
            ET.SubElement(case, "skipped")
    ET.ElementTree(suite).write(out / "junit.xml", encoding="utf-8", xml_declaration=True)


def split_parametrized(name: str) -> tuple[str, str, str]:
    head, bracket, rest = name.partition("[")
    place, separator, test = head.rpartition("::")
    return place, separator, test + bracket + rest


def printable(text: str) -> str:
    return "".join(c if c in "\t\n" or c >= " " else "?" for c in text)


# -- judging ------------------------------------------------------------------------------


def section(entry: dict[str, Any]) -> str:
    counts = entry["counts"]
    if counts.get("wire"):
        return "wire"
    if any(key.startswith("transport:") for key in counts) or counts.get("httpx2_elsewhere", 0) > counts.get("respx_in_process", 0):
        return "explicit"
    if counts.get("respx_in_process"):
        return "in-process"
    if entry["made"] or set(entry["fixtures"]) & {"client", "async_client"}:
        return "client"
    return "none"


def summary(mode: str, done: dict[str, dict[str, Any]], bar: list[str] | None, substituted: bool) -> dict[str, Any]:
    by = collections.Counter(e["outcome"] for e in done.values())
    result: dict[str, Any] = {
        "mode": mode,
        "passed": by["passed"],
        "failed": by["failed"],
        "skipped": by["skipped"] + by["xfailed"],
    }
    failed = sorted(k for k, e in done.items() if e["outcome"] == "failed")
    if bar is not None:
        result["bar"] = len(bar)
        result["not_run"] = [i for i in bar if i not in done]
        result["skipped_in_bar"] = [i for i in bar if i in done and done[i]["outcome"] in ("skipped", "xfailed")]
    passed = [e for e in done.values() if e["outcome"] == "passed"]
    result["passed_by_section"] = dict(collections.Counter(section(e) for e in passed))
    if substituted:
        result["passed_with_class_under_test"] = sum(
            1 for e in passed if set(e["fixtures"]) & {"client", "async_client"} or any(m.startswith("under-test:") for m in e["made"])
        )
    if substituted and mode != "respx":
        # A drop-in that quietly falls back to httpx2 would pass everything.
        result["passed_through_httpx2"] = sum(1 for e in passed if e["counts"].get("httpx2_wire"))
        result["passed_without_httpx2"] = sum(
            1 for e in passed if e["counts"].get("wire") and not e["counts"].get("httpx2_wire")
        )
    result["failed_ids"] = failed
    return result


Differences = dict[str, set[str]]


def compare(stock: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]], ignore: set[str]) -> Differences:
    """What the other client puts on the wire that the stock client does not, test by test."""
    result: Differences = {}
    for name, entry in other.items():
        base = stock.get(name)
        if base is None or entry["outcome"] != "passed" or base["outcome"] != "passed":
            continue
        found: set[str] = set()
        if len(base["sent"]) != len(entry["sent"]):
            found.add("number of requests")
        for mine, theirs in zip(base["sent"], entry["sent"]):
            found |= {kind for n, kind in ((0, "method"), (1, "target"), (4, "body")) if mine[n] != theirs[n]}
            found |= {f"request header {kind}" for kind in header_differences(mine[2], theirs[2], ignore)}
        if len(base["got"]) != len(entry["got"]):
            found.add("number of responses")
        for mine, theirs in zip(base["got"], entry["got"]):
            found |= {"status"} if mine[0] != theirs[0] else set()
            found |= {f"response header {kind}" for kind in header_differences(mine[1], theirs[1], ignore)}
        result[name] = found
    return result


def header_differences(mine: list[list[str]], theirs: list[list[str]], ignore: set[str]) -> set[str]:
    a = [(k, v) for k, v in mine if k not in ignore]
    b = [(k, v) for k, v in theirs if k not in ignore]
    names_a, names_b = collections.Counter(k for k, _ in a), collections.Counter(k for k, _ in b)
    found = {f"missing: {k}" for k in (names_a - names_b)} | {f"added: {k}" for k in (names_b - names_a)}
    return found | {f"differs: {k}" for k, v in set(a) - set(b) if names_a[k] == names_b[k]}


def wire_diff(found: Differences, noise: Differences) -> dict[str, Any]:
    kinds: dict[str, list[str]] = collections.defaultdict(list)
    for name, differences in found.items():
        for kind in differences - noise.get(name, set()):
            kinds[kind].append(name)
    return {
        "compared": len(found),
        "different": len({name for names in kinds.values() for name in names}),
        "kinds": {k: sorted(v) for k, v in sorted(kinds.items(), key=lambda i: -len(i[1]))},
    }


# -- baselines ----------------------------------------------------------------------------


def make_baseline(options: argparse.Namespace, root: pathlib.Path, base: pathlib.Path) -> dict[str, Any]:
    """Run the stock classes several times; keep what passes every time."""
    report: dict[str, Any] = {"runs": options.runs}
    # tests/api_resources want a mock server, which the unmodified suite does not bring.
    normal = [*selection(root, "all"), "--ignore=tests/api_resources"]
    respx = run(options, root, "respx", normal, None, base / "baseline-respx")
    say(f"respx: {summary('respx', respx, None, False)['passed']} passed")
    report["respx"] = dict(collections.Counter(e["outcome"] for e in respx.values()))

    wires = [run(options, root, "wire", selection(root, "all"), None, base / f"baseline-wire-{n}") for n in range(options.runs)]
    report["wire"] = [dict(collections.Counter(e["outcome"] for e in w.values())) for w in wires]
    steady = [i for i, e in wires[0].items() if all(w.get(i, {}).get("outcome") == "passed" for w in wires)]
    report["wire_unsteady"] = [i for i, e in wires[0].items() if i not in set(steady) and any(w.get(i, {}).get("outcome") == "passed" for w in wires)]
    groups: dict[str, list[str]] = {name: [] for name in SECTIONS}
    for name in steady:
        groups[section(wires[0][name])].append(name)
    # Only tests whose client lost a mock transport, or was moved from another host, differ here.
    candidates = groups["explicit"] + groups["in-process"]
    for name in groups:
        groups[name] = [i for i in groups[name] if not excluded(i, "wire")]
    write_bar(HERE / BARS["wire"], groups)
    report["baseline"] = {k: len(v) for k, v in groups.items()}

    files = sorted({i.partition("::")[0] for i in candidates})
    tunnels = [run(options, root, "tunnel", files, candidates, base / f"baseline-tunnel-{n}") for n in range(options.runs)]
    report["tunnel"] = [dict(collections.Counter(e["outcome"] for e in t.values())) for t in tunnels]
    steady = [
        i
        for i in candidates
        if all(t.get(i, {}).get("outcome") == "passed" and t[i]["counts"].get("tunnel") for t in tunnels)
    ]
    write_bar(HERE / BARS["tunnel"], {"tunnel": steady})
    report["baseline_tunnel"] = len(steady)
    return report


def excluded(name: str, mode: str) -> bool:
    """Whether exclusions.json leaves the test out of this mode ("*" is the only wildcard)."""
    for entry in json.loads((HERE / "exclusions.json").read_text(encoding="utf-8")):
        if entry.get("mode") in (None, mode):
            for pattern in entry["tests"]:
                if re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name):
                    return True
    return False


def write_bar(path: pathlib.Path, groups: dict[str, list[str]]) -> None:
    lines = [f"# openai {VERSION}: tests that pass with the stock classes (run_suite.py --make-baseline)"]
    for name, ids in groups.items():
        lines.append(f"# section {name}: {len(ids)}. {SECTIONS.get(name, '')}".rstrip())
        lines += ids
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


def selection(root: pathlib.Path, name: str) -> list[str]:
    targets = SELECTIONS.get(name) or name.split()
    if name == "all":
        exclusions = json.loads((HERE / "exclusions.json").read_text(encoding="utf-8"))
        files = {t for entry in exclusions if "mode" not in entry for t in entry["tests"] if t.endswith(".py")}
        return ["tests", *(f"--ignore={file}" for file in sorted(files))]
    return [t for t in targets if (root / t.partition("::")[0]).exists()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=pathlib.Path)
    parser.add_argument("--mode", choices=list(MODES), default="wire")
    parser.add_argument("--sync", help="module:Class for openai.OpenAI")
    parser.add_argument("--async", dest="asynchronous", help="module:Class for openai.AsyncOpenAI")
    parser.add_argument("--azure-sync", help="module:Class for openai.AzureOpenAI")
    parser.add_argument("--azure-async", help="module:Class for openai.AsyncAzureOpenAI")
    parser.add_argument("--install", action="append", default=[], help="pip install this first (a wheel, a directory)")
    parser.add_argument("--pythonpath", action="append", default=[], help="where the drop-in's module is, if not installed")
    parser.add_argument("--select", help="core, api or paths: only this part of the bar")
    parser.add_argument("--no-bar", action="store_true", help="run what is selected, whether or not it is in the bar")
    parser.add_argument("--ids", type=pathlib.Path, help="run the tests this file lists")
    parser.add_argument("--port", type=int, default=4010)
    parser.add_argument("--hang", type=float, default=60, help="seconds without progress before a test counts as hung")
    parser.add_argument("--restarts", type=int, default=30, help="how many crashes and hangs to survive")
    parser.add_argument("--compare", action="store_true", help="also compare what is sent with what the stock classes send")
    parser.add_argument("--ignore-header", action="append", default=[], help="leave this header out of --compare")
    parser.add_argument("--make-baseline", action="store_true")
    parser.add_argument("--runs", type=int, default=3, help="runs that --make-baseline intersects")
    parser.add_argument("--out", type=pathlib.Path, help="where to write logs, the ledger and junit.xml")
    options = parser.parse_args()
    options.venv = options.venv.absolute()
    options.fingerprint = options.compare
    options.exit_problems = []
    substituted = bool(options.sync or options.asynchronous or options.azure_sync or options.azure_async)

    root = prepare(options.venv, options.install)
    if options.mode != "respx" and not port_is_free(options.port):
        raise SystemExit(f"127.0.0.1:{options.port} is taken; use --port")
    base = options.venv / "suite"
    if options.make_baseline:
        print(json.dumps(make_baseline(options, root, base)))
        return 0

    bar: list[str] | None = None
    if options.ids:
        bar = read_ids(options.ids)
    elif not options.no_bar and options.mode in BARS:
        bar = read_ids(HERE / BARS[options.mode])
    if options.select and bar is not None:
        parts = SELECTIONS.get(options.select) or options.select.split()
        bar = [i for i in bar if any(i == p or i.startswith((p.rstrip("/") + "/", p + "::", p + "[")) for p in parts)]
    if bar is not None:
        targets = sorted({i.partition("::")[0] for i in bar})
    else:
        targets = selection(root, options.select or "core")
    out = options.out.absolute() if options.out else base / ("out-" + options.mode)
    done = run(options, root, options.mode, targets, bar, out)
    result = summary(options.mode, done, bar, substituted)
    if options.compare and substituted:
        plain = argparse.Namespace(**{**vars(options), "sync": None, "asynchronous": None, "azure_sync": None, "azure_async": None})
        stock = run(plain, root, options.mode, targets, bar, out / "stock")
        ignored = {name.lower() for name in options.ignore_header}
        found = compare(stock, done, ignored)
        doubtful = [name for name, kinds in found.items() if kinds]
        noise: Differences = {}
        if doubtful:  # does the stock client differ from itself here? (times inside a zip)
            files = sorted({i.partition("::")[0] for i in doubtful})
            noise = compare(stock, run(plain, root, options.mode, files, doubtful, out / "again"), ignored)
        result["wire_diff"] = wire_diff(found, noise)
    if options.exit_problems:
        result["exit_problems"] = options.exit_problems
    result["junit"] = str(out / "junit.xml")
    (out / "summary.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    for name in result["failed_ids"][:40]:
        say(f"FAILED {name}: {done[name].get('detail', '').splitlines()[0] if done[name].get('detail') else ''}")
    print(json.dumps(result))
    wrong = ("failed", "not_run", "skipped_in_bar", "exit_problems")
    return 1 if any(result.get(key) for key in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())

"""tidegate beside its peers on one fault server; see README.md.

CPU is the client process's user and system time, all threads, after a warm-up. The contenders take turns in
rounds, and ratios are taken within a round, so that what disturbs the machine disturbs all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chat
import processes
from streams import CHUNKS, RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
RAW = "reqwest_raw"
# Name, what it is, calls for each 20 of the plan: the official client needs fifty times as long for a call.
LOADED = (
    (RAW, "raw Rust reqwest, no Python", 20),
    ("tidegate_on", "tidegate AsyncClient, every gate on", 20),
    ("tidegate_off", "tidegate AsyncClient, every gate off", 20),
    ("tidegate_sync", "tidegate Client, 8 threads, every gate on", 20),
    ("drop_in", "tidegate AsyncOpenAI, every gate on", 20),
    ("drop_in_sync", "tidegate OpenAI, 8 threads, every gate on", 20),
    ("pyreqwest", "pyreqwest", 20),
    ("aiohttp", "aiohttp + orjson", 20),
    ("openai", "openai AsyncOpenAI", 1),
    ("openai_sync", "openai OpenAI, 8 threads", 1),
)
# Contenders that read streams, and how many each worker reads.
STREAMED = (("drop_in_streamed", 4), ("openai_streamed", 1))
ALONE = (RAW, "tidegate_on", "aiohttp")
THREADS = 8
# Between two chunks of a stream: as models write them, and as fast as they can be sent.
STREAM_DELAYS_MS = (20, 0)


def percentile(values: list[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def measure(raw: Path, url: str, name: str, calls: int, in_flight: int) -> dict[str, float]:
    """Run one contender once; microseconds."""
    warm_up = max(in_flight, calls // 10)
    if name == RAW:
        body = json.dumps(chat.REQUEST, separators=(",", ":"))
        got = processes.result(raw, url, body, calls, in_flight, warm_up)
    else:
        got = processes.result("contenders.py", name, url, calls, in_flight, warm_up)
    latencies = got["latencies_s"]
    return {
        "cpu_us": got["cpu_s"] / len(latencies) * 1e6,
        "wall_us": got["wall_s"] / len(latencies) * 1e6,
        "p50_us": percentile(latencies, 0.5) * 1e6,
        "p99_us": percentile(latencies, 0.99) * 1e6,
    }


def summary(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return each contender's medians, and the median of its ratios to raw reqwest within a round."""
    table = {}
    for name in rounds[0]:
        row = {key: statistics.median(each[name][key] for each in rounds) for key in rounds[0][name]}
        row["cpu_ratio"] = statistics.median(each[name]["cpu_us"] / each[RAW]["cpu_us"] for each in rounds)
        table[name] = row
    return table


def many_streams(streams: int, chunk_delay_ms: float) -> dict[str, float]:
    """Measure streams that end in every way, the chunks of each so far apart."""
    with processes.server(rules=RULES, chunk_delay_ms=chunk_delay_ms) as server:
        return processes.result("streams.py", server.url, streams)


def import_ms(statement: str, repeat: int) -> float:
    """Return the median CPU time of an import in a fresh interpreter, in milliseconds."""
    code = f"import time; a = time.process_time(); {statement}; print(time.process_time() - a)"
    times = []
    for _ in range(repeat):
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
        times.append(float(done.stdout) * 1e3)
    return statistics.median(times)


def many_in_flight(calls: int, latency_s: float) -> dict[str, float]:
    """Measure memory and lag, and make sure that the calls were in flight together."""
    with processes.server(latency_ms=latency_s * 1e3) as server:
        found: dict[str, float] = processes.result("in_flight.py", server.url, calls)
        found["in_flight"] = server.requests()["max_in_flight"]
    return found


def build_raw() -> Path:
    """Build the yardstick; the path of the program."""
    command = ["cargo", "build", "--release", "--example", RAW, "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    built = [json.loads(line) for line in done.stdout.splitlines()]
    return next(Path(each["executable"]) for each in built if each.get("executable"))


def told(message: str) -> None:
    """Tell how far it is."""
    print(message, file=sys.stderr, flush=True)


def compare(raw: Path, plan: argparse.Namespace) -> dict[str, Any]:
    """Run everything; the figures."""
    loaded, alone = [], []
    names = [row for row in LOADED if not plan.only or row[0] in {RAW, *plan.only}]
    with processes.server() as server:
        for number in range(plan.rounds):
            told(f"round {number + 1} of {plan.rounds}")
            loaded.append(
                {
                    name: measure(
                        raw,
                        server.url,
                        name,
                        max(plan.calls * share // 20, 2 * plan.in_flight),
                        THREADS if name.endswith("_sync") else plan.in_flight,
                    )
                    for name, _, share in names
                }
            )
            alone.append({name: measure(raw, server.url, name, plan.calls // 10, 1) for name in ALONE})
    figures: dict[str, Any] = {"loaded": summary(loaded), "alone": summary(alone)}
    if not plan.only:
        told("streams beside the official client's")
        figures["chunk_us"] = chunks(raw, plan)
        told("many in flight, streams, tools, imports")
        figures["many"] = many_in_flight(plan.many, plan.many_latency)
        figures["streams"] = [many_streams(plan.streams, delay) for delay in STREAM_DELAYS_MS]
        figures["once"] = processes.result("once.py", plan.calls)
        figures["import_ms"] = {
            "import tidegate": import_ms("import tidegate", plan.imports),
            "import openai": import_ms("import openai", max(1, plan.imports // 4)),
        }
    return figures


def chunks(raw: Path, plan: argparse.Namespace) -> dict[str, float]:
    """Return the CPU of a streamed chunk for each contender, the median of rounds, in microseconds."""
    with processes.server(usage={"completion_tokens": CHUNKS}) as server:
        rounds = [
            {
                name: measure(raw, server.url, name, plan.in_flight * share, plan.in_flight)["cpu_us"]
                / CHUNKS
                for name, share in STREAMED
            }
            for _ in range(max(1, plan.rounds // 2))
        ]
    return {name: statistics.median(each[name] for each in rounds) for name, _ in STREAMED}


def tables(figures: dict[str, Any]) -> Iterator[list[list[str]]]:
    """Yield tables of texts, the head first."""
    titles = {name: title for name, title, _ in LOADED}
    for key, caption in (("loaded", "many in flight"), ("alone", "one in flight")):
        table = [[caption, "CPU a call, µs", "of raw reqwest", "wall a call, µs", "p50, µs", "p99, µs"]]
        for name, row in figures[key].items():
            times = [f"{row[time]:.1f}" for time in ("cpu_us", "wall_us", "p50_us", "p99_us")]
            table.append([titles[name], times[0], f"{row['cpu_ratio']:.2f}x", *times[1:]])
        yield table


def facts(figures: dict[str, Any]) -> Iterator[str]:
    """Yield what fits no table, a sentence each."""
    loaded, alone = figures["loaded"], figures["alone"]
    if {"tidegate_on", "tidegate_off"} <= loaded.keys():
        gates = loaded["tidegate_on"]["cpu_us"] - loaded["tidegate_off"]["cpu_us"]
        yield f"every gate, through Python: {gates:.1f} µs of CPU a call"
    added = alone["tidegate_on"]["p50_us"] - alone[RAW]["p50_us"]
    yield f"added to the latency of raw reqwest, one call in flight, p50: {added:.0f} µs"
    if chunk := figures.get("chunk_us"):
        ours, theirs = chunk["drop_in_streamed"], chunk["openai_streamed"]
        yield (
            f"a streamed chunk, many streams at once: {ours:.1f} µs of CPU through tidegate AsyncOpenAI, "
            f"{theirs:.1f} µs through openai AsyncOpenAI ({theirs / ours:.1f} times as much)"
        )
    if many := figures.get("many"):
        yield (
            f"{many['in_flight']:,.0f} in flight: {many['bytes_per_call'] / 1024:.1f} KiB each; loop lag "
            f"p99 {many['lag_p99_s'] * 1e3:.1f} ms, at most {many['lag_max_s'] * 1e3:.1f} ms"
        )
    for delay, found in zip(STREAM_DELAYS_MS, figures.get("streams", []), strict=False):
        yield (
            f"{found['streams']:,} streams through the drop-in, a chunk each {delay} ms: "
            f"{found['cpu_us_per_chunk']:.1f} µs of CPU a chunk; loop lag "
            f"p50 {found['lag_p50_s'] * 1e3:.1f} ms, p99 {found['lag_p99_s'] * 1e3:.1f} ms, "
            f"at most {found['lag_max_s'] * 1e3:.1f} ms"
        )
    if once := figures.get("once"):
        yield (
            f"a function under a key of its own, store in memory: {once['once_us']:.1f} µs of CPU a call, "
            f"{once['once_async_us']:.1f} µs if it is async"
        )
    for name, milliseconds in figures.get("import_ms", {}).items():
        yield f"`{name}`: {milliseconds:.1f} ms of CPU"


def where(plan: argparse.Namespace) -> str:
    """Return on what, with what and how often it was measured."""
    models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    peers = ("pyreqwest", "aiohttp", "orjson", "openai")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("tidegate", *peers))
    return (
        f"{os.cpu_count()} cores of {models[0] if models else platform.machine()}; Python "
        f"{platform.python_version()}, {versions}; {plan.rounds} round(s) of {plan.calls:,} calls, "
        f"{plan.in_flight} in flight."
    )


def show(figures: dict[str, Any], *, markdown: bool) -> None:
    """Print the figures, aligned for a terminal or in Markdown."""
    for table in tables(figures):
        widths = [0 if markdown else max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [[f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)] for row in table]
        if markdown:
            lines.insert(1, ["---", *["--:"] * (len(widths) - 1)])
        print()
        for cells in lines:
            print(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells).rstrip())
    print()
    for fact in facts(figures):
        print(f"- {fact}")


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=20_000, help="of each contender and round")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of 500 calls: does everything run?")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these contenders beside raw reqwest")
    parser.add_argument("--raw", type=Path, help="reqwest_raw, built; default: cargo builds it")
    parser.add_argument("--markdown", action="store_true", help="print the tables for README.md")
    parser.add_argument("--json", type=Path, help="file for the figures")
    plan = parser.parse_args()
    plan.many, plan.many_latency, plan.imports, plan.streams = 10_000, 8.0, 21, 500
    if plan.quick:
        plan.streams = 20
        plan.calls, plan.rounds, plan.many, plan.many_latency, plan.imports = 500, 1, 500, 1.0, 1
    figures = compare(plan.raw or build_raw(), plan)
    print(where(plan))
    show(figures, markdown=plan.markdown)
    if plan.json:
        plan.json.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""Speed and peak memory of ``tidegate doctor`` on a log of a gigabyte.

    python benches/doctor.py [--megabytes 1000] [--files 8] [--keep FOLDER]

The log holds distinct trace ids, fingerprints and keys, as a real one does: what is remembered per request
must not grow with it. Run it with a release build.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CALLS_PER_SECOND = 100
_MODEL = "gpt-5.4-mini"


def _records(rng: random.Random, gate: str, ts: float) -> Iterator[dict[str, object]]:
    """Return the records of one call; one in thirty fails once, one in fifty runs a tool."""
    latency, fingerprint = rng.uniform(0.3, 4.0), f"{rng.getrandbits(64):016x}"
    trace = f"{rng.getrandbits(128):032x}"

    def record(event: str, ts: float, **facts: object) -> dict[str, object]:
        about = {"gate": gate, "trace_id": trace, "origin": "https://api.example.com", "model": _MODEL}
        return {"schema": 1, "ts": ts, "event": event, **about, **facts}

    attempts = 1
    if rng.random() < 1 / 30:
        attempts = 2
        yield record("attempt", ts, attempt=1, outcome="server_error", status=503, latency_s=0.2)
        yield record("retry", ts, attempt=2, reason="server_error", delay_s=rng.uniform(0, 0.2))
    ts += latency
    answered = {"outcome": "success", "status": 200, "request_id": f"req_{trace[:20]}"}
    yield record("attempt", ts, attempt=attempts, **answered, latency_s=latency)
    tokens = {"prompt_tokens": 812, "cached_tokens": 0, "completion_tokens": 155, "reasoning_tokens": 0}
    bill = {"usage": "reported", "cost_usd": "0.000573", "fingerprint": fingerprint}
    times = {"latency_s": latency, "first_byte_s": latency / 3, "queue_s": 0.0}
    yield record("call", ts, attempts=attempts, outcome="ok", **times, **tokens, **bill)
    if rng.random() < 1 / 50:
        ids = {"fingerprint": fingerprint, "idempotency_key": f"{rng.getrandbits(64):016x}"}
        yield record("tool", ts, tool="charge", outcome="ok", latency_s=0.1, **ids)


def _write(path: Path, size: int, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 no secret
    encode = json.JSONEncoder(separators=(",", ":")).encode
    gate, ts, written = f"{rng.getrandbits(64):016x}", 1_750_000_000.0, 0
    with path.open("w", encoding="ascii") as file:
        while written < size:
            ts += rng.expovariate(_CALLS_PER_SECOND)
            written += file.write("".join(f"{encode(record)}\n" for record in _records(rng, gate, ts)))


def _measure(files: list[Path]) -> None:
    begun = time.perf_counter()
    command = [sys.executable, "-m", "tidegate", "doctor", "--json", *map(str, files)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    seconds = time.perf_counter() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(ended.stdout)
    size = sum(file.stat().st_size for file in files)
    print(f"{size / 1e6:,.0f} MB in {len(files)} file(s), {report['records']:,} records")
    print(f"exit status {ended.returncode}; {[f['name'] + ': ' + f['verdict'] for f in report['findings']]}")
    print(f"{seconds:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU: {size / 1e6 / seconds:,.0f} MB/s")
    print(f"peak memory {used.ru_maxrss / 1024:,.0f} MiB")


def main() -> None:
    """Write the log, have it read, print what it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="Folder for the log. Default: a temporary one.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{number}.jsonl" for number in range(arguments.files)]
        for number, file in enumerate(files):
            _write(file, arguments.megabytes * 1_000_000 // len(files), number)
        _measure(files)


if __name__ == "__main__":
    main()

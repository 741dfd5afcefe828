"""Works off calls of mixed size against a fault server that enforces a quota and announces it.

As a program: the figures that are promised, with a quota of 6,000 requests and 1,200,000 tokens a minute, in
one process and in four; exits with 1 where one is missed.
"""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass

from tidegate import AsyncClient, Gate
from tidegate.testing import FaultServer

RPM, TPM = 6_000, 1_200_000
BURST_S = 1.0
# Tokens of prompt and completion, and the limit on the latter that the request names.
SIZES = ((100, 20, 40), (200, 60, 100), (400, 100, 250), (40, 5, 16))


@dataclass
class Worked:
    """How it went."""

    seconds: float
    least_seconds: float
    failed: int
    refused: float

    @property
    def ratio(self):
        """The time beyond the burst, as a multiple of what the quota alone needs for all calls."""
        return (self.seconds - BURST_S) / self.least_seconds

    def __str__(self):
        return (
            f"{self.seconds:.2f} s, of which the quota alone needs {self.least_seconds:.2f} s: "
            f"{self.ratio:.3f} beyond {BURST_S:g} s; {self.refused:.2%} of the answers were 429, "
            f"{self.failed} calls failed"
        )


def request(number):
    prompt, _, limit = SIZES[number % len(SIZES)]
    message = {"role": "user", "content": "word " * (prompt * 4 // 5)}
    return {"model": "m", "messages": [message], "max_tokens": limit}


async def work(url, numbers, tasks):
    """Make the calls from so many tasks at once; return how many failed."""
    failed = 0
    async with AsyncClient(url, "k", gate=Gate()) as client:

        async def task():
            nonlocal failed
            for number in numbers:
                size = str(number % len(SIZES))
                try:
                    await client.post("/chat/completions", json=request(number), headers={"x-size": size})
                except Exception as error:  # noqa: BLE001 counted
                    failed += 1
                    sys.stderr.write(f"{error}\n")

        numbers = iter(numbers)
        await asyncio.gather(*(task() for _ in range(tasks)))
    return failed


def run(*, processes, calls, tasks=200, latency_ms=(20, 200), least=BURST_S):
    """Work off `calls` in so many processes, which know nothing of each other."""
    rules = [
        {
            "match": {"header": {"x-size": str(index)}},
            "respond": {"usage": {"prompt_tokens": p, "completion_tokens": c}},
        }
        for index, (p, c, _) in enumerate(SIZES)
    ]
    quota = {"rpm": RPM, "tpm": TPM, "burst_s": least}
    with FaultServer(rules=rules, quota=quota, latency_ms=latency_ms) as server:
        workers = [
            subprocess.Popen(  # noqa: S603 this file
                [
                    sys.executable,
                    __file__,
                    server.url,
                    str(first),
                    str(calls),
                    str(processes),
                    str(tasks // processes),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for first in range(processes)
        ]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        began = time.monotonic()
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
        failed = sum(json.loads(worker.communicate()[0]) for worker in workers)
        seconds = time.monotonic() - began
        by_status = server.ledger["requests"]["by_status"]
    tokens = sum(sum(SIZES[number % len(SIZES)][:2]) for number in range(calls))
    return Worked(
        seconds=seconds,
        least_seconds=60 * max(calls / RPM, tokens / TPM),
        failed=failed,
        refused=by_status.get("429", 0) / sum(by_status.values()),
    )


def _worker(url, first, calls, processes, tasks):
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    failed = asyncio.run(work(url, range(int(first), int(calls), int(processes)), int(tasks)))
    sys.stdout.write(f"{failed}\n")


def main():
    missed = False
    for processes, ratio, refused in [(1, 1.05, 0.001), (4, 1.15, 0.01)]:
        worked = run(processes=processes, calls=2_000)
        missed |= worked.failed > 0 or worked.ratio > ratio or worked.refused > refused
        promised = f"2,000 calls, {processes} process(es), at most {ratio} and {refused:.1%}"
        sys.stdout.write(f"{promised}: {worked}\n")
        sys.stdout.flush()
    sys.exit(missed)


if __name__ == "__main__":
    _worker(*sys.argv[1:]) if len(sys.argv) > 1 else main()

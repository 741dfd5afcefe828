"""What `Gate.once` adds to a function: ``once.py CALLS`` prints the CPU of a call as JSON; in memory."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import tidegate


def refund(order_id: str, amount: int) -> dict[str, object]:
    """Stand for a tool, as far as its arguments and its result go."""
    return {"receipt": order_id, "amount": amount}


async def refund_async(order_id: str, amount: int) -> dict[str, object]:
    """Stand for a tool that awaits."""
    return refund(order_id, amount)


def run(calls: int) -> dict[str, float]:
    """Measure both kinds after a warm-up, each call under a key of its own; microseconds."""
    gate = tidegate.Gate()

    def plain(prefix: str) -> None:
        for number in range(calls):
            gate.once(f"{prefix}{number}", refund, f"order-{number}", amount=1999)

    async def awaited(prefix: str) -> None:
        for number in range(calls):
            await gate.once(f"{prefix}{number}", refund_async, f"order-{number}", amount=1999)

    plain("warm-up")
    start = time.process_time()
    plain("plain")
    between = time.process_time()
    asyncio.run(awaited("async"))
    end = time.process_time()
    return {"once_us": (between - start) / calls * 1e6, "once_async_us": (end - between) / calls * 1e6}


if __name__ == "__main__":
    json.dump(run(int(sys.argv[1])), sys.stdout)

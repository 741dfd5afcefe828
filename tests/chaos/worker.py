"""One worker: tries its actions until each has a final outcome, and dies now and then."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from run import LEASE_S, WORKERS, key_of

import idem_workers
from tidegate import Gate, IdempotencyConflictError, OutcomeUnknownError, StoreUnavailableError

# The share of calls in which the worker kills itself at a named point.
DEATHS = 0.04


def main(*arguments: str) -> None:
    url, directory, number, actions, classes, seed = arguments
    folder, me = Path(directory), int(number)
    rng = random.Random(float(seed))  # noqa: S311
    names = classes.split(",")
    final = {line["action"] for line in idem_workers.effects(folder / f"outcomes{me}")}
    # Each action belongs to two workers.
    mine = [action for action in range(int(actions)) if action % (WORKERS // 2) == me % (WORKERS // 2)]
    gate = Gate(store=url)
    while True:
        open_actions = [action for action in mine if action not in final]
        if not open_actions:
            return
        rng.shuffle(open_actions)
        for action in open_actions:
            outcome = attempt(gate, folder, me, action, names[action % len(names)], rng)
            if outcome is not None:
                idem_workers.effect(folder / f"outcomes{me}", action=action, outcome=outcome)
                final.add(action)


def attempt(gate, folder, me, action, effect, rng):  # noqa: PLR0917 the parts of one call
    """Make one call; return its outcome if that is final."""
    point = None
    if rng.random() < DEATHS:
        point = rng.choice(idem_workers.POINTS)
        # Told before it happens: afterwards there is nobody to tell.
        idem_workers.effect(folder / f"deaths{me}", point=point)
        if point != "mid_effect":
            idem_workers.kill_at(point)
    try:
        idem_workers.call(
            gate,
            key_of(action),
            effect,
            str(folder / "effects"),
            point,
            lease=LEASE_S,
            wait=0.3,
            retention=86_400.0,
        )
    except (IdempotencyConflictError, StoreUnavailableError):
        return None
    except OutcomeUnknownError:
        return "in_doubt"
    return "done"


if __name__ == "__main__":
    main(*sys.argv[1:])

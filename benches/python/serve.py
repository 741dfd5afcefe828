"""The fault server in a process of its own, so that no contender pays for it.

``serve.py SETTINGS`` prints its URL, then answers each line of standard input with the ledger's counts as one
line of JSON, until the input ends.
"""

from __future__ import annotations

import json
import sys

from open_files import allow_many

from tidegate.testing import FaultServer


def main() -> None:
    """Serve until standard input ends."""
    allow_many()
    with FaultServer(**json.loads(sys.argv[1])) as server:
        print(server.url, flush=True)
        for _ in sys.stdin:
            print(json.dumps(server.ledger["requests"]), flush=True)


if __name__ == "__main__":
    main()

"""The command ``tidegate``: finds out whether what it needs is installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command."""
    try:
        from tidegate._commands import tidegate
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"click", "rich"}:
            raise
        sys.exit(f"tidegate: the command needs {error.name}: pip install 'tidegate[cli]'")
    tidegate(prog_name="tidegate")


if __name__ == "__main__":
    main()

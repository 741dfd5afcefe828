"""``python -m tidegate``."""

from tidegate._cli import main

main()

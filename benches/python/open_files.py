"""Each call in flight is an open file on either side."""

from __future__ import annotations

import resource


def allow_many() -> None:
    """Raise this process's limit on open files as far as the system lets it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

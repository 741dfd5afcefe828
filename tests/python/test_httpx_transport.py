"""The engine as a transport of httpx2 and of legacy httpx."""

import http.server
import json
import ssl
import threading

import httpx
import httpx2
import openai
import pytest
import trustme

import tidegate
from tidegate import BreakerPolicy, Gate
from tidegate.httpx import AsyncTransport, Transport

BODY = {"model": "m", "messages": []}
SOON = {"retry-after-ms": "1"}


@pytest.fixture(params=[httpx2, httpx], ids=["httpx2", "httpx"])
def library(request):
    return request.param


@pytest.fixture(params=["sync", "async"])
def post(request, library, server):
    """Post a body and return the answer, by either client."""

    async def post_sync(gate, path="/chat/completions", **options):
        with library.Client(transport=Transport(gate)) as client:
            return client.post(f"{server.url}{path}", json=BODY, **options)

    async def post_async(gate, path="/chat/completions", **options):
        async with library.AsyncClient(transport=AsyncTransport(gate)) as client:
            return await client.post(f"{server.url}{path}", json=BODY, **options)

    return post_sync if request.param == "sync" else post_async


async def test_answers(post, library, server):
    server.script([{"status": 500, "headers": SOON}])
    answer = await post(Gate())
    assert isinstance(answer, library.Response)
    assert (answer.status_code, answer.json()["model"]) == (200, "m")
    assert tidegate.info(answer).attempts == 2
    assert answer.elapsed.total_seconds() > 0


async def test_the_last_error_is_an_answer(post, server):
    server.script([{"status": 503, "headers": SOON}], repeat_last=True)
    answer = await post(Gate(retry=tidegate.RetryPolicy(max_attempts=2)))
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "false")
    assert server.ledger["requests"]["total"] == 2


async def test_an_outer_loop_is_not_multiplied(post, server):
    server.script([{"status": 503, "headers": SOON}], repeat_last=True)
    await post(Gate(), headers={"x-stainless-retry-count": "1"})
    assert server.ledger["requests"]["total"] == 1


async def test_timeouts_are_the_librarys(post, library, server):
    server.script([{"delay_s": 30}], repeat_last=True)
    with pytest.raises(library.ReadTimeout) as caught:
        await post(Gate(retry=None), timeout=0.1)
    assert isinstance(caught.value, tidegate.APITimeoutError)
    assert caught.value.attempts == 1


async def test_refusals_are_transport_errors(post, library, server):
    server.script([{"status": 500}], repeat_last=True)
    gate = Gate(retry=None, breaker=BreakerPolicy(window=0.1, minimum_calls=1, consecutive_hits=1, recency=0))

    async def refused():
        while True:
            try:
                await post(gate)
            except library.TransportError as error:
                return error

    assert isinstance(await refused(), tidegate.CircuitOpenError)


async def test_no_server(library):
    with (
        pytest.raises(library.ConnectError) as caught,
        library.Client(transport=Transport(Gate(retry=None))) as client,
    ):
        client.get("http://127.0.0.1:1/")
    assert isinstance(caught.value, tidegate.APIConnectionError)


def test_the_stock_sdk_over_the_transport(server):
    server.script([{"status": 500}], repeat_last=True)
    gate = Gate(retry=None, breaker=BreakerPolicy(window=0.1, minimum_calls=1, consecutive_hits=1, recency=0))
    client = openai.OpenAI(
        base_url=server.url, api_key="k", max_retries=0, http_client=httpx2.Client(transport=Transport(gate))
    )

    def refused():
        while True:
            try:
                client.chat.completions.create(**BODY)
            except openai.APIConnectionError as error:
                return error
            except openai.InternalServerError:
                pass

    error = refused()
    assert isinstance(error, tidegate.CircuitOpenError)
    assert error.reason == "breaker_open"


async def test_bodies_come_in_pieces(server):
    server.script([{"chunk_delay_s": 0.05}])
    asked = {**BODY, "stream": True}
    async with (
        httpx2.AsyncClient(transport=AsyncTransport(Gate())) as client,
        client.stream("POST", f"{server.url}/chat/completions", json=asked) as answer,
    ):
        pieces = [piece async for piece in answer.aiter_raw()]
    assert len(pieces) > 2
    assert b"".join(pieces).rstrip().endswith(b"[DONE]")


async def test_leaving_a_stream_closes_its_connection(server, wait_until):
    server.script([{"chunk_delay_s": 5}])
    asked = {**BODY, "stream": True}
    async with httpx2.AsyncClient(transport=AsyncTransport(Gate())) as client:
        async with client.stream("POST", f"{server.url}/chat/completions", json=asked) as answer:
            async for _ in answer.aiter_raw():
                break
        wait_until(lambda: server.ledger["requests"]["in_flight"] == 0)


class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        location = self.server.moved.pop(0) if self.server.moved else None
        self.send_response(307 if location else 200)
        if location:
            self.send_header("location", location)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


@pytest.fixture
def echoes():
    """Start servers that note what they are sent, and may redirect."""
    started = []

    def start(context=None, moved=()):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
        server.seen, server.moved = [], list(moved)
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def client_of(server, cls=tidegate.OpenAI, **settings):
    return cls(
        **{
            "base_url": f"http://127.0.0.1:{server.server_port}/v1",
            "api_key": "k",
            "gate": Gate(),
            **settings,
        }
    )


def test_credentials_do_not_cross_to_another_origin(echoes):
    other = echoes()
    server = echoes(moved=["/v1/moved", f"http://127.0.0.1:{other.server_port}/v1/models"])
    client_of(server).get("/models", cast_to=object)
    assert [path for path, _ in server.seen] == ["/v1/models", "/v1/moved"]
    assert server.seen[1][1]["authorization"] == "Bearer k"
    assert "authorization" not in other.seen[0][1]


def test_azure_keys_do_not_cross_either(echoes):
    other = echoes()
    server = echoes(moved=[f"http://127.0.0.1:{other.server_port}/v1/models"])
    client_of(server, tidegate.AzureOpenAI, api_version="1").get("/models", cast_to=object)
    assert server.seen[0][1]["api-key"] == "k"
    assert "api-key" not in other.seen[0][1]


def test_tls_is_checked(echoes, tmp_path, monkeypatch):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = echoes(context)
    url = f"https://127.0.0.1:{server.server_port}/v1"
    with pytest.raises(openai.APIConnectionError):
        client_of(server, base_url=url, max_retries=0).get("/models", cast_to=object)
    bundle = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(bundle)
    with httpx2.Client(transport=Transport(Gate(), ca_bundle=bundle)) as client:
        assert client.get(f"{url}/models").status_code == 200
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    client_of(server, base_url=url, max_retries=0).get("/models", cast_to=object)


def test_a_proxy_of_the_environment_is_used(echoes, monkeypatch):
    proxy = echoes()
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.server_port}")
    client_of(proxy, base_url="http://api.example.test/v1").get("/models", cast_to=object)
    assert proxy.seen[0][0] == "http://api.example.test/v1/models"


async def test_connections_are_kept(server):
    client = tidegate.AsyncOpenAI(base_url=server.url, api_key="k", gate=Gate())
    for _ in range(5):
        await client.chat.completions.create(**BODY)
        await client.with_options(timeout=5).chat.completions.create(**BODY)
    assert server.ledger["connections"]["opened"] == 1


async def test_limits_bound_what_is_in_flight(server):
    import asyncio

    server.script(rules=[{"respond": {"delay_s": 0.05}}])
    gate = Gate(limits=tidegate.Limits(concurrency=3))
    client = tidegate.AsyncOpenAI(base_url=server.url, api_key="k", gate=gate)
    await asyncio.gather(*(client.chat.completions.create(**BODY) for _ in range(12)))
    assert server.ledger["requests"]["max_in_flight"] == 3


@pytest.mark.parametrize("path", ["/files/%2e%2e", "/files/%2E./x", "/%2e/files", "/a\\b"])
async def test_a_request_never_goes_elsewhere_than_it_says(post, server, path):
    """URL parsers resolve these; httpx and the official client send them as they are."""
    with pytest.raises(tidegate.ConfigError, match="no segment"):
        await post(Gate(), path=path)
    client = tidegate.OpenAI(base_url=server.url, api_key="k", gate=Gate())
    with pytest.raises(ValueError, match="no segment"):
        client.get(path, cast_to=object)
    assert server.ledger["requests"]["total"] == 0


def test_large_answers_come_in_pieces_that_can_be_held(library, server):
    text = "x" * (3 << 20)
    server.script([{"body_json": {"text": text}}])
    with library.Client(transport=Transport(Gate())) as client:
        answer = client.send(client.build_request("POST", f"{server.url}/anything"), stream=True)
        pieces = list(answer.iter_bytes())
    assert max(map(len, pieces)) <= 1 << 20
    assert json.loads(b"".join(pieces)) == {"text": text}

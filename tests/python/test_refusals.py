"""What cannot be is refused before anything is sent, by field, value and rule; secrets are never shown."""

import asyncio
import io
import logging
import math
import traceback

import pytest

from tidegate import (
    AsyncClient,
    BreakerPolicy,
    Client,
    ConfigError,
    Gate,
    JSONFormatter,
    Limits,
    RetryBudget,
    RetryPolicy,
    TidegateError,
    Timeouts,
    info,
)
from tidegate.testing import FaultServer

SECRET = "s3cr3t"  # noqa: S105 it is what is looked for
BODY = {"model": "m", "messages": []}


def refusal(make):
    with pytest.raises(ConfigError) as caught:
        make()
    error = caught.value
    assert error.rule
    assert error.field in str(error)
    assert SECRET not in "".join(traceback.format_exception(error)) + repr(error)
    return error


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (lambda: RetryPolicy(base=-1), "retry.base", "-1"),
        (lambda: RetryPolicy(base=math.nan), "retry.base", "NaN"),
        (lambda: RetryPolicy(max_attempts=0), "retry.max_attempts", "0"),
        (lambda: RetryPolicy(max_attempts=-1), "retry.max_attempts", "-1"),
        (lambda: RetryPolicy(max_attempts=2.5), "retry.max_attempts", "2.5"),
        (lambda: Timeouts(total=0), "timeouts.total", "0"),
        (lambda: Timeouts(attempt=math.inf), "timeouts.attempt", "inf"),
        (lambda: Timeouts(connect="5"), "timeouts.connect", "'5'"),
        (lambda: Limits(rpm=0), "limits.rpm", "0"),
        (lambda: Limits(rpm=-1), "limits.rpm", "-1"),
        (lambda: Limits(tpm=0), "limits.tpm", "0"),
        (lambda: Limits(tpm=math.nan), "limits.tpm", "nan"),
        (lambda: Limits(concurrency=0), "limits.concurrency", "0"),
        (lambda: Limits(headroom=1), "limits.headroom", "1"),
        (lambda: Limits(headroom=math.nan), "limits.headroom", "NaN"),
        (lambda: BreakerPolicy(failure_rate_threshold=0), "breaker.failure_rate_threshold", "0"),
        (lambda: RetryBudget(deposit=math.nan), "retry_budget.deposit", "NaN"),
        (lambda: RetryPolicy(attempts=3), "retry.attempts", 3),
        (lambda: Gate(limit="auto"), "limit", "auto"),
        (lambda: Gate(limits={"[": None}), "limits", "["),
        (lambda: Gate(log_file="/nonexistent/log"), "log_file", "/nonexistent/log"),
        (lambda: Gate(log_file="/"), "log_file", "/"),
        (lambda: Gate(log_file=5), "log_file", "5"),
        (lambda: Gate(seed=-1), "seed", "-1"),
        (lambda: Gate(seed="x"), "seed", "'x'"),
    ],
)
def test_gates_and_policies(make, field, value):
    error = refusal(make)
    assert (error.field, error.value) == (field, value)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"base_url": "api.example.com/v1"}, "base_url"),
        ({"base_url": "ftp://example.com"}, "base_url"),
        ({"base_url": "http://"}, "base_url"),
        ({"base_url": "http://[::1"}, "base_url"),
        ({"base_url": "http://example.com:99999"}, "base_url"),
        ({"base_url": f"http://user:{SECRET}@example.com/v1"}, "base_url"),
        ({"base_url": f"http://user:{SECRET}@[::1"}, "base_url"),
        ({"base_url": f"ftp://user:p@{SECRET}@example.com"}, "base_url"),
        ({"base_url": SECRET.encode()}, "base_url"),
        ({"api_key": None}, "api_key"),
        ({"api_key": ""}, "api_key"),
        ({"api_key": f"{SECRET}\n"}, "api_key"),
        ({"api_key": f"{SECRET} "}, "api_key"),
        ({"api_key": f"é{SECRET}"}, "api_key"),
        ({"api_key": SECRET.encode()}, "api_key"),
        ({"headers": {"x-token": f"{SECRET}\n"}}, 'headers["x-token"]'),
        ({"headers": {"x-token": SECRET.encode()}}, "headers['x-token']"),
        ({"headers": {"x-token": None}}, "headers['x-token']"),
        ({"headers": {"x token": SECRET}}, "headers"),
        ({"headers": {1: SECRET}}, "headers[1]"),
        ({"headers": SECRET}, "headers"),
        ({"proxy": f":::{SECRET}"}, "proxy"),
        ({"proxy": f"http://user:{SECRET}@example.com:99999"}, "proxy"),
        ({"proxy": ""}, "proxy"),
        ({"proxy": "proxy.example.com:3128"}, "proxy"),
        ({"proxy": f"user:{SECRET}@proxy.example.com:3128"}, "proxy"),
        ({"proxy": f"ftp://user:{SECRET}@proxy.example.com"}, "proxy"),
        ({"proxy": f"socks4://{SECRET}@proxy.example.com"}, "proxy"),
        ({"proxy": f"socks5://user:{SECRET}@"}, "proxy"),
        ({"proxy": SECRET.encode()}, "proxy"),
        ({"ca_bundle": "/nonexistent/ca.pem"}, "ca_bundle"),
        ({"ca_bundle": "/dev/null"}, "ca_bundle"),
        ({"ca_bundle": 5}, "ca_bundle"),
        ({"http2": "yes"}, "http2"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": True}, "max_retries"),
        ({"timeout": -1}, "timeouts.attempt"),
        ({"total_timeout": math.nan}, "timeouts.total"),
        ({"gate": "gate"}, "gate"),
        ({"apikey": SECRET}, "apikey"),
    ],
)
@pytest.mark.parametrize("cls", [Client, AsyncClient])
def test_clients(cls, settings, field):
    good = {"base_url": "http://127.0.0.1:9/v1", "api_key": "key", "gate": Gate()}
    assert refusal(lambda: cls(**{**good, **settings})).field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"timeout": -1}, "timeout"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": math.inf}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"total_timeout": 0}, "total_timeout"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"trace_id": "AB" * 16}, "trace_id"),
        ({"trace_id": 5}, "trace_id"),
        ({"tags": {"a b": "c"}}, "tags.a b"),
        ({"tags": "route"}, "tags"),
        ({"params": "a=b"}, "params"),
        ({"params": {"a": {"b": 1}}}, "params['a']"),
        ({"params": {1: "b"}}, "params[1]"),
        ({"headers": {"authorization": f"Bearer {SECRET}\n"}}, 'headers["authorization"]'),
        ({"headers": {"x": SECRET.encode()}}, "headers['x']"),
        ({"headers": [SECRET]}, "headers"),
        ({"api_key": SECRET}, "api_key"),
        ({"content": b"x"}, "content"),
    ],
)
def test_options_of_a_call(server, options, field):
    client = Client(server.url, "key", gate=Gate())
    assert refusal(lambda: client.post("/chat/completions", json=BODY, **options)).field == field
    assert server.ledger["connections"]["opened"] == 0


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET IT", "/models", "method"),
        ("GET", "https://example.com/v1/models", "path"),
        ("GET", "/a#b", "path"),
    ],
)
def test_methods_and_paths(server, method, path, field):
    client = Client(server.url, "key", gate=Gate())
    assert refusal(lambda: client.request(method, path)).field == field
    assert server.ledger["connections"]["opened"] == 0


@pytest.mark.parametrize("scheme", ["http", "https", "socks5", "socks5h"])
@pytest.mark.parametrize("cls", [Client, AsyncClient])
def test_proxies(cls, scheme):
    cls("http://127.0.0.1:9/v1", "key", gate=Gate(), proxy=f"{scheme}://user:{SECRET}@proxy.example.com:3128")


def test_a_refused_proxy_is_named_without_its_password():
    proxy = f"socks4://user:{SECRET}@proxy.example.com:1080"
    error = refusal(lambda: Client("http://127.0.0.1:9/v1", "key", gate=Gate(), proxy=proxy))
    assert error.value == "socks4://proxy.example.com:1080"
    assert all(scheme in error.rule for scheme in ("http", "https", "socks5", "socks5h"))


WRONG_TEXT = [
    (5, "5"),
    (None, "None"),
    (b"/x", "b'/x'"),
    (f"/x?key={SECRET}".encode(), "b'/x"),
    (["/x"], "['/x']"),
    ("/\ud800", r"'/\ud800'"),
]
WRONG_BYTES = [
    (SECRET, "(str)"),
    (bytearray(SECRET.encode()), "(bytearray)"),
    (memoryview(SECRET.encode()), "(memoryview)"),
    ({"key": SECRET}, "(dict)"),
    (5, "(int)"),
]


async def _ask(client, method, *arguments, **options):
    """Ask either client."""
    answer = getattr(client, method)(*arguments, **options)
    return answer if isinstance(client, Client) else await answer


@pytest.mark.parametrize("cls", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("request_made", "refused"),
    [
        *((("post", [wrong], {"json": BODY}), ("path", value)) for wrong, value in WRONG_TEXT),
        *((("post", [wrong], {"content": b""}), ("path", value)) for wrong, value in WRONG_TEXT),
        *((("get", [wrong], {}), ("path", value)) for wrong, value in WRONG_TEXT),
        *((("request", ["PUT", wrong], {}), ("path", value)) for wrong, value in WRONG_TEXT),
        *((("request", [wrong, "/x"], {}), ("method", value)) for wrong, value in WRONG_TEXT),
        *((("post", ["/x"], {"content": wrong}), ("content", value)) for wrong, value in WRONG_BYTES),
        *(
            (("request", ["PUT", "/x"], {"content": wrong}), ("content", value))
            for wrong, value in WRONG_BYTES
        ),
    ],
)
def test_the_parts_of_a_request(server, cls, request_made, refused):
    method, arguments, options = request_made
    client = cls(server.url, "key", gate=Gate())
    error = refusal(lambda: asyncio.run(_ask(client, method, *arguments, **options)))
    assert (error.field, error.value) == refused
    assert server.ledger["connections"]["opened"] == 0


def test_secrets_are_shown_nowhere(tmp_path):
    """The key, a header's value and a proxy's password: in no error, repr, log, snapshot or metric."""
    log_file, stream = tmp_path / "log.jsonl", io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONFormatter())
    logger = logging.getLogger("tidegate")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    shown = []
    # What an echoing server sends back in its body is the caller's to show; here it echoes nothing.
    script = [
        {"status": 500},
        {"status": 401},
        {"fault": "reset"},
        {"status": 302, "headers": {"location": "/x"}},
    ]
    try:
        with FaultServer(script) as server:
            gate = Gate(log_file=log_file, retry=RetryPolicy(max_attempts=2, base=0.01))
            secrets = {"api_key": f"sk-{SECRET}", "headers": {"x-token": SECRET}, "gate": gate}
            direct = Client(server.url, **secrets)
            # No proxy listens there: the error speaks of it.
            proxied = Client(server.url, proxy=f"http://user:{SECRET}@127.0.0.1:9", **secrets)
            for client in (direct, direct, direct, direct, proxied, AsyncClient(server.url, **secrets)):
                shown += [repr(client), str(client.base_url), repr(vars(client)), repr(client._settings)]
                if isinstance(client, AsyncClient):
                    continue
                try:
                    answer = client.post("/chat/completions?key=" + SECRET, json=BODY)
                except TidegateError as error:
                    # The caller's own line is in a traceback, without its values.
                    shown += [str(error), repr(error), repr(vars(error)), repr(info(error))]
                else:
                    shown += [repr(answer), repr(answer.info), repr(answer.headers)]
            shown += [repr(gate), str(gate.snapshot()), gate.metrics_text()]
        shown += [log_file.read_text(encoding="utf-8"), stream.getvalue()]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert len(stream.getvalue().splitlines()) == len(log_file.read_text(encoding="utf-8").splitlines()) >= 10
    for text in shown:
        assert SECRET not in text

import asyncio
import logging
from types import SimpleNamespace

import pytest

import tidegate
from tidegate import AsyncClient, CallError, Client, ConfigError, Gate, Limits, RetryPolicy, Timeouts, tags
from tidegate._gate_settings import by_pattern

KEY = "sk-test-4f9cCANARY"
URL = "https://api.example.test/v1"


class Upstream:
    """Notes how it was called."""

    base_url = URL

    def __init__(self):
        self.calls = []
        self.cancelled = 0
        self.future = None

    def submit(self, method, path, options, *, context, **rest):
        self.calls.append((method, path, options, rest))
        self.context = context
        if self.future is None:
            self.future = asyncio.get_running_loop().create_future()
            self.future.set_result("answer")
        return SimpleNamespace(future=self.future, cancel=self.cancel)

    def call(self, method, path, options, **rest):
        self.calls.append((method, path, options, rest))
        return "answer"

    def cancel(self):
        self.cancelled += 1


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    logger = logging.getLogger("tidegate")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.fixture(params=[AsyncClient, Client])
def client(request):
    client = request.param(URL, KEY, gate=Gate())
    client._upstream = Upstream()
    return client


async def do(made):
    """Await what an asynchronous client returns; what a blocking one returns is the answer."""
    return await made if asyncio.iscoroutine(made) else made


async def test_a_plain_call_carries_no_options(client):
    assert await do(client.post("/x", json={"a": 1})) == "answer"
    assert client._upstream.calls == [("POST", "/x", None, {"json": {"a": 1}, "log_level": 100})]


async def test_methods_and_bodies(client):
    await do(client.get("/models"))
    await do(client.request("PUT", "/x", content=b"b"))
    assert client._upstream.calls == [
        ("GET", "/models", None, {"content": None, "log_level": 100}),
        ("PUT", "/x", None, {"content": b"b", "log_level": 100}),
    ]


async def test_none_leaves_what_the_client_has(client):
    await do(client.post("/x", json=[], timeout=None, total_timeout=None, max_attempts=None, headers=None))
    await do(client.post("/x", json=[], timeout=2.0, total_timeout=None))
    assert [call[2] for call in client._upstream.calls] == [None, {"timeout": 2.0}]


async def test_tags_of_the_context_and_of_the_call(client):
    with tags(route="r", tenant="t"):
        await do(client.get("/a"))
        await do(client.get("/b", tags={"route": "own"}))
    await do(client.get("/c"))
    assert [call[2] for call in client._upstream.calls] == [
        {"tags": {"route": "r", "tenant": "t"}},
        {"tags": {"route": "own", "tenant": "t"}},
        None,
    ]


@pytest.mark.parametrize(
    ("options", "field"),
    [({"timeot": 3}, "timeot"), ({"tags": {"a": 1}}, "tags.a"), ({"json": [], "content": b""}, "content")],
)
async def test_a_wrong_option_is_named(client, options, field):
    with pytest.raises(ConfigError) as caught:
        await do(client.post("/x", **options))
    assert caught.value.field == field
    assert client._upstream.calls == []


async def test_a_closed_client_refuses():
    client = AsyncClient(URL, KEY, gate=Gate())
    async with client:
        pass
    with pytest.raises(CallError, match="was closed"):
        await client.post("/x")
    with Client(URL, KEY, gate=Gate()) as blocking:
        pass
    with pytest.raises(CallError, match="was closed"):
        blocking.get("/x")


async def test_cancelling_stops_the_call():
    client = AsyncClient(URL, KEY, gate=Gate())
    upstream = client._upstream = Upstream()
    upstream.future = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(client.post("/x"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert upstream.cancelled == 1


async def test_a_success_cancels_nothing():
    client = AsyncClient(URL, KEY, gate=Gate())
    upstream = client._upstream = Upstream()
    await client.post("/x")
    assert upstream.cancelled == 0


@pytest.mark.parametrize(("level", "passed"), [(10, True), (30, True), (40, False)])
async def test_a_context_is_passed_where_somebody_listens(level, passed):
    logging.getLogger("tidegate").setLevel(level)
    client = AsyncClient(URL, KEY, gate=Gate())
    upstream = client._upstream = Upstream()
    await client.post("/x")
    assert (upstream.context is not None) is passed
    assert upstream.calls[0][3]["log_level"] == (level if passed else 100)


@pytest.mark.parametrize("cls", [AsyncClient, Client])
@pytest.mark.parametrize("key", [None, "", "sk 1", "sk-1\n", "sk-ü"])
def test_a_key_that_cannot_be_is_refused_unseen(cls, key):
    with pytest.raises(ConfigError) as caught:
        cls(URL, key)
    assert caught.value.field == "api_key"
    assert not key or key not in str(caught.value)
    if key is None:
        assert "OPENAI_API_KEY" in str(caught.value)


def test_the_environment_is_asked(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", URL)
    assert Client(gate=Gate()).base_url.rstrip("/") == URL
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    assert Client(gate=Gate()).base_url.rstrip("/") == "https://api.openai.com/v1"
    monkeypatch.setenv("OPENAI_API_KEY", "")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        Client()


@pytest.mark.parametrize("cls", [AsyncClient, Client])
def test_no_key_in_what_a_client_shows(cls):
    client = cls("https://api.example.test/v1?key=CANARY", KEY, gate=Gate())
    shown = f"{client!r}{client.base_url}{vars(client)!r}{client.gate!r}"
    assert "CANARY" not in shown
    assert KEY not in repr(client._settings._given)
    assert repr(client).startswith(f"{cls.__name__}(base_url='https://api.example.test/v1")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Timeouts()),
        ({"timeout": None}, Timeouts()),
        ({"timeout": 1.0}, Timeouts(attempt=1.0)),
        ({"timeout": 1.0, "total_timeout": 9.0}, Timeouts(attempt=1.0, total=9.0)),
    ],
)
def test_timeouts_are_finite_by_default(options, expected):
    client = Client(URL, KEY, gate=Gate(), **options)
    assert client.timeouts == expected
    assert client.timeouts.attempt is not None


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"timeout": 0}, "timeouts.attempt"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 1.5}, "max_retries"),
        ({"gate": 1}, "gate"),
    ],
)
def test_a_wrong_setting_is_named(options, field):
    with pytest.raises(ConfigError) as caught:
        Client(URL, KEY, **options)
    assert caught.value.field == field


@pytest.mark.parametrize("copy", ["with_options", "copy"])
def test_a_copy_differs_in_what_is_named(copy):
    client = AsyncClient(URL, KEY, gate=Gate(), timeout=3.0)
    twin = getattr(client, copy)(total_timeout=8.0)
    assert type(twin) is AsyncClient
    assert twin.gate is client.gate
    assert twin.timeouts == Timeouts(attempt=3.0, total=8.0)
    assert client.timeouts == Timeouts(attempt=3.0)
    with pytest.raises(ConfigError, match="did you mean max_retries"):
        client.with_options(max_retry=1)


def test_the_default_gate_is_one_and_can_be_set(monkeypatch):
    monkeypatch.setattr("tidegate._gate._default", None)
    assert tidegate.default_gate() is tidegate.default_gate() is Client(URL, KEY).gate
    own = Gate()
    assert tidegate.configure(own) is own is tidegate.default_gate()
    made = tidegate.configure(retry=RetryPolicy(max_attempts=2))
    assert tidegate.default_gate() is made
    assert repr(made).startswith("Gate(retry=RetryPolicy(max_attempts=2")
    with pytest.raises(ConfigError, match="not both"):
        tidegate.configure(own, seed=1)
    with pytest.raises(ConfigError, match="did you mean limits"):
        tidegate.configure(limit="auto")


def test_the_longest_pattern_comes_first_and_one_fits_all():
    five = Limits(concurrency=5)
    table = {"*": five, "gpt-5*": "auto", "gpt-5-mini": None}
    assert by_pattern(table) == [
        ("gpt-5-mini", Limits(concurrency=None, learn=False)),
        ("gpt-5*", Limits()),
        ("*", five),
    ]
    assert by_pattern({"m": five}) == [("m", five), ("*", Limits())]
    assert by_pattern("auto") == [("*", Limits())]
    assert by_pattern(None) == [("*", Limits(concurrency=None, learn=False))]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"limits": 5}, "limits"),
        ({"limits": {"m": 5}}, "limits.m"),
        ({"limits": {"": "auto"}}, "limits"),
        ({"retry": 3}, "retry"),
        ({"timeouts": None}, "timeouts"),
        ({"breaker": True}, "breaker"),
    ],
)
def test_a_policy_of_another_kind_is_refused(settings, field):
    with pytest.raises(ConfigError) as caught:
        Gate(**settings)
    assert caught.value.field == field


def test_info_finds_the_error_of_a_call_behind_one_of_a_framework(server):
    def framework(client):
        try:
            client.post("/chat/completions", json={"model": "m", "messages": []})
        except tidegate.BadRequestError as error:
            raise LookupError("of a framework") from error

    server.script([{"status": 400}])
    with pytest.raises(LookupError) as caught:
        framework(Client(server.url, "k", gate=Gate()))
    assert tidegate.info(caught.value) is caught.value.__cause__.info


def test_info_is_of_answers_and_errors_only():
    with pytest.raises(TypeError, match="not dict"):
        tidegate.info({})
    with pytest.raises(TypeError, match="not CallError"):
        tidegate.info(CallError("made by hand"))

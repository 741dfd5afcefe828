"""LangChain's `ChatOpenAI` and `OpenAIEmbeddings`, with tidegate's clients or over its transport."""

import pytest

import tidegate
from faults import BAD_START, CUT, TEXT, assert_booked, assert_cut, assert_survived, doctor_finds_retries
from tidegate import Gate
from tidegate.httpx import AsyncTransport, Transport

langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
import httpx2  # noqa: E402
import openai  # noqa: E402
from pydantic import BaseModel  # noqa: E402

MODEL = "gpt-5.4-mini"


def over_clients(server, gate, **more):
    settings = {"base_url": server.url, "api_key": "test", "gate": gate}
    client, async_client = tidegate.OpenAI(**settings), tidegate.AsyncOpenAI(**settings)
    return langchain_openai.ChatOpenAI(
        model=MODEL,
        root_client=client,
        client=client.chat.completions,
        root_async_client=async_client,
        async_client=async_client.chat.completions,
        **more,
    )


def over_transport(server, gate, **more):
    return langchain_openai.ChatOpenAI(
        model=MODEL,
        base_url=server.url,
        api_key="test",
        max_retries=0,
        http_client=httpx2.Client(transport=Transport(gate)),
        http_async_client=httpx2.AsyncClient(transport=AsyncTransport(gate)),
        **more,
    )


WAYS = pytest.mark.parametrize("make", [over_clients, over_transport])
APIS = pytest.mark.parametrize("more", [{}, {"use_responses_api": True}], ids=["chat", "responses"])


def tokens(message):
    return message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]


@WAYS
@APIS
def test_answers(server, gate, make, more):
    server.script(BAD_START)
    answer = make(server, gate, **more).invoke("hi")
    assert (answer.text, tokens(answer)) == (TEXT, (12, 5))
    assert_survived(server, gate)


@WAYS
@APIS
async def test_answers_to_asyncio(server, gate, make, more):
    server.script(BAD_START)
    answer = await make(server, gate, **more).ainvoke("hi")
    assert (answer.text, tokens(answer)) == (TEXT, (12, 5))
    assert_survived(server, gate)


@WAYS
@APIS
def test_streams(server, gate, make, more):
    server.script(BAD_START)
    assert "".join(part.text for part in make(server, gate, **more).stream("hi")) == TEXT
    assert_survived(server, gate)


@WAYS
@APIS
async def test_streams_to_asyncio(server, gate, make, more):
    server.script(BAD_START)
    assert "".join([part.text async for part in make(server, gate, **more).astream("hi")]) == TEXT
    assert_survived(server, gate)


@WAYS
@APIS
async def test_a_stream_that_is_cut_is_an_error(server, gate, make, more):
    server.script([CUT])
    with pytest.raises(openai.APIConnectionError) as caught:
        [part async for part in make(server, gate, **more).astream("hi")]
    assert isinstance(caught.value.__cause__ or caught.value, tidegate.StreamInterruptedError)
    assert_cut(server, gate)


@pytest.mark.parametrize(("make", "attempts"), [(over_clients, 3), (over_transport, 4)])
def test_one_layer_of_retries(down, gate, make, attempts):
    with pytest.raises(langchain_openai.chat_models.base.OpenAIAPIError) as caught:
        make(down, gate).invoke("hi")
    assert isinstance(caught.value, openai.APIError)
    assert tidegate.info(caught.value).attempts == attempts
    assert_booked(down, gate, requests=attempts, answered=0, failed=1)


def test_retries_of_the_sdk_over_the_transport_add_nothing(down, gate):
    model = langchain_openai.ChatOpenAI(
        model=MODEL,
        base_url=down.url,
        api_key="test",
        http_client=httpx2.Client(transport=Transport(gate)),
    )
    with pytest.raises(openai.APIError):
        model.invoke("hi")
    assert_booked(down, gate, requests=4, answered=0, failed=1)


def test_retries_of_a_runnable_are_found_by_the_doctor(down, tmp_path):
    """Each of them has a context of its own, so that the gate itself cannot tell them from other calls."""
    log = tmp_path / "calls.jsonl"
    gate = Gate(log_file=log)
    model = over_clients(down, gate).with_retry(stop_after_attempt=4, wait_exponential_jitter=False)
    with pytest.raises(openai.APIError):
        model.invoke("hi")
    assert down.ledger["requests"]["total"] == 4 * 3
    assert doctor_finds_retries(log)


class Place(BaseModel):
    city: str


@WAYS
async def test_structured_output(server, gate, make):
    server.script([*BAD_START, {"content": '{"city": "Oslo"}'}])
    assert await make(server, gate).with_structured_output(Place).ainvoke("Where?") == Place(city="Oslo")
    assert_survived(server, gate)


async def test_embeddings(server, gate, drop_ins):
    server.script(BAD_START)
    client, async_client = drop_ins
    embeddings = langchain_openai.OpenAIEmbeddings(
        model="text-embedding-3-small",
        client=client.embeddings,
        async_client=async_client.embeddings,
        check_embedding_ctx_length=False,
    )
    assert [len(vector) for vector in embeddings.embed_documents(["a", "b"])] == [1536, 1536]
    assert len(await embeddings.aembed_query("a")) == 1536
    assert server.ledger["requests"]["total"] == 4
    [row] = gate.usage(by=())
    assert (row.calls, row.attempts) == (2, 4)
    assert row.prompt_tokens == server.ledger["usage"]["prompt_tokens"]

"""LlamaIndex over the transport. It needs openai<3, which is built on legacy httpx."""

import pytest

import tidegate
from faults import (
    BAD_START,
    CUT,
    LIMITED,
    TEXT,
    assert_booked,
    assert_cut,
    assert_survived,
    stacked,
)
from tidegate.httpx import AsyncTransport, Transport

llama_index = pytest.importorskip(
    "llama_index.llms.openai", reason="llama-index-llms-openai is not installed"
)
import httpx  # noqa: E402
import openai  # noqa: E402
from llama_index.core.llms import ChatMessage  # noqa: E402
from llama_index.embeddings.openai import OpenAIEmbedding  # noqa: E402

MODEL = "gpt-4.1-mini"
HI = [ChatMessage(content="hi")]


def settings(server, gate):
    return {
        "api_base": server.url,
        "api_key": "test",
        "http_client": httpx.Client(transport=Transport(gate)),
        "async_http_client": httpx.AsyncClient(transport=AsyncTransport(gate)),
    }


@pytest.fixture(params=["OpenAI", "OpenAIResponses"])
def llm(request, server, gate):
    return getattr(llama_index, request.param)(model=MODEL, max_retries=0, **settings(server, gate))


def test_answers(server, gate, llm):
    server.script(BAD_START)
    assert llm.complete("hi").text == TEXT
    assert_survived(server, gate)


async def test_answers_to_asyncio(server, gate, llm):
    server.script(BAD_START)
    assert (await llm.achat(HI)).message.content == TEXT
    assert_survived(server, gate)


def test_streams(server, gate, llm):
    server.script(BAD_START)
    assert "".join(part.delta for part in llm.stream_chat(HI)) == TEXT
    assert_survived(server, gate)


async def test_streams_to_asyncio(server, gate, llm):
    server.script(BAD_START)
    assert "".join([part.delta async for part in await llm.astream_complete("hi")]) == TEXT
    assert_survived(server, gate)


async def test_a_stream_that_is_cut_is_an_error(server, gate, llm):
    server.script([CUT])
    with pytest.raises(tidegate.StreamInterruptedError) as caught:
        [part async for part in await llm.astream_chat(HI)]
    assert isinstance(caught.value, openai.APIConnectionError)
    assert_cut(server, gate)


def test_one_layer_of_retries(down, gate, llm):
    with pytest.raises(openai.InternalServerError) as caught:
        llm.complete("hi")
    assert tidegate.info(caught.value).attempts == 4
    assert_booked(down, gate, requests=4, answered=0, failed=1)


def test_its_own_retries_are_found_out(server, gate):
    """They are on by default, around those of the SDK, which the transport stops."""
    server.script([LIMITED], repeat_last=True)
    llm = llama_index.OpenAI(model=MODEL, max_retries=2, **settings(server, gate))
    with pytest.raises(openai.RateLimitError):
        llm.complete("hi")
    [row] = gate.usage(by=())
    assert (row.calls, row.attempts) == (2, server.ledger["requests"]["total"])
    assert stacked(gate) == 1


async def test_embeddings(server, gate):
    server.script(BAD_START)
    embedding = OpenAIEmbedding(max_retries=0, **settings(server, gate))
    assert len(embedding.get_text_embedding("a")) == 1536
    assert len(await embedding.aget_text_embedding("a")) == 1536
    [row] = gate.usage(by=())
    assert server.ledger["requests"]["total"] == row.attempts == 4
    assert row.prompt_tokens == server.ledger["usage"]["prompt_tokens"]

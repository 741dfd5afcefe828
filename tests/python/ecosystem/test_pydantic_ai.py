"""pydantic-ai with tidegate's client."""

import pytest

import tidegate
from faults import BAD_START, CUT, TEXT, assert_booked, assert_cut, assert_survived

pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")
from pydantic import BaseModel  # noqa: E402
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

MODEL = "gpt-5.4-mini"


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def model(request, drop_ins):
    return request.param(MODEL, provider=OpenAIProvider(openai_client=drop_ins[1]))


async def test_answers(server, gate, model):
    server.script(BAD_START)
    run = await pydantic_ai.Agent(model).run("hi")
    assert (run.output, run.usage.requests, run.usage.input_tokens, run.usage.output_tokens) == (
        TEXT,
        1,
        12,
        5,
    )
    assert_survived(server, gate)


@pytest.mark.usefixtures("loop")
def test_answers_without_asyncio(server, gate, model):
    server.script(BAD_START)
    assert pydantic_ai.Agent(model).run_sync("hi").output == TEXT
    assert_survived(server, gate)


async def test_streams(server, gate, model):
    server.script(BAD_START)
    async with pydantic_ai.Agent(model).run_stream("hi") as run:
        parts = [part async for part in run.stream_text(delta=True)]
    assert "".join(parts) == TEXT
    assert_survived(server, gate)


async def test_a_stream_that_is_cut_is_an_error(server, gate, model):
    server.script([CUT])

    async def read():
        async with pydantic_ai.Agent(model).run_stream("hi") as run:
            [part async for part in run.stream_text()]

    with pytest.raises(ModelAPIError) as caught:
        await read()
    assert isinstance(caught.value.__cause__, tidegate.StreamInterruptedError)
    assert_cut(server, gate)


async def test_one_layer_of_retries(down, gate, model):
    with pytest.raises(ModelHTTPError) as caught:
        await pydantic_ai.Agent(model).run("hi")
    assert caught.value.status_code == 503
    assert tidegate.info(caught.value).attempts == 3
    assert_booked(down, gate, requests=3, answered=0, failed=1)


async def test_its_setting_for_retries_is_the_gates(down, gate, model):
    with pytest.raises(ModelHTTPError):
        await pydantic_ai.Agent(model, model_settings={"max_retries": 1}).run("hi")
    assert_booked(down, gate, requests=2, answered=0, failed=1)


class Place(BaseModel):
    city: str


async def test_an_output_that_is_wrong_is_asked_for_again(server, gate, drop_ins):
    """It is another request, with the complaint in it: no retry, and billed."""
    server.script([*BAD_START, {"content": '{"city": 3}'}, {"content": '{"city": "Oslo"}'}])
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=drop_ins[1]))
    run = await pydantic_ai.Agent(model, output_type=pydantic_ai.NativeOutput(Place)).run("Where?")
    assert run.output == Place(city="Oslo")
    assert_booked(server, gate, requests=4, answered=2)

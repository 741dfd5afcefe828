"""The OpenAI Agents SDK with tidegate's client."""

import pytest

import tidegate
from faults import BAD_START, CUT, TEXT, assert_booked, assert_cut, assert_survived, stacked

agents = pytest.importorskip("agents", reason="openai-agents is not installed")
import openai  # noqa: E402

agents.set_tracing_disabled(disabled=True)
MODEL = "gpt-5.4-mini"


@pytest.fixture(params=["responses", "chat_completions"])
def agent(request, drop_ins):
    agents.set_default_openai_client(drop_ins[1], use_for_tracing=False)
    agents.set_default_openai_api(request.param)
    yield agents.Agent(name="pilot", instructions="Be brief.", model=MODEL)
    agents.set_default_openai_api("responses")


async def test_answers(server, gate, agent):
    server.script(BAD_START)
    run = await agents.Runner.run(agent, "hi")
    usage = run.context_wrapper.usage
    assert (run.final_output, usage.requests, usage.input_tokens, usage.output_tokens) == (TEXT, 1, 12, 5)
    assert_survived(server, gate)


@pytest.mark.usefixtures("loop")
def test_answers_without_asyncio(server, gate, agent):
    server.script(BAD_START)
    assert agents.Runner.run_sync(agent, "hi").final_output == TEXT
    assert_survived(server, gate)


async def test_streams(server, gate, agent):
    server.script(BAD_START)
    run = agents.Runner.run_streamed(agent, "hi")
    deltas = [
        event.data.delta
        async for event in run.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(deltas) == run.final_output == TEXT
    assert_survived(server, gate)


async def test_a_stream_that_is_cut_is_an_error(server, gate, agent):
    server.script([CUT])
    run = agents.Runner.run_streamed(agent, "hi")
    with pytest.raises(tidegate.StreamInterruptedError) as caught:
        [event async for event in run.stream_events()]
    assert isinstance(caught.value, openai.APIConnectionError)
    assert_cut(server, gate)


async def test_one_layer_of_retries(down, gate, agent):
    with pytest.raises(openai.InternalServerError) as caught:
        await agents.Runner.run(agent, "hi")
    assert tidegate.info(caught.value).attempts == 3
    assert_booked(down, gate, requests=3, answered=0, failed=1)


async def test_retries_of_the_model_settings_are_found_out(down, gate, agent):
    agent.model_settings = agents.ModelSettings(
        retry=agents.ModelRetrySettings(
            max_retries=1,
            policy=agents.retry_policies.http_status([503]),
            backoff={"initial_delay": 0.01, "max_delay": 0.01},
        )
    )
    with pytest.raises(openai.InternalServerError):
        await agents.Runner.run(agent, "hi")
    assert stacked(gate) == 1
    assert down.ledger["requests"]["total"] == 4, "the SDK turns the client's own retries off when it retries"


CALL = {"type": "function_call", "call_id": "call_1", "name": "charge", "arguments": "{}"}
ASKS = {"object": "response", "status": "completed", "model": MODEL, "output": [CALL]}


@pytest.mark.parametrize(("handling", "requests"), [({}, 2), ({"failure_error_function": None}, 1)])
async def test_a_doubt_ends_the_run_only_where_errors_of_the_tool_do(
    server, gate, drop_ins, handling, requests
):
    @agents.function_tool(**handling)
    async def charge() -> str:
        raise tidegate.OutcomeUnknownError("charge may have taken effect")

    server.script([{"body_json": ASKS}])
    model = agents.OpenAIResponsesModel(MODEL, openai_client=drop_ins[1])
    run = agents.Runner.run(agents.Agent(name="cashier", model=model, tools=[charge]), "Charge.")
    if handling:
        with pytest.raises(agents.UserError) as caught:
            await run
        assert isinstance(caught.value.__cause__, tidegate.OutcomeUnknownError)
    else:
        assert (await run).final_output == TEXT
    assert server.ledger["requests"]["total"] == requests
    assert gate.usage(by=())[0].calls == requests

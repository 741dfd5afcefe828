"""A run of the OpenAI Agents SDK whose tool costs money, killed and run again: it charges once."""

import json
import signal

import pytest

pytest.importorskip("agents", reason="openai-agents is not installed")

RUN = """
import asyncio, os, signal, sys
from pathlib import Path
import agents, tidegate

url, store, charges, api, when = sys.argv[1:]
gate = tidegate.Gate(store=f"sqlite:///{store}", prices={"*": {"input": "1", "output": "2"}})

def die(moment):
    if when == moment:
        os.kill(os.getpid(), signal.SIGKILL)

@agents.function_tool(failure_error_function=None)
@gate.tool(effect=EFFECT, lease=0.5)
async def charge(order: str, cents: int) -> str:
    "Charge the customer of an order."
    with Path(charges).open("a") as file:
        file.write(f"{order} {cents}\\n")
    die("in the tool")
    return f"receipt of {order}"

class Deadly(agents.RunHooks):
    async def on_tool_end(self, *_):
        die("after the tool")

async def main():
    agents.set_tracing_disabled(True)
    agents.set_default_openai_api(api)
    client = tidegate.AsyncOpenAI(base_url=url, api_key="test", gate=gate)
    async with gate.journal("order-7") as journal:
        agents.set_default_openai_client(journal.client(client), use_for_tracing=False)
        agent = agents.Agent(name="cashier", model="gpt-5.4-mini", tools=[charge])
        run = await agents.Runner.run(agent, "Charge order 7.", hooks=Deadly())
    [row] = gate.usage(by=()) or [None]
    print(run.final_output, journal.turn, row.calls if row else 0)

asyncio.run(main())
"""
ARGUMENTS = json.dumps({"order": "order-7", "cents": 1999})
USAGE = {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17}
ASKS = {
    "chat_completions": {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5.4-mini",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "charge", "arguments": ARGUMENTS},
                        }
                    ],
                },
            }
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
    },
    "responses": {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5.4-mini",
        "status": "completed",
        "output": [
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": "charge",
                "arguments": ARGUMENTS,
                "status": "completed",
            }
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": USAGE,
    },
}


@pytest.fixture(params=list(ASKS))
def api(request, server):
    server.script([{"body_json": ASKS[request.param]}])
    return request.param


@pytest.fixture
def cashier(server, run_script, tmp_path, api):
    """Run the agent, killed at a moment or not; return how it ended, and the charges until then."""

    def run(when, effect="at_most_once"):
        charges = tmp_path / "charges"
        script = RUN.replace("EFFECT", repr(effect))
        ended = run_script(script, server.url, tmp_path / "store.db", charges, api, when, patience=120)
        return ended, charges.read_text("utf-8").splitlines()

    return run


def test_a_run_killed_after_its_tool_charges_once(server, cashier):
    killed, charges = cashier("after the tool")
    assert (killed.code, charges) == (-signal.SIGKILL, ["order-7 1999"])
    assert server.ledger["requests"]["total"] == 1
    again, charges = cashier("never")
    assert (again.code, again.out, charges) == (
        0,
        "All systems work as expected 2 1\n",
        ["order-7 1999"],
    ), again.err
    assert server.ledger["requests"]["total"] == 2, "the first answer was kept"
    third, charges = cashier("never")
    assert (third.out, charges) == ("All systems work as expected 2 0\n", ["order-7 1999"]), third.err
    assert server.ledger["requests"]["total"] == 2, "the run is over: all of it was kept"


def test_a_run_killed_in_its_tool_ends_in_doubt(server, cashier):
    killed, charges = cashier("in the tool")
    assert (killed.code, charges) == (-signal.SIGKILL, ["order-7 1999"])
    again, charges = cashier("never")
    assert again.code == 1
    assert "OutcomeUnknownError" in again.err
    assert charges == ["order-7 1999"]
    assert server.ledger["requests"]["total"] == 1, "the model was not told to try again"


def test_a_tool_that_may_repeat_runs_again(cashier):
    cashier("in the tool", "idempotent")
    again, charges = cashier("never", "idempotent")
    assert (again.out, charges) == ("All systems work as expected 2 1\n", ["order-7 1999"] * 2), again.err

"""Instrumentations that patch the SDK see the calls of tidegate's clients.

Each is in a process of its own: what they patch is not always put back.
"""

import json

import pytest

SCRIPT = """
import asyncio, json, sys
import tidegate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
processor = SimpleSpanProcessor(exporter)
url = sys.argv[1]
gate = tidegate.Gate()
settings = {"base_url": url, "api_key": "test", "gate": gate}
client, async_client = tidegate.OpenAI(**settings), tidegate.AsyncOpenAI(**settings)
chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
text = {"model": "m", "input": "hi"}
client.chat.completions.create(**chat)  # on the fast path: nobody looks on yet

def instrument():
    INSTRUMENT

instrument()
told = {}

def tell(name):
    told[name] = [span.attributes.get("gen_ai.usage.input_tokens") for span in exporter.get_finished_spans()]
    exporter.clear()

def plain():
    client.chat.completions.create(**chat)
    tell("chat")
    list(client.chat.completions.create(**chat, stream=True))
    tell("chat stream")
    client.responses.create(**text)
    tell("responses")
    list(client.responses.create(**text, stream=True))
    tell("responses stream")
    client.embeddings.create(**text)
    tell("embeddings")

async def from_asyncio():
    await async_client.chat.completions.create(**chat)
    tell("async chat")
    [chunk async for chunk in await async_client.chat.completions.create(**chat, stream=True)]
    tell("async chat stream")
    await async_client.responses.create(**text)
    tell("async responses")
    [event async for event in await async_client.responses.create(**text, stream=True)]
    tell("async responses stream")
    await async_client.embeddings.create(**text)
    tell("async embeddings")

plain()
asyncio.run(from_asyncio())
[row] = gate.usage(by=())
print(json.dumps({"told": told, "calls": row.calls, "attempts": row.attempts}))
"""
OPENLLMETRY = """
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor
    provider = TracerProvider()
    provider.add_span_processor(processor)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
"""
LOGFIRE = """
    import logfire
    logfire.configure(send_to_logfire=False, console=False, additional_span_processors=[processor])
    logfire.instrument_openai()
"""
LOGFIRE_OF_CLIENTS = LOGFIRE.replace("instrument_openai()", "instrument_openai([client, async_client])")


@pytest.mark.parametrize(
    ("package", "instrument"),
    [
        ("opentelemetry.instrumentation.openai", OPENLLMETRY),
        ("logfire", LOGFIRE),
        ("logfire", LOGFIRE_OF_CLIENTS),
    ],
    ids=["OpenLLMetry", "Logfire, of the classes", "Logfire, of the clients"],
)
def test_each_call_is_seen(server, run_script, package, instrument):
    pytest.importorskip(package, reason=f"{package} is not installed")
    # Of the ten calls the first meets an error, which the gate outlasts: one span, for it is one call.
    server.script([{}, {"status": 503, "headers": {"retry-after-ms": "1"}}])
    ended = run_script(SCRIPT.replace("    INSTRUMENT", instrument), server.url, patience=120)
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert (found["calls"], found["attempts"]) == (11, 12)
    assert len(found["told"]) == 10
    for call, spans in found["told"].items():
        # Of a stream Logfire tells twice: when it begins and when it has ended.
        assert len(spans) == (2 if "stream" in call and package == "logfire" else 1), call
        # The chunk with the usage of a chat is asked for by the gate, and shown to nobody who did not ask.
        assert spans[-1] == (None if "chat stream" in call else 12), call

"""Results built by tidegate beside the official client's: ``python benches/python/results.py``.

CPU time of this thread, the best of several rounds: what disturbs the machine only ever adds. The first use
of a type, compilation included, is measured in a process of its own each time, because either way leaves
traces that help the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 7

USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
DETAILS = {
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {
        "reasoning_tokens": 0,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
}
TEXT = "All systems work as expected"
MESSAGE = {"role": "assistant", "content": TEXT, "refusal": None, "annotations": []}
CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "gpt-5.4-mini",
    "choices": [{"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"}],
    "usage": USAGE | DETAILS,
    "service_tier": "default",
}
CHUNK = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1_700_000_000,
    "model": "gpt-5.4-mini",
    "choices": [{"index": 0, "delta": {"content": "All"}, "logprobs": None, "finish_reason": None}],
    "usage": None,
}
ODD_CHUNK = CHUNK | {"choices": [{"index": 0, "delta": {"content": "All"}, "finish_reason": "unheard_of"}]}
DELTA = {
    "type": "response.output_text.delta",
    "item_id": "msg_1",
    "output_index": 0,
    "content_index": 0,
    "delta": "All",
    "sequence_number": 3,
}
PART = {"type": "output_text", "text": TEXT, "annotations": []}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_700_000_000,
    "status": "completed",
    "error": None,
    "model": "gpt-5.4",
    "output": [
        {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [PART]},
    ],
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "temperature": 1.0,
    "metadata": {},
    "usage": {
        "input_tokens": 36,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 87,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 123,
    },
}
VECTOR = [number / 1537 - 0.5 for number in range(1536)]
VECTORS = {
    "object": "list",
    "model": "m",
    "data": [{"object": "embedding", "index": index, "embedding": VECTOR} for index in range(8)],
    "usage": {"prompt_tokens": 8, "total_tokens": 8},
}
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "ChatCompletion": ("ChatCompletion", CHAT, 3000),
    "ChatCompletion, an unknown field": ("ChatCompletion", CHAT | {"provider": "p"}, 3000),
    "ChatCompletionChunk": ("ChatCompletionChunk", CHUNK, 3000),
    "ChatCompletionChunk, unknown finish_reason": ("ChatCompletionChunk", ODD_CHUNK, 3000),
    "Responses text delta": ("event", DELTA | {"logprobs": []}, 3000),
    "Responses text delta, logprobs missing": ("event", DELTA, 3000),
    "Response": ("Response", RESPONSE, 1000),
    "8 embeddings of 1,536 floats": ("CreateEmbeddingResponse", VECTORS, 10),
}


def builders(kind: str) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
    """Return ours and theirs."""
    from openai import types
    from openai._models import construct_type
    from openai.types import chat, responses

    from tidegate import _results

    if kind == "event":
        union: Any = responses.ResponseStreamEvent
        events = _results.Event(union, "type")
        return events, lambda content: construct_type(type_=union, value=json.loads(content))
    cls = next(getattr(module, kind) for module in (types, chat, responses) if hasattr(module, kind))
    return _results.Result(cls), lambda content: construct_type(type_=cls, value=json.loads(content))


def microseconds(build: Callable[[bytes], Any], content: bytes, times: int) -> float:
    """Return the CPU time that one result takes."""
    for _ in range(max(times // 10, 2)):
        build(content)
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(times):
            build(content)
        best = min(best, time.thread_time() - began)
    return best / times * 1e6


def first_use(name: str, which: str) -> float:
    """Return the milliseconds that the first result takes, in a fresh process."""
    command = [sys.executable, __file__, "--first", name, which]
    return min(float(subprocess.check_output(command)) for _ in range(3))


def main() -> None:
    """Print the table."""
    head = f"{'build one, µs of CPU':44}{'official':>10}{'tidegate':>10}{'ratio':>8}   first one, ms"
    print(head)
    for name, (kind, body, times) in CASES.items():
        content = json.dumps(body, separators=(",", ":")).encode()
        ours, theirs = builders(kind)
        official = microseconds(theirs, content, max(times // 20, 2))
        tidegate = microseconds(ours, content, times)
        firsts = f"{first_use(name, 'theirs'):8.0f} → {first_use(name, 'ours'):.0f}"
        print(f"{name:44}{official:10.1f}{tidegate:10.2f}{official / tidegate:7.0f}x {firsts}", flush=True)


def first(name: str, which: str) -> None:
    """Print how long the first result takes."""
    kind, body, _ = CASES[name]
    content = json.dumps(body, separators=(",", ":")).encode()
    build = builders(kind)[which == "theirs"]
    began = time.thread_time()
    build(content)
    print((time.thread_time() - began) * 1e3)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--first"]:
        first(*sys.argv[2:])
    else:
        main()

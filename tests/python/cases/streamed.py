"""Streams as a user reads them: events in, what they add up to out."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from tidegate import CallError

PATH = "/chat/completions"
_APART_S = 0.1
_LONG = 1 << 16


@dataclass
class Streamed:
    """What has come of a stream. Looks like a whole answer where an answer is looked at."""

    events: list[tuple[str | None, str]] = field(default_factory=list)
    text: str = ""
    arguments: str = ""
    finish_reason: str | None = None
    contents: int = 0
    # When events came, the end included; those that came together count once.
    times: list[float] = field(default_factory=list)
    began: float = 0.0
    info: Any = None

    def take(self, event):
        # What is megabytes long is looked at by its text alone.
        self.events.append((event.event, event.text if len(event.data) < _LONG else ""))
        self.tick()
        try:
            chunk = event.json()
        except ValueError:
            return
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            self.text += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                self.arguments += call["function"].get("arguments") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if delta.get("content") or delta.get("tool_calls"):
                self.contents += 1

    def tick(self):
        now = time.monotonic()
        if not self.times or now - self.times[-1] > _APART_S:
            self.times.append(now)

    @property
    def usage(self):
        return self.info.usage

    @property
    def cost_usd(self):
        return self.info.cost_usd

    def json(self):
        message = {"content": self.text, "tool_calls": self.arguments}
        return {"choices": [{"message": message, "finish_reason": self.finish_reason}]}


def body(ask):
    return json.loads(json.dumps(ask)) | {"stream": True}


def read(client, arguments, result, leave_after=None):
    """Read a stream with a sync client into `result`; leave it after so many pieces of content."""
    result.began = time.monotonic()
    with client.stream(PATH, **arguments) as events:
        try:
            for event in events:
                result.take(event)
                if leave_after is not None and result.contents >= leave_after:
                    break
        except CallError as error:
            result.info = error.info
            raise
    result.tick()
    result.info = events.info


async def aread(client, arguments, result, leave_after=None):
    """As `read`, with an async client."""
    result.began = time.monotonic()
    async with client.stream(PATH, **arguments) as events:
        try:
            async for event in events:
                result.take(event)
                if leave_after is not None and result.contents >= leave_after:
                    break
        except CallError as error:
            result.info = error.info
            raise
    result.tick()
    result.info = events.info

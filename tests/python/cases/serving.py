"""Servers that play the responses of a case."""

from __future__ import annotations

import base64
import contextlib
import json
import socket

from tidegate.testing import FaultServer


def filled(value, **ports):
    """Return a JSON value with `{PORT2}` and the like filled in; `{PORT}` and dates are left as they are."""
    text = json.dumps(value)
    for name, port in ports.items():
        text = text.replace(f"{{{name}}}", str(port))
    return json.loads(text)


def raw(data):
    """Return the scripted answer that sends `data` and closes, unless the message is complete in itself."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    fields = dict(line.lower().split(":", 1) for line in lines[1:] if ":" in line)
    length = fields.get("content-length")
    bodiless = lines[0].split()[1] in {"204", "304"}
    complete = bodiless or (length is not None and int(length) == len(body))
    return {"raw_b64": base64.b64encode(data).decode(), "close": "keep" if complete else "fin"}


@contextlib.contextmanager
def closed_port():
    """Provide a URL at which nobody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}/v1"


def server(script=(), **settings):
    ledger = {"record_bodies": True, "record_headers": ["*"]} | settings.pop("ledger", {})
    return FaultServer(script, ledger=ledger, **settings)

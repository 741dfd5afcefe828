"""Scenarios with a TLS server whose certificate a private authority has signed."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from pathlib import Path

import trustme

from cases import child
from cases.case import Check
from cases.expect import unknown

_BODY = json.dumps({"id": "x", "model": "m", "choices": [{"index": 0, "message": {"content": "pong"}}]})
_ANSWER = (
    f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(_BODY)}\r\n\r\n{_BODY}"
).encode()


class TlsServer:
    """Answers each connection's first request, and notes which protocols clients offered and got."""

    def __init__(self, authority, protocols=("http/1.1",)):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.set_alpn_protocols(list(protocols))
        authority.issue_cert("localhost", "127.0.0.1").configure_cert(self.context)
        self.selected = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self.listening.getsockname()[1]}/v1"
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while True:
            try:
                plain, _ = self.listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), plain:
                plain.settimeout(10)
                with self.context.wrap_socket(plain, server_side=True) as connection:
                    self.selected.append(connection.selected_alpn_protocol())
                    if connection.selected_alpn_protocol() != "h2":
                        self._answer(connection)

    @staticmethod
    def _answer(connection):
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        head, _, body = received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        while length and len(body) < int(length[1]):
            body += connection.recv(65536)
        connection.sendall(_ANSWER)

    def close(self):
        # A blocked accept is woken by the shutdown, not by the close.
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.thread.join(10)


_CALL = """
    import json, sys
    import tidegate
    options = {"ca_bundle": sys.argv[2]} if len(sys.argv) > 2 else {}
    client = tidegate.Client(sys.argv[1], "key", max_retries=0, **options)
    try:
        client.post("/chat/completions", json={"model": "m", "messages": []})
        print(json.dumps({"outcome": "ok"}))
    except tidegate.CallError as error:
        print(json.dumps({"outcome": "error", "kind": error.kind, "message": str(error)}))
"""


def private_ca(content, expect):
    for variant in content["variants"]:
        yield Check(variant, functools.partial(_private_ca, variant, expect[variant]))


def _hashed(folder, bundle):
    """Write a certificate under the name by which OpenSSL finds it in a folder."""
    name = "00000000"
    if shutil.which("openssl"):
        command = ["openssl", "x509", "-noout", "-subject_hash", "-in", bundle]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 our own words
        name = ran.stdout.strip()
    shutil.copy(bundle, folder / f"{name}.0")


def _private_ca(variant, wanted):
    authority = trustme.CA()
    with tempfile.TemporaryDirectory() as name, contextlib.closing(TlsServer(authority)) as server:
        folder = Path(name)
        bundle = folder / "authority.pem"
        authority.cert_pem.write_to_path(bundle)
        certificates = folder / "certificates"
        certificates.mkdir()
        _hashed(certificates, bundle)
        environment, arguments = {
            "no setting": ({}, []),
            "SSL_CERT_FILE": ({"SSL_CERT_FILE": str(bundle)}, []),
            "SSL_CERT_DIR": ({"SSL_CERT_DIR": str(certificates)}, []),
            "client argument": ({}, [bundle]),
        }[variant]
        result = child.told(_CALL, server.url, *arguments, env=environment)
    if isinstance(wanted, str):
        assert result["outcome"] == wanted, result
        return
    assert result["outcome"] == wanted["outcome"]
    for field, value in wanted["error"].items():
        if field == "kind":
            assert result["kind"] == value
        elif field == "message_contains_any":
            assert any(part in result["message"].lower() for part in value), result["message"]
        else:
            unknown(f"error.{field}", value)


def h2_goaway(content, expect):
    rule = expect["if_http1_only"]
    if rule != "N/A: ALPN must not offer h2":
        unknown("if_http1_only", rule)
    yield Check("alpn", _offers_no_h2)
    for number, _ in enumerate(content["variants"]):
        yield Check(f"variant{number}", skipped="N/A: HTTP/1.1 only by default")


def _offers_no_h2():
    authority = trustme.CA()
    server = TlsServer(authority, ("h2", "http/1.1"))
    with tempfile.TemporaryDirectory() as name, contextlib.closing(server):
        bundle = Path(name) / "authority.pem"
        authority.cert_pem.write_to_path(bundle)
        assert child.told(_CALL, server.url, bundle)["outcome"] == "ok"
    assert set(server.selected) <= {"http/1.1", None}
    assert server.selected

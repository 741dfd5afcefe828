"""Servers whose every byte a test decides: HTTP/1.1 by hand, proxies, and HTTP/2 by the h2 library."""

import contextlib
import selectors
import socket
import ssl
import struct
import threading
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events


@dataclass
class Request:
    method: str
    target: str
    headers: dict = field(default_factory=dict)
    body: bytes = b""


class Connection:
    """One connection of a server; requests are read from it one after the other."""

    def __init__(self, sock):
        self.sock = sock
        self.file = sock.makefile("rb")

    def request(self):
        """Read the next request; `None` at the end of the connection."""
        line = self.file.readline().decode("latin-1").split()
        if not line:
            return None
        headers = {}
        while (header := self.file.readline().decode("latin-1").strip()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = self.file.read(int(headers.get("content-length", 0)))
        return Request(line[0], line[1], headers, body)

    def send(self, data):
        self.sock.sendall(data)

    def chunk(self, data):
        """Send a piece of a chunked body; an empty one is its end."""
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def answer(self, body=b"{}", status="200 OK", kind="application/json", **headers):
        head = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}"]
        head += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join(head).encode() + b"\r\n\r\n" + body)

    def stream(self, kind="text/event-stream"):
        """Begin an answer whose body is sent by `chunk`."""
        self.send(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode())

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self):
        # The file holds the descriptor open too.
        self.file.close()
        self.sock.close()


class RawServer:
    """Calls `serve(connection)` on a thread for each connection.

    With `plain_too`, TLS is for whoever begins with it.

    Attributes:
        requests: What `serve` has put there.
        failures: What it raised, apart from a peer that has gone.
    """

    def __init__(self, serve, context=None, *, plain_too=False):
        self._serve = serve
        self._context = context
        self._plain_too = plain_too
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = []
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self.requests = []
        self.failures = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}/v1"

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                self._open.append(sock)
                threading.Thread(target=self._run, args=(sock,), daemon=True).start()

    def _run(self, sock):
        try:
            if self._context and not (self._plain_too and sock.recv(1, socket.MSG_PEEK) != b"\x16"):
                sock = self._context.wrap_socket(sock, server_side=True)
                self._open.append(sock)
            connection = Connection(sock)
            self._serve(connection)
            connection.close()
        except OSError:
            sock.close()
        except Exception as error:
            self.failures.append(error)
            sock.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()
        for sock in self._open:
            sock.close()
        assert not self.failures


def answering(server, **answer):
    """Return a `serve` that notes requests in the list and answers all of them alike."""

    def serve(connection):
        while (request := connection.request()) is not None:
            server.append(request)
            connection.answer(**answer)

    return serve


def tunnel(connection, port):
    """Carry bytes between a connection and a port of this machine until one side ends."""
    with socket.create_connection(("127.0.0.1", port)) as other, selectors.DefaultSelector() as ready:
        ready.register(connection.sock, selectors.EVENT_READ, other)
        ready.register(other, selectors.EVENT_READ, connection.sock)
        while True:
            for key, _ in ready.select():
                data = key.fileobj.recv(65536)
                if not data:
                    return
                key.data.sendall(data)


class Http2:
    """A connection of HTTP/2: calls `answer(this, stream, headers, body)` on a thread for each request."""

    def __init__(self, sock, answer):
        self.sock = sock
        self.answer = answer
        self.lock = threading.Lock()
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.reset = []
        self._bodies = {}
        self._headers = {}

    def flush(self):
        self.sock.sendall(self.http.data_to_send())

    def respond(self, stream, headers):
        with self.lock:
            self.http.send_headers(stream, [(":status", "200"), *headers])
            self.flush()

    def data(self, stream, data, *, end=False):
        with self.lock:
            self.http.send_data(stream, data, end_stream=end)
            self.flush()

    def run(self):
        with self.lock:
            self.http.initiate_connection()
            self.flush()
        while data := self.sock.recv(65536):
            with self.lock:
                events = self.http.receive_data(data)
                self.flush()
            for event in events:
                self._handle(event)

    def _handle(self, event):
        if isinstance(event, h2.events.RequestReceived):
            self._headers[event.stream_id] = {name.decode(): value.decode() for name, value in event.headers}
            self._bodies[event.stream_id] = b""
        elif isinstance(event, h2.events.DataReceived):
            self._bodies[event.stream_id] += event.data
            with self.lock:
                self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                self.flush()
        elif isinstance(event, h2.events.StreamReset):
            self.reset.append(event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            stream = event.stream_id
            given = (self, stream, self._headers[stream], self._bodies[stream])
            threading.Thread(target=self.answer, args=given, daemon=True).start()


def tls(authority, *names, protocols=(), until=None):
    """Return a server's context with a certificate for the names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    more = {} if until is None else {"not_after": until}
    authority.issue_cert(*names, **more).configure_cert(context)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context

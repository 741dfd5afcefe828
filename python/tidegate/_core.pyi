"""The core, written in Rust. Use what `tidegate` exports: this module's names may change."""

from asyncio import Future
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context
from decimal import Decimal
from os import PathLike
from types import ModuleType
from typing import Any, Generic, Literal, TypeAlias, final, overload

from typing_extensions import TypeVar

from tidegate._errors import CallError
from tidegate._policies import (
    BreakerPolicy,
    Degrade,
    Fallback,
    Limits,
    RetryBudget,
    RetryPolicy,
    SpendCap,
    Timeouts,
)

__all__ = [
    "Attempt",
    "CallInfo",
    "Diagnosis",
    "Engine",
    "Exchange",
    "Guard",
    "Hold",
    "LoopQueue",
    "MockServer",
    "Operation",
    "Receipt",
    "Response",
    "Retry",
    "Route",
    "Store",
    "Stream",
    "Ticket",
    "Transaction",
    "Transport",
    "Upstream",
    "Usage",
    "VERSION",
    "_after_fork_in_child",
    "_at_exit",
    "_probe",
    "_restore_call_info",
    "check_key",
    "check_policy",
    "escape_key",
    "fingerprint",
    "idem_key",
    "looks_random",
    "official_json",
    "turn",
]

VERSION: str
_probe: ModuleType

def check_policy(
    kind: Literal["retry", "timeouts", "limits", "breaker", "retry_budget", "spend", "degrade"],
    policy: object,
) -> None:
    """Read every attribute of a policy; raise `ConfigError` about the first that is wrong."""

def _after_fork_in_child() -> None: ...
def _at_exit() -> None: ...
def _restore_call_info(json: str) -> CallInfo: ...

@final
class Engine:
    """The state behind a `Gate`."""

    def __new__(
        cls,
        *,
        retry: RetryPolicy,
        timeouts: Timeouts,
        limits: Sequence[tuple[str, Limits]],
        breaker: BreakerPolicy | None,
        retry_budget: RetryBudget | None,
        spend: Sequence[SpendCap],
        fallbacks: Sequence[tuple[str, Fallback]],
        degrade: Degrade | None,
        prices: str | None,
        log_file: str | None,
        log_rotation: tuple[int, int] | None,
        seed: int | None,
    ) -> Engine:
        """Make an engine.

        Args:
            retry: When failed attempts are repeated.
            timeouts: Bounds where an upstream names none.
            limits: Patterns with their limits; the first that matches the model holds, and one is ``"*"``.
            breaker: `None` for none.
            retry_budget: `None` for none.
            spend: Caps, each of which must have room for a call.
            fallbacks: Patterns of models with what stands in for them, in order.
            degrade: `None` for none.
            prices: JSON, see `tidegate.Prices.to_json`.
            log_file: Where events are appended as lines of JSON.
            log_rotation: Bytes of a full file, and how many full files are kept.
            seed: Of everything random.
        """

    def upstream(
        self,
        *,
        base_url: str,
        api_key: str | None,
        headers: Mapping[str, str],
        timeouts: Timeouts | None,
        max_attempts: int | None,
        ca_bundle: str | None,
        http2: bool,
        proxy: str | None,
    ) -> Upstream:
        """Name a base URL with its credential. `None` is the engine's own setting."""

    def snapshot(self) -> dict[str, Any]:
        """Return what was counted, and the state of every scope."""

    def metrics_text(self) -> str:
        """Return the metrics in Prometheus' text format."""

    def metrics(self) -> dict[str, Any]:
        """Return the metrics as plain data.

        ``families``: ``name``, ``kind``, ``unit``, ``help``, ``labels``, and ``samples``, pairs of the
        labels' values and a value: a number, decimal text for money, or ``count``, ``sum`` and ``buckets`` of
        a histogram. ``latencies``: pairs of milliseconds and how often they came lately.
        """

    def usage(self) -> list[dict[str, Any]]:
        """Return what calls used and cost, a row per hour, model and tags."""

    def decide(self, decision: str, origin: str, model: str) -> None:
        """Have these breakers do as an operator says: ``open``, ``disabled`` or ``reset``."""

    def observe(
        self,
        observer: Callable[[str, str, str | None, bool], tuple[str | None, str | None, list[tuple[str, str]]]]
        | None,
    ) -> None:
        """Ask `observer` where each call belongs.

        It is given method, URL without its query, model, and whether a stream is asked for, and returns trace
        id, span id and headers to be sent. All events of the call go to `tidegate._log.emit`.
        """

@final
class Upstream:
    """One base URL with its credential."""

    @property
    def base_url(self) -> str:
        """As it was given."""

    @overload
    def submit(
        self,
        method: str,
        path: str,
        options: Mapping[str, Any] | None,
        *,
        json: object = None,
        content: bytes | None = None,
        log_level: int = ...,
        context: Context | None = None,
        stream: None = None,
    ) -> Ticket[Response]:
        """Start a call on the running loop.

        Args:
            method: GET, POST, ….
            path: Below the base URL.
            options: ``headers``, ``params``, ``timeout``, ``total_timeout``, ``max_attempts``, ``tags``,
                ``trace_id``, ``stream_end``; all optional, none of them `None`.
            json: The body, to be written as JSON.
            content: The body as it is.
            log_level: The lowest level of events to be logged; 100 for none.
            context: In which they are logged.
            stream: ``"events"`` or ``"bytes"`` hands the answer on while it comes, event by event or as it
                is: the result is a `Stream` once its first content has come, or the `Response` where the
                answer is one piece of JSON.
        """

    @overload
    def submit(
        self,
        method: str,
        path: str,
        options: Mapping[str, Any] | None,
        *,
        json: object = None,
        content: bytes | None = None,
        log_level: int = ...,
        context: Context | None = None,
        stream: Literal["events", "bytes"],
    ) -> Ticket[Response | Stream]: ...
    @overload
    def call(
        self,
        method: str,
        path: str,
        options: Mapping[str, Any] | None,
        *,
        json: object = None,
        content: bytes | None = None,
        log_level: int = ...,
        stream: None = None,
    ) -> Response:
        """Make a call and wait for its end without the interpreter; see `submit`."""

    @overload
    def call(
        self,
        method: str,
        path: str,
        options: Mapping[str, Any] | None,
        *,
        json: object = None,
        content: bytes | None = None,
        log_level: int = ...,
        stream: Literal["events", "bytes"],
    ) -> Response | Stream: ...

_T = TypeVar("_T", default=Any)

@final
class LoopQueue:
    """Where an event loop collects what has arrived for it."""

    def _drain(self) -> None: ...

@final
class Ticket(Generic[_T]):
    """Something under way on a loop."""

    @property
    def future(self) -> Future[_T]:
        """What to await."""

    def cancel(self) -> None:
        """Stop the call if it still runs. Of a stream's `read`: wait no more for it."""

@final
class Stream:
    """An answer that is read while it comes: events, or bytes.

    Dropping it stops it. One reader at a time.
    """

    @property
    def status(self) -> int:
        """HTTP status, 2xx."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Names in lower case, with their values as they came."""

    @property
    def request_id(self) -> str | None:
        """The server's id of the request, for its support."""

    @property
    def info(self) -> CallInfo:
        """How the call went; until its end without usage and cost."""

    @property
    def ended(self) -> bool:
        """Whether nothing is left to be read."""

    def read(self) -> Ticket[list[Any]]:
        """Read, on the running loop, all that has come, and wait if nothing has; others of the loop go first.

        The future's list holds pairs of an event's name or `None` and its data (bytes), or bytes; it is empty
        at the end. After the last of a stream that broke off it raises `StreamInterruptedError`.
        """

    def ready(self) -> list[Any] | None:
        """Read all that has come without waiting; `None` if nothing has."""

    def read_blocking(self) -> list[Any]:
        """Read on any thread, and wait without the interpreter; see `read`."""

    def close(self) -> None:
        """Stop the stream, and wait until it is settled."""

    def aclose(self) -> Ticket[None]:
        """Stop the stream; the future is done once it is settled."""

@final
class Response:
    """An answer that is a success."""

    @property
    def status(self) -> int:
        """HTTP status, 2xx."""

    @property
    def headers(self) -> dict[str, str]:
        """Names in lower case; repeated ones are joined by ``", "``."""

    def header(self, name: str) -> str | None:
        """Return the first value of a header, named in lower case."""

    @property
    def content(self) -> bytes:
        """The body as it came, decompressed."""

    @property
    def text(self) -> str:
        """The body as text."""

    def json(self) -> Any:
        """Return the body read as JSON.

        Raises:
            ValueError: It is none; says where.
        """

    @property
    def usage(self) -> Usage | None:
        """What all attempts used, by the provider's word or an estimate; `None` where nothing is known."""

    @property
    def cost_usd(self) -> Decimal | None:
        """US dollars, exact; `None` where the price or the usage is not known."""

    @property
    def info(self) -> CallInfo:
        """How the call went."""

    @property
    def request_id(self) -> str | None:
        """The server's id of the request, for its support."""

@final
class Usage:
    """Tokens of one call, attempts that failed included.

    The prompt includes cached and cache-write tokens, the completion reasoning.
    """

    @property
    def prompt_tokens(self) -> int:
        """All of the input."""

    @property
    def completion_tokens(self) -> int:
        """All of the output."""

    @property
    def total_tokens(self) -> int:
        """Both."""

    @property
    def cached_tokens(self) -> int:
        """Of the prompt: read from a cache."""

    @property
    def cache_write_tokens(self) -> int:
        """Of the prompt: written to a cache."""

    @property
    def reasoning_tokens(self) -> int:
        """Of the completion: not shown."""

    @property
    def source(self) -> Literal["reported", "estimated", "unknown"]:
        """Where the figures come from."""

@final
class Retry:
    """One retry that was made."""

    @property
    def reason(self) -> str:
        """What the attempt before it failed of."""

    @property
    def delay_s(self) -> float:
        """The wait before it, in seconds."""

@final
class CallInfo:
    """How a call went."""

    @property
    def trace_id(self) -> str:
        """The call's id in logs; 32 hex digits."""

    @property
    def model(self) -> str:
        """As asked for; empty if the request names none."""

    @property
    def attempts(self) -> int:
        """Requests that were sent."""

    @property
    def retries(self) -> tuple[Retry, ...]:
        """The retries among them."""

    @property
    def usage(self) -> Usage | None:
        """What all attempts used, by the provider's word or an estimate; `None` where nothing is known."""

    @property
    def cost_usd(self) -> Decimal | None:
        """US dollars, exact; `None` where the price or the usage is not known."""

    @property
    def queue_s(self) -> float:
        """Seconds spent waiting for admission."""

    @property
    def latency_s(self) -> float:
        """Seconds from the start of the call to its end, queue and waits included."""

    @property
    def first_byte_s(self) -> float | None:
        """Seconds from the last attempt's start to the first byte of its answer."""

    @property
    def first_chunk_s(self) -> float | None:
        """Seconds from the start of the call to the first content of a stream."""

    @property
    def degraded(self) -> bool:
        """Whether this is a substitute for the answer that was asked for."""

    @property
    def notice(self) -> str | None:
        """What to tell the user about it."""

_Errand: TypeAlias = Literal["attempt", "admit", "whole"]
_Request: TypeAlias = tuple[str, str, list[tuple[bytes, bytes]], bytes, tuple[float | None, ...] | None]

@final
class Transport:
    """How requests leave that were made elsewhere; see `tidegate.httpx`."""

    def __new__(
        cls, engine: Engine, *, ca_bundle: str | None, http2: bool, proxy: str | None
    ) -> Transport: ...
    def exchange(
        self,
        *,
        max_attempts: int | None = None,
        tags: Mapping[str, str] | None = None,
        log_level: int = ...,
        failed_before: tuple[int, int] | None = None,
        outer: tuple[str, str, float | None] | None = None,
    ) -> Exchange:
        """Open a call, of which nothing is sent yet. `None` is the gate's own number of attempts.

        Args:
            max_attempts: Requests at most.
            tags: Labels of the call.
            log_level: The lowest level of events to be logged; 100 for none.
            failed_before: A request that has just failed, and after how many attempts.
            outer: Of the guarded call that it is made in: trace id, span id, and the seconds left.
        """

def official_json(arguments: dict[str, Any]) -> bytes | None:
    """Return the body that a method's arguments make; `None` if one of them is not plain."""

@final
class Route:
    """One method of an API, as a client of the openai package calls it."""

    def __new__(
        cls,
        transport: Transport,
        url: str,
        headers: list[tuple[bytes, bytes]],
        phases: tuple[float | None, ...] | None,
        max_attempts: int,
    ) -> Route: ...
    def submit(
        self,
        arguments: dict[str, Any],
        options: Mapping[str, Any] | None = None,
        *,
        stream: bool = False,
        log_level: int = ...,
        context: Context | None = None,
    ) -> Ticket[Response | Stream | Attempt] | None:
        """Start a call on the running loop.

        The result is a `Response` or `Stream` if it succeeds, else an `Attempt`. Returns `None`, and starts
        none, if an argument is not plain.

        Raises:
            RuntimeError: No loop of asyncio runs on this thread.
        """

    def call(
        self,
        arguments: dict[str, Any],
        options: Mapping[str, Any] | None = None,
        *,
        stream: bool = False,
        log_level: int = ...,
    ) -> Response | Stream | Attempt | None:
        """Make a call and wait for its end without the interpreter; see `submit`."""

@final
class Exchange:
    """A call whose attempts are asked for one by one, or as a whole.

    A request is its method, URL, raw headers, body, and seconds for connect, read, write and pool. An errand
    is ``attempt`` (gates, request, answer), ``admit`` (the gates; the caller sends) or ``whole`` (every
    attempt).
    """

    def submit(
        self, errand: _Errand, request: _Request, *, context: Context | None = None
    ) -> Ticket[Attempt | Stream]:
        """Start an errand on the running loop; its future's result is an `Attempt`.

        Raises:
            RuntimeError: No loop of asyncio runs on this thread.
        """

    def call(self, errand: _Errand, request: _Request) -> Attempt | Stream:
        """Do an errand and wait for its end without the interpreter."""

    def answered(
        self,
        request: _Request,
        status: int,
        headers: list[tuple[bytes, bytes]],
        content: bytes,
        first_byte: float,
    ) -> Attempt:
        """Tell of the answer to an attempt that the caller sent after ``admit``."""

    def streamed(self, request: _Request, status: int, headers: list[tuple[bytes, bytes]]) -> Receipt | None:
        """Tell of the head of such an answer; the receipt for the rest, if it is handed on as it comes."""

    def failed(self, kind: str, message: str) -> Attempt:
        """Tell that such an attempt got no answer."""

    def cut(self) -> Attempt:
        """Tell that the call's deadline came during such an attempt."""

@final
class Guard:
    """One call of a function: the gates before it, and what they make of its failures."""

    def __new__(
        cls,
        engine: Engine,
        name: str,
        *,
        tokens: int = 0,
        timeout: float | None = None,
        total_timeout: float | None = None,
        max_attempts: int | None = None,
        tags: Mapping[str, str] | None = None,
        outer: tuple[str, str, float | None] | None = None,
        counted_elsewhere: bool = False,
        log_level: int = ...,
    ) -> Guard: ...
    @property
    def trace_id(self) -> str:
        """Of the call in logs; 32 hex digits."""

    @property
    def span_id(self) -> str:
        """Of the call in logs; 16 hex digits."""

    def submit(self, *, context: Context | None = None) -> Ticket[Attempt]:
        """Pass the gates on the running loop; the `Attempt` has a refusal's error, or the limit in time."""

    def call(self) -> Attempt:
        """Pass the gates, and wait for that without the interpreter."""

    def returned(self, tokens: int | None = None) -> Attempt:
        """Tell that the function has returned, and used so many tokens."""

    def raised(
        self,
        class_: str,
        transient: bool,
        repeatable: bool,
        hint: float | None,
        outcome_unknown: bool,
        message: str,
        /,
    ) -> Attempt:
        """Tell what the function has raised; ``retry_in`` says whether it may be called again."""

    def cut(self) -> Attempt:
        """Tell that the call's deadline came while the function ran."""

    def leave(self) -> None:
        """Give up the call; what it holds goes back."""

@final
class Receipt:
    """The receipt of a stream that the caller receives. Dropping it is leaving the stream."""

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Raw pairs, names in lower case."""

    @property
    def info(self) -> CallInfo:
        """How the call went, as far as it has."""

    @property
    def limit(self) -> float | None:
        """Seconds within which the stream has to end, 0 once they are over; `None` if it has for ever."""

    def feed(self, piece: bytes | None) -> None:
        """Tell of a piece that came, decompressed, or with `None` of the end."""

    def fail(self, kind: str, message: str) -> None:
        """Tell that it broke off."""

    def cut(self) -> None:
        """Tell that the call's deadline came first."""

    def close(self) -> None:
        """Tell that nobody wants the rest."""

    def check(self) -> None:
        """Raise what the stream ended with, if it has and failed."""

@final
class Attempt:
    """What became of an attempt, or of a whole call."""

    @property
    def status(self) -> int | None:
        """HTTP status that the answer means; `None` without an answer."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Raw pairs, names in lower case."""

    @property
    def content(self) -> bytes:
        """The body, decompressed."""

    @property
    def failure(self) -> tuple[str, str] | None:
        """What kept an answer from coming: kind and words."""

    @property
    def retry_in(self) -> float | None:
        """Seconds to wait before another attempt; `None` if the call is over."""

    @property
    def error(self) -> CallError | None:
        """What the call ended with, if it is over and failed."""

    @property
    def info(self) -> CallInfo | None:
        """How the call went, if it is over."""

    @property
    def as_it_came(self) -> bool:
        """Whether the answer is a stream that failed before its first content, for the caller to read."""

    @property
    def limit(self) -> float | None:
        """Seconds within which the caller's own attempt has to end."""

@final
class Diagnosis:
    """A log in the course of being read; see `tidegate._doctor`. Releases the GIL while it reads."""

    def __new__(cls, paths: Sequence[str | PathLike[str]]) -> Diagnosis:
        """Open the files.

        Raises:
            OSError: One of them cannot be read.
        """

    def bytes_in_all(self) -> int:
        """Return how much the files hold."""

    def bytes_read(self) -> int:
        """Return how much of it was read."""

    def advance(self, size: int) -> bool:
        """Read on for about `size` bytes; false at the end.

        Raises:
            OSError: A file cannot be read.
        """

    def report(self) -> str:
        """Return what was found, as a JSON object. Can be called once.

        Raises:
            RuntimeError: It was called before.
        """

@final
class MockServer:
    """The fault server; see `tidegate.testing.FaultServer`. JSON in, JSON out."""

    def __new__(cls, config: str) -> MockServer: ...
    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT/v1``."""

    @property
    def port(self) -> int:
        """Where it listens."""

    def script(self, script: str) -> None:
        """Set the script, or add to it."""

    def ledger(self) -> str:
        """Return what was asked, sent and billed."""

    def reset_ledger(self) -> None:
        """Forget what was served."""

    def stop(self) -> None:
        """Close every connection and stop."""

@final
class Operation:
    """One change of a record, ready to be sent. Times are in seconds; an owner is 16 random bytes."""

    @property
    def owner(self) -> bytes | None:
        """Of a claim: whose it is."""

    @staticmethod
    def begin(
        owner: bytes, fingerprint: bytes, effect: str, tool: str, lease: float, retention: float, start: bool
    ) -> Operation:
        """Claim the record, and with `start` let the effect begin.

        Answered by ``("acquired", fence, attempts)``, ``("replay", ok, codec, result)``,
        ``("in_progress", lease_left)``, ``("mismatch",)`` or ``("in_doubt", fence, started)``.
        """

    @staticmethod
    def start(owner: bytes, fence: int, lease: float) -> Operation:
        """Let the effect begin; answered, like all that follow, by ``("held",)`` or ``("stale",)``."""

    @staticmethod
    def heartbeat(owner: bytes, fence: int, lease: float, note: str | None) -> Operation:
        """Renew the lease."""

    @staticmethod
    def complete(owner: bytes, fence: int, ok: bool, codec: str, result: bytes) -> Operation:
        """Keep a result, or an error for good."""

    @staticmethod
    def fail(owner: bytes, fence: int, unknown: bool) -> Operation:
        """Give the record up: free if nothing was done, else as its effect class says."""

    @staticmethod
    def resolve(fence: int | None, ok: bool, codec: str | None, result: bytes) -> Operation:
        """Decide on a record without an owner; without a codec: it was not done."""

@final
class Store:
    """The records of one store. Everything that waits raises `StoreUnavailableError` if it waits in vain."""

    def __new__(cls, engine: Engine, url: str) -> Store:
        """Name a store; it is connected on first use."""

    @property
    def kind(self) -> Literal["memory", "sqlite", "redis"]:
        """Which kind of store it is."""

    def answer(self, key: str, operation: Operation) -> tuple[Any, ...] | None:
        """Answer at once, if this store can."""

    def submit(self, key: str, operation: Operation, patience: float) -> Ticket:
        """Ask on the running loop; `patience` is how long a store may be out of reach, in seconds."""

    def call(self, key: str, operation: Operation, patience: float) -> tuple[Any, ...]:
        """Ask and wait without the interpreter."""

    def post(self, key: str, operation: Operation, patience: float) -> None:
        """Send what nobody waits for."""

    def get(self, key: str) -> dict[str, Any] | None:
        """Return a record."""

    def list(self, prefix: str, states: Sequence[str], limit: int) -> list[tuple[str, dict[str, Any]]]:
        """Return records, oldest first."""

    def purge(self) -> int:
        """Drop what has expired; return how many."""

    def hold(self, key: str, owner: bytes, fence: int, lease: float, watched: bool) -> Hold:
        """Renew a lease until the hold is stopped; `watched` gives it a ticket on the running loop."""

    def transaction(self) -> Transaction | None:
        """Open a transaction on the file of a store that is one."""

    def tell(
        self,
        *,
        tool: str,
        key: str | None,
        effect: str,
        fingerprint: bytes | None,
        status: str | None,
        decision: str | None,
        outcome: str | None,
        reason: str | None,
        attempts: int | None,
        log_level: int,
    ) -> None:
        """Count and log a decision."""

@final
class Transaction:
    """What a transactional tool writes through; see `Execution.connection`. It ends with the tool."""

    def execute(self, sql: str, parameters: Iterable[object] | None = None, /) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows.

        Args:
            sql: With ``?`` for each parameter.
            parameters: `None`, numbers, strings or bytes.

        Raises:
            ValueError: SQLite refuses it.
            TypeError: A parameter is no value of SQLite.
            RuntimeError: The tool has ended.
        """

    @property
    def changes(self) -> int:
        """Rows that the last statement changed."""

    def _complete(self, key: str, owner: bytes, fence: int, codec: str, result: bytes) -> bool: ...
    def _close(self) -> None: ...

@final
class Hold:
    """A lease that is being renewed."""

    @property
    def lost(self) -> bool:
        """Whether it is another's by now."""

    @property
    def ticket(self) -> Ticket | None:
        """Its future ends when the lease does."""

    def stop(self) -> None:
        """Renew it no more."""

def turn() -> Ticket[None]:
    """Return a ticket for the next turn on the running loop, behind all that waits to be handed over."""

def idem_key(tenant: str, workflow: str, biz_id: str, step: str) -> str:
    """Return ``idem:{tenant}:{workflow}:{biz_id}:{step}``, escaped."""

def escape_key(part: str) -> str:
    """Return a part of a key, such that it holds no border between parts."""

def check_key(key: str) -> None:
    """Raise `ConfigError` for a key that no store can hold."""

def looks_random(part: str) -> str | None:
    """Return why a part of a key looks as if it were different on every retry."""

def fingerprint(tool: str, version: str, arguments: object) -> bytes:
    """Return the SHA-256 of tool, version and arguments; `EncodeError` names the path of what is no JSON."""

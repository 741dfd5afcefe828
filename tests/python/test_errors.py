import copy
import pickle

import pytest

import tidegate
from tidegate import Client, ConfigError, EncodeError, Gate, RetryPolicy
from tidegate._errors import CallError, build, config_error, encode_error
from tidegate.testing import FaultServer

CALL_ERRORS = sorted(
    {value for value in vars(tidegate).values() if isinstance(value, type) and issubclass(value, CallError)},
    key=lambda cls: cls.__name__,
)
CLONES = [
    *(
        lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol))
        for protocol in range(2, 6)
    ),
    copy.copy,
    copy.deepcopy,
]


def fields(**changes):
    return {
        "reason": "attempts",
        "cause": "answer",
        "error_class": "server_error",
        "status": 500,
        "code": None,
        "message": "The server had an error.",
        "headers": {"x-request-id": "req_1", "set-cookie": "session=SECRET"},
        "body": b"{}",
        "attempts": 4,
        "elapsed": 1.25,
        "retry_after": None,
        "trace_id": "ab" * 16,
        "info": None,
        **changes,
    }


@pytest.mark.parametrize("clone", CLONES)
@pytest.mark.parametrize("cls", CALL_ERRORS)
def test_copies_keep_type_and_attributes(cls, clone):
    error = cls(
        "told", kind="server", reason="attempts", attempts=2, elapsed=0.5, retry_after=3.0, trace_id="ab",
        status=503, code="c", headers={"X-Request-Id": "req_1"}, body=b"\x00", info=None,
    )  # fmt: skip
    error.add_note("while summarising")
    twin = clone(error)
    assert type(twin) is cls
    assert vars(twin) == vars(error)
    assert twin.args == error.args
    assert str(twin) == str(error)


@pytest.mark.parametrize("clone", CLONES)
@pytest.mark.parametrize("error", [ConfigError("a.b", 1, "must be 2"), EncodeError("$.a", "is a set")])
def test_copies_of_the_other_errors(error, clone):
    twin = clone(error)
    assert (type(twin), vars(twin), str(twin)) == (type(error), vars(error), str(error))


@pytest.mark.parametrize(
    ("changes", "cls", "kind", "retryable"),
    [
        ({}, "InternalServerError", "server", True),
        ({"error_class": "rate_limit", "status": 429}, "RateLimitError", "rate_limit", True),
        ({"error_class": "quota", "status": 429}, "QuotaExhaustedError", "quota", False),
        ({"error_class": "overloaded", "status": 529}, "OverloadedError", "overloaded", True),
        ({"error_class": "timeout", "status": 408}, "APIStatusError", "timeout", True),
        ({"error_class": "timeout", "status": 504}, "InternalServerError", "timeout", True),
        ({"error_class": "conflict", "status": 409}, "ConflictError", "conflict", True),
        ({"error_class": "auth", "status": 401}, "AuthenticationError", "auth", False),
        ({"error_class": "permission", "status": 403}, "PermissionDeniedError", "auth", False),
        ({"error_class": "not_found", "status": 404}, "NotFoundError", "bad_request", False),
        ({"error_class": "context_length", "status": 400}, "BadRequestError", "too_large", False),
        ({"error_class": "content_filter", "status": 400}, "BadRequestError", "bad_request", False),
        ({"error_class": "request_too_large", "status": 429}, "RequestTooLargeError", "too_large", False),
        ({"error_class": "invalid_request", "status": 400}, "BadRequestError", "bad_request", False),
        ({"error_class": "invalid_request", "status": 422}, "UnprocessableEntityError", "bad_request", False),
        ({"error_class": "invalid_request", "status": 405}, "APIStatusError", "bad_request", False),
        ({"error_class": "model_output", "status": 422}, "UnprocessableEntityError", "bad_request", False),
        ({"error_class": "malformed", "status": 200}, "MalformedResponseError", "malformed_response", True),
        ({"error_class": "empty", "status": 200}, "EmptyResponseError", "empty_response", True),
        ({"error_class": "redirect", "status": 302}, "APIStatusError", "redirect", False),
        ({"reason": "non_retryable"}, "InternalServerError", "server", False),
        ({"reason": "breaker_open"}, "InternalServerError", "server", True),
    ],
)
def test_answers(changes, cls, kind, retryable):
    error = build(fields(**changes))
    assert (type(error).__name__, error.kind, error.retryable) == (cls, kind, retryable)


@pytest.mark.parametrize(
    ("transport", "cls", "kind"),
    [
        ("connect", "APIConnectionError", "connection"),
        ("connect_timeout", "APITimeoutError", "timeout"),
        ("reset", "APIConnectionError", "connection"),
        ("not_processed", "APIConnectionError", "connection"),
        ("first_byte_timeout", "APITimeoutError", "timeout"),
        ("idle_timeout", "APITimeoutError", "timeout"),
        ("attempt_timeout", "APITimeoutError", "timeout"),
        ("body", "APIConnectionError", "connection"),
        ("decode", "MalformedResponseError", "malformed_response"),
        ("redirect", "APIConnectionError", "redirect"),
        ("request", "APIConnectionError", "bad_request"),
    ],
)
def test_no_answer(transport, cls, kind):
    error = build(fields(cause="transport", error_class=transport, status=None, headers={}, body=b""))
    assert (type(error).__name__, error.kind) == (cls, kind)


@pytest.mark.parametrize(
    ("reason", "cls", "kind"),
    [
        ("breaker_open", "CircuitOpenError", "breaker_open"),
        ("admission_deadline", "AdmissionError", "admission"),
        ("request_too_large", "RequestTooLargeError", "too_large"),
        ("deadline", "DeadlineExceededError", "timeout"),
        ("spend_cap", "SpendCapExceededError", "spend_cap"),
        ("closed", "APIConnectionError", "closed"),
        ("cancelled", "APIConnectionError", "cancelled"),
    ],
)
def test_refused_here(reason, cls, kind):
    error = build(fields(cause="local", error_class="", reason=reason, status=None, attempts=0, headers={}))
    assert (type(error).__name__, error.kind) == (cls, kind)
    assert "not sent because" in str(error)


def test_official_names_stand_in_official_order():
    assert issubclass(tidegate.DeadlineExceededError, tidegate.APITimeoutError)
    assert issubclass(tidegate.APITimeoutError, tidegate.APIConnectionError)
    assert issubclass(tidegate.QuotaExhaustedError, tidegate.RateLimitError)
    assert issubclass(tidegate.RateLimitError, tidegate.APIStatusError)
    assert issubclass(ConfigError, ValueError)
    assert issubclass(EncodeError, ValueError)


def test_no_cookie_and_no_credential_in_headers_or_pickle():
    error = build(fields(headers={"Set-Cookie": "s=SECRET", "Authorization": "Bearer SECRET", "X-A": "1"}))
    assert error.headers == {"x-a": "1"}
    assert b"SECRET" not in pickle.dumps(error)


NO_ANSWER = {"status": None, "headers": {}, "trace_id": ""}
SENTENCES = [
    (
        {"error_class": "rate_limit", "status": 429, "retry_after": 20.0, "message": "Rate limit reached."},
        """429 rate limit: Rate limit reached (gave up after 4 attempts in 1.25 s because all its attempts
        were used; wait 20 s before trying again; request id req_1)""",
    ),
    (
        {"error_class": "auth", "status": 401, "code": "invalid_api_key", "reason": "non_retryable",
         "attempts": 1, "message": "Incorrect\n  API key", "headers": {}},
        """401 auth, invalid_api_key: Incorrect API key (gave up after 1 attempt in 1.25 s because trying
        again would not help; check the API key and what it may do; trace id
        abababababababababababababababab)""",
    ),
    (
        {"cause": "transport", "error_class": "reset", "reason": "non_retryable", "attempts": 1,
         "message": "connection reset", **NO_ANSWER},
        """connection: connection reset (gave up after 1 attempt in 1.25 s because the server may have acted
        on it, so that repeating it could act twice; check base_url, the network and the proxy)""",
    ),
    (
        {"cause": "local", "error_class": "", "reason": "breaker_open", "attempts": 0, "retry_after": 12.5,
         "message": "the breaker is open", **NO_ANSWER},
        """the breaker is open (not sent because the circuit breaker is open; wait 12.5 s before trying
        again)""",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), SENTENCES)
def test_the_message_says_what_how_often_why_and_what_to_do(changes, said):
    assert str(build(fields(**changes))) == " ".join(said.split())


def test_a_long_message_is_cut_for_people_only():
    error = build(fields(message="x" * 10_000))
    assert len(str(error)) < 1_000
    assert len(error.message) == 10_000


def test_factories_of_the_core():
    assert str(config_error("retry.base", "6", "must not be greater than retry.cap")) == (
        "retry.base = 6: must not be greater than retry.cap"
    )
    assert str(encode_error("$.messages[0]", "a set is no JSON")) == "$.messages[0]: a set is no JSON"


@pytest.mark.parametrize("clone", CLONES)
def test_an_error_that_a_call_raised_survives(clone):
    gate = Gate(retry=RetryPolicy(max_attempts=2, base=0.001))
    with FaultServer([{"status": 500}], repeat_last=True) as server:
        client = Client(server.url, "sk-CANARY", gate=gate)
        with pytest.raises(CallError) as caught:
            client.post("/chat/completions", json={"model": "m", "messages": []})
        error = caught.value
        twin = clone(error)
    assert type(twin) is tidegate.InternalServerError
    assert (twin.attempts, twin.status, twin.reason) == (2, 500, "attempts")
    assert twin.info.trace_id == error.info.trace_id == error.trace_id
    assert twin.info.attempts == 2
    assert len(twin.info.retries) == 1
    assert b"CANARY" not in pickle.dumps(error)


def _tool_errors(cls=tidegate.ToolError):
    return [cls, *(found for sub in cls.__subclasses__() for found in _tool_errors(sub))]


@pytest.mark.parametrize("cls", _tool_errors(), ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_of_tools_survive_pickling(cls, protocol):
    error = cls("what happened", tool="pay", key="order-7", reason="why", attempts=2, retry_after=1.5)
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is cls
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))

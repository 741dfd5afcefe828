"""Scenario `pickle_roundtrip`: errors that cross the border of a process."""

from __future__ import annotations

import copy
import functools
import multiprocessing
import pickle
import re
from concurrent.futures import ProcessPoolExecutor

import pytest

import tidegate
from cases import adapter, serving
from cases.case import Check
from cases.expect import unknown

_KEY = "sk-test-4f9cCANARY"
_JSON = {"content-type": "application/json"}
_BUSY = {
    "status": 429,
    "headers": {"Retry-After": "600", "x-request-id": "req-1"},
    "error": "rate_limit",
}

# What a server must answer for the error to be raised; those without have a way of their own.
_ANSWERS = {
    "APIStatusError": {"status": 302, "headers": {"location": "/login"}},
    "AuthenticationError": {"status": 401},
    "BadRequestError": {"status": 400},
    "ConflictError": {"status": 409},
    "EmptyResponseError": {"body_text": "", "headers": _JSON},
    "InternalServerError": {"status": 500},
    "MalformedResponseError": {"body_text": "{", "headers": _JSON},
    "NotFoundError": {"status": 404},
    "OverloadedError": {"status": 503},
    "PermissionDeniedError": {"status": 403},
    "QuotaExhaustedError": {"error": "insufficient_quota"},
    "RateLimitError": _BUSY,
    "RequestTooLargeError": {"status": 413},
    "UnprocessableEntityError": {"status": 422},
    "APITimeoutError": {"delay_s": 30},
    "DeadlineExceededError": {"delay_s": 30},
    "StreamDeadlineExceededError": {"fault": "stall"},
    "StreamInterruptedError": {"fault": "cut"},
}
_OPTIONS = {
    "APITimeoutError": {"timeout": 0.1},
    "DeadlineExceededError": {"total_timeout": 0.1},
    "StreamDeadlineExceededError": {"total_timeout": 0.2},
}
# Parents that are not raised themselves, and what no gate can raise yet.
_MADE = {
    "CallError": lambda: tidegate.CallError("m", kind="k", status=418, code="c", retry_after=1.0),
    "SpendCapExceededError": lambda: tidegate.SpendCapExceededError(
        "m", kind="spend_cap", reason="spend_cap"
    ),
    "TidegateError": lambda: tidegate.TidegateError("m"),
}


def provoke(name):
    """Raise the error of this name, for real where that is possible."""
    if name in _MADE:
        error = _MADE[name]()
        raise error
    if name == "ConfigError":
        tidegate.Client("ftp://example.test", _KEY)
    with serving.server([_ANSWERS.get(name, {})], repeat_last=True) as server:
        if name == "APIConnectionError":
            server.stop()
        limits = tidegate.Limits(rpm=1) if name == "AdmissionError" else "auto"
        gate = adapter.gate({"max_attempts": 1}, limits=limits, breaker=_breaker(name))
        client = tidegate.Client(server.url, _KEY, gate=gate, **_OPTIONS.get(name, {}))
        request = adapter.REQUEST
        if name == "EncodeError":
            request = {"model": object()}
        if name == "AdmissionError":
            client.post("/chat/completions", json=request)
            client.post("/chat/completions", json=request, total_timeout=0.1)
        if name == "CircuitOpenError":
            server.script([{"status": 500}], repeat_last=True)
            while True:
                try:
                    client.post("/chat/completions", json=request)
                except tidegate.InternalServerError:
                    continue
        if name.startswith("Stream"):
            list(client.stream("/chat/completions", json=request))
        client.post("/chat/completions", json=request)


def _breaker(name):
    if name != "CircuitOpenError":
        return None
    return tidegate.BreakerPolicy(window=1.0, minimum_calls=1, consecutive_hits=1, recency=0)


def _public():
    classes = [value for value in vars(tidegate).values() if isinstance(value, type)]
    errors = [cls for cls in classes if issubclass(cls, tidegate.TidegateError)]
    # Those of tools are raised by no call; tests of tools pickle them.
    return sorted(cls.__name__ for cls in errors if not issubclass(cls, tidegate.ToolError))


def pickle_roundtrip(content, expect):
    if not content["for"].startswith("every public exception class"):
        unknown("for", content["for"])
    strange = expect.keys() - {"type_equal", "attributes_equal", "no_secret_in_pickle_bytes"}
    if strange:
        unknown("expectations", sorted(strange))
    for name in _public():
        yield Check(name, functools.partial(_round_trips, name, content, expect))
    for transport in content["transports"]:
        if transport in _POOLS:
            yield Check(transport, functools.partial(_POOLS[transport], content))


def _raised(name):
    with pytest.raises(tidegate.TidegateError) as caught:
        provoke(name)
    assert type(caught.value).__name__ == name, repr(caught.value)
    return caught.value


def _equal(left, right, attributes):
    assert type(left) is type(right)
    assert str(left) == str(right)
    for attribute in attributes:
        assert getattr(left, attribute, None) == getattr(right, attribute, None), attribute


def _round_trips(name, content, expect):
    error = _raised(name)
    attributes = content["attributes"]
    for transport in content["transports"]:
        if protocols := re.fullmatch(r"pickle protocol (\d)\.\.(\d)", transport):
            for protocol in range(int(protocols[1]), int(protocols[2]) + 1):
                data = pickle.dumps(error, protocol)
                assert (_KEY.encode() not in data) is expect["no_secret_in_pickle_bytes"]
                _equal(pickle.loads(data), error, attributes)
        elif transport in {"copy.copy", "copy.deepcopy"}:
            _equal(getattr(copy, transport.removeprefix("copy."))(error), error, attributes)
        elif transport not in _POOLS:
            unknown("transport", transport)


def _through_executor(content):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        _crosses(lambda: pool.submit(provoke, "RateLimitError").result(60), content)


def _through_pool(content):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        _crosses(lambda: pool.apply_async(provoke, ("RateLimitError",)).get(60), content)


def _crosses(run, content):
    with pytest.raises(tidegate.RateLimitError) as caught:
        run()
    here = _raised("RateLimitError")
    for attribute in content["attributes"]:
        assert getattr(caught.value, attribute) == getattr(here, attribute), attribute


_POOLS = {"ProcessPoolExecutor": _through_executor, "multiprocessing.Pool": _through_pool}

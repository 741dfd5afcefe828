import json
import logging

import pytest

from tidegate import JSONFormatter
from tidegate._log import emit, level_for_calls

RECORD = {
    "schema": 1, "ts": 1.5, "event": "attempt", "trace_id": "ab" * 16, "origin": "https://a.test",
    "model": "m", "attempt": 1, "outcome": "server_error", "status": 500, "latency_s": 0.25,
    "tags": {"route": "r"},
}  # fmt: skip


@pytest.fixture
def logger():
    logger = logging.getLogger("tidegate")
    before = logger.level, logger.disabled
    yield logger
    logger.level, logger.disabled = before
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("level", "expected"), [(1, 10), (10, 10), (11, 20), (20, 20), (30, 30), (31, 100), (40, 100), (50, 100)]
)
def test_the_level_is_that_of_the_logger(logger, level, expected):
    logger.setLevel(level)
    assert level_for_calls() == expected


def test_what_is_disabled_costs_nothing(logger):
    logger.setLevel(10)
    logging.disable(logging.INFO)
    assert level_for_calls() == 30
    logging.disable(logging.CRITICAL)
    assert level_for_calls() == 100
    logging.disable(logging.NOTSET)
    logger.disabled = True
    assert level_for_calls() == 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "attempt 1 of m at https://a.test: server_error (500) after 0.250 s"),
        (
            {"event": "retry", "reason": "server_error", "delay_s": 0.5},
            "attempt 1 of m at https://a.test in 0.500 s because of server_error",
        ),
        ({"event": "wait", "queue_s": 2}, "m at https://a.test waited 2.000 s for admission"),
        (
            {"event": "call", "attempts": 4, "reason": "elapsed"},
            "m at https://a.test: server_error (500) in 4 attempt(s) after 0.250 s, ended by elapsed",
        ),
    ],
)
def test_a_record_reads_as_a_sentence_and_keeps_its_fields(caplog, changes, message):
    record = RECORD | changes
    with caplog.at_level(10, "tidegate"):
        emit(30, json.dumps(record).encode())
    (made,) = caplog.records
    assert made.getMessage() == f"{message} [trace {'ab' * 16}]"
    assert made.levelno == 30
    assert {name: getattr(made, name) for name in record} == record


def test_what_nobody_hears_is_not_made(caplog):
    with caplog.at_level(30, "tidegate"):
        emit(20, b"not even read")
    assert caplog.records == []


def test_a_field_that_logging_uses_itself_is_renamed(caplog):
    with caplog.at_level(10, "tidegate"):
        emit(20, json.dumps(RECORD | {"name": "x", "message": "y", "thread": 1}).encode())
    (made,) = caplog.records
    assert (made.tidegate_name, made.tidegate_message, made.tidegate_thread) == ("x", "y", 1)
    assert made.name == "tidegate"


def test_percent_signs_are_text(caplog):
    with caplog.at_level(10, "tidegate"):
        emit(20, json.dumps(RECORD | {"model": "100%s"}).encode())
    assert "100%s at" in caplog.records[0].getMessage()


def test_json_lines_hold_every_field(caplog):
    with caplog.at_level(10, "tidegate"):
        emit(30, json.dumps(RECORD).encode())
    line = JSONFormatter().format(caplog.records[0])
    assert "\n" not in line
    assert RECORD.items() <= json.loads(line).items()
    assert json.loads(line).items() >= {"level": "WARNING", "logger": "tidegate"}.items()


def test_json_lines_hold_other_peoples_records():
    try:
        {}["k"]
    except KeyError as error:
        exc_info = (KeyError, error, error.__traceback__)
    record = logging.LogRecord("app", 20, __file__, 1, "hello %s", ("world",), exc_info)
    record.user = object
    line = json.loads(JSONFormatter().format(record))
    assert (line["message"], line["level"], line["user"]) == ("hello world", "INFO", "<class 'object'>")
    assert line["exception"].endswith("KeyError: 'k'")

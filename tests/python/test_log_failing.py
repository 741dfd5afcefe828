"""No call fails because somebody's logging does."""

import asyncio
import logging
import sys

import pytest

from tidegate import AsyncClient, Client, Gate, RetryPolicy

BODY = {"model": "m", "messages": []}
# One attempt that fails, one that is answered: records of every level.
SCRIPT = [{"status": 500}, {"status": 200}]


class Failing(logging.Handler):
    """Raises from the method it is told to raise from; a filter's exception reaches the caller as it is."""

    def __init__(self, error, *, once=False):
        super().__init__()
        self.error = error
        self.once = once
        self.seen = 0

    def fail(self, _):
        self.seen += 1
        if self.seen == 1 or not self.once:
            raise self.error

    emit = fail


def as_handler(logger, failing):
    logger.addHandler(failing)


def as_filter(logger, failing):
    failing.filter = failing.fail
    logger.addFilter(failing)


def as_filter_of_a_handler(logger, failing):
    handler = logging.NullHandler()
    handler.handle = failing.fail
    logger.addHandler(handler)


PLACES = [as_handler, as_filter, as_filter_of_a_handler]


def sync(client):
    return Client(**client).post("/chat/completions", json=BODY)


def threaded(client):
    """From a thread, where no signal is listened for."""

    async def main():
        return await asyncio.to_thread(sync, client)

    return asyncio.run(main())


def in_loop(client):
    async def main():
        return await AsyncClient(**client).post("/chat/completions", json=BODY)

    return asyncio.run(main())


def in_loop_without_readers(client):
    class Loop(asyncio.SelectorEventLoop):
        def add_reader(self, *_):
            raise NotImplementedError

        remove_reader = add_reader

    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(AsyncClient(**client).post("/chat/completions", json=BODY))


WAYS = [sync, threaded, in_loop, in_loop_without_readers]


@pytest.fixture
def logger():
    logger = logging.getLogger("tidegate")
    before = logger.level, list(logger.handlers), list(logger.filters)
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.setLevel(before[0])
    logger.handlers, logger.filters = before[1], before[2]


@pytest.fixture
def client(server):
    server.script(SCRIPT)
    return {"base_url": server.url, "api_key": "key", "gate": Gate(retry=RetryPolicy(base=0.01, cap=0.02))}


@pytest.fixture
def unraisable(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    return reported


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
def test_a_failure_is_reported_and_the_call_goes_on(logger, client, unraisable, way, place):
    failing = Failing(ValueError("from logging"))
    place(logger, failing)
    assert way(client).info.attempts == 2
    assert failing.seen == 4, "attempt, retry, attempt, call"
    assert [report.exc_value for report in unraisable] == [failing.error] * failing.seen
    assert {report.object for report in unraisable} == {logger}


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_is_silent_where_logging_is(logger, client, unraisable, monkeypatch, way):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    failing = Failing(ValueError("from logging"))
    as_handler(logger, failing)
    assert way(client).status == 200
    assert failing.seen == 4
    assert unraisable == []


@pytest.mark.parametrize("way", [sync, in_loop, in_loop_without_readers])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_program_is_no_failure_of_logging(logger, client, unraisable, way, error):
    """As when a signal's handler runs while a record is written."""
    failing = Failing(error(), once=True)
    as_handler(logger, failing)
    with pytest.raises(error):
        way(client)
    assert unraisable == []

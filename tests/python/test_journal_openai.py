"""Journals of runs that ask through the official client."""

import pytest

from tidegate import ConfigError, Gate

openai = pytest.importorskip("openai")


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url, api_key="test", max_retries=0) as client:
        yield client


def asked(server):
    return server.ledger["requests"]["total"]


def test_an_answer_of_the_official_client_comes_back_as_it_was(store_url, client, server):
    gate = Gate(store=store_url)
    answers = []
    for wording in ("Hello.", "Hello again."):
        with gate.journal("run-7") as journal:
            messages = [{"role": "user", "content": wording}]
            answers.append(journal.ask(client.chat.completions.create, model="m", messages=messages))
    first, second = answers
    assert asked(server) == 1
    assert type(second) is type(first)
    assert second == first
    assert second.model_dump() == first.model_dump()
    assert second.model_fields_set == first.model_fields_set
    assert second.choices[0].message.content == first.choices[0].message.content


def test_a_client_for_a_framework_asks_through_the_journal(client, server):
    gate = Gate()
    with gate.journal("run-7") as journal:
        wrapped = journal.client(client)
        assert isinstance(wrapped, openai.OpenAI)
        for _ in range(2):
            wrapped.chat.completions.create(model="m", messages=[])
        wrapped.responses.create(model="m", input="Hello.")
    assert journal.turn == 3
    assert asked(server) == 3
    with gate.journal("run-7") as journal:
        wrapped = journal.client(client)
        for _ in range(2):
            wrapped.chat.completions.create(model="m", messages=[])
        answer = wrapped.responses.create(model="m", input="Hello.")
    assert asked(server) == 3
    assert answer.output_text
    client.chat.completions.create(model="m", messages=[])
    assert asked(server) == 4, "the client itself is as it was"


def test_copies_of_such_a_client_ask_through_the_journal_too(client, server):
    gate = Gate()
    for _ in range(2):
        with gate.journal("run-7") as journal:
            wrapped = journal.client(client)
            for copy in (wrapped.with_options(max_retries=1), wrapped.copy().copy(timeout=3)):
                copy.chat.completions.create(model="m", messages=[])
            assert (copy.timeout, journal.turn) == (3, 2)
    assert asked(server) == 2


@pytest.mark.parametrize("raw", ["with_raw_response", "with_streaming_response"])
def test_raw_responses_are_refused_before_anything_is_asked(client, server, raw):
    with Gate().journal("run-7") as journal:
        wrapped = journal.client(client)
        with pytest.raises(ConfigError, match="a raw one cannot be kept"):
            getattr(wrapped.responses, raw).create(model="m", input="Hello.").__enter__()
    assert (journal.turn, asked(server)) == (0, 0)


async def test_an_async_client_asks_through_the_journal(store_url, server):
    gate = Gate(store=store_url)
    async with openai.AsyncOpenAI(base_url=server.url, api_key="test", max_retries=0) as client:
        answers = []
        for _ in range(2):
            async with gate.journal("run-7") as journal:
                wrapped = journal.client(client)
                answers.append(await wrapped.chat.completions.create(model="m", messages=[]))
    assert asked(server) == 1
    assert answers[0] == answers[1]

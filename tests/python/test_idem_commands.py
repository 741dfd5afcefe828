import json

import pytest
from click.testing import CliRunner

from tidegate import Gate, ToolPolicy, _core
from tidegate._commands import tidegate


@pytest.fixture
def run(shared_url):
    """Run a subcommand of ``tidegate idem`` against the store."""

    def run(*arguments, **options):
        return CliRunner().invoke(
            tidegate, ["idem", *arguments], env={"TIDEGATE_STORE": shared_url}, **options
        )

    return run


def doubtful():
    raise ConnectionError


@pytest.fixture
def gate(shared_url):
    gate = Gate(store=shared_url)
    with pytest.raises(ConnectionError):
        gate.once("order-7", doubtful)
    gate.once("order-8", lambda: {"receipt": 8})
    return gate


@pytest.mark.usefixtures("gate")
def test_what_is_in_doubt_is_shown_first(run):
    shown = run("show")
    assert shown.exit_code == 0, shown.output
    assert "order-7" in shown.output
    assert "order-8" not in shown.output
    rows = json.loads(run("show", "--json", "--state", "done", "--state", "in_doubt").output)
    assert [(row["key"], row["state"]) for row in rows] == [("order-7", "in_doubt"), ("order-8", "done")]
    assert json.loads(run("show", "--json", "--state", "done", "--prefix", "order-7").output) == []


@pytest.mark.usefixtures("gate")
def test_a_record_is_shown_with_its_digest_and_not_its_result(run):
    row = json.loads(run("show", "order-8", "--json").output)
    assert row["state"] == "done"
    assert row["attempts"] == 1
    assert len(row["result_digest"]) == 64
    assert {"created", "updated", "expires"} <= row.keys()
    assert "result" not in row
    assert json.loads(json.loads(run("show", "order-8", "--json", "--result").output)["result"]) == {
        "receipt": 8
    }
    assert "result_digest" in run("show", "order-8").output
    missing = run("show", "order-9")
    assert missing.exit_code == 1
    assert "no record of order-9" in missing.output


def test_a_record_in_doubt_is_decided_once(gate, run):
    assert run("resolve", "order-7").exit_code == 2
    assert run("resolve", "order-7", "--done", input="n\n").exit_code == 1
    decided = run("resolve", "order-7", "--done", "--result", '{"receipt": 7}', "--yes")
    assert decided.output == "order-7 is done\n"
    assert gate.once("order-7", doubtful) == {"receipt": 7}
    again = run("resolve", "order-7", "--not-done", "--yes")
    assert again.exit_code == 1
    assert "nothing was changed" in again.output


def test_what_was_not_done_may_run_again(gate, run):
    assert run("resolve", "order-7", "--not-done", input="y\n").exit_code == 0
    assert gate.once("order-7", _succeeding()) == "done"


def _succeeding():
    def again():
        return "done"

    again.__qualname__ = doubtful.__qualname__
    return again


@pytest.mark.usefixtures("gate")
@pytest.mark.parametrize(
    "wrong",
    [
        ("order-7", "--done", "--result", "{"),
        ("order-7", "--not-done", "--result", "1"),
        ("order-9", "--done"),
    ],
)
def test_a_decision_that_cannot_be_is_refused(run, wrong):
    assert run("resolve", *wrong, "--yes").exit_code in (1, 2)
    assert json.loads(run("show", "order-7", "--json").output)["state"] == "in_doubt"


@pytest.mark.usefixtures("gate")
def test_another_acquisition_than_was_judged_is_not_decided(run):
    refused = run("resolve", "order-7", "--done", "--fence", "9", "--yes")
    assert refused.exit_code == 1
    assert "the fence of order-7 is 1 and not 9" in refused.stderr


def test_only_what_has_expired_is_dropped(gate, run, wait_until):
    gate.once("short", lambda: 1, policy=ToolPolicy(retention=0.001))
    wait_until(lambda: gate._tools.store.get("short") is None)
    dropped = run("purge")
    assert dropped.exit_code == 0
    kind = gate._tools.store.kind
    assert dropped.output == f"{1 if kind == 'sqlite' else 0} expired record(s) dropped\n"
    assert gate._tools.store.get("order-7") is not None


def test_a_tool_whose_process_is_gone_is_to_decide(gate, run, wait_until):
    """Nobody has asked for it since: its record still says that it runs."""
    for key, effect, lease in [
        ("gone", "at_most_once", 0.05),
        ("alive", "at_most_once", 60.0),
        ("repeats", "idempotent", 0.05),
    ]:
        begin = _core.Operation.begin(key.encode().ljust(16), b"f" * 32, effect, "tool", lease, 900.0, True)
        assert gate._store.call(key, begin, 5.0)[0] == "acquired"

    def shown():
        return [(row["key"], row["state"]) for row in json.loads(run("show", "--json").output)]

    wait_until(lambda: len(shown()) == 2)
    assert shown() == [("order-7", "in_doubt"), ("gone", "started")]
    assert "gone" in run("show", "--limit", "2").output
    assert "gone" not in run("show", "--limit", "1").output
    assert run("resolve", "gone", "--not-done", "--yes").output == "gone is free again\n"
    assert shown() == [("order-7", "in_doubt")]


def test_a_file_that_is_not_there_is_not_made(tmp_path):
    path = tmp_path / "typo.db"
    for command in (["show"], ["purge"], ["resolve", "k", "--done", "--yes"]):
        made = CliRunner().invoke(tidegate, ["idem", *command, "--store", f"sqlite:///{path}"])
        assert made.exit_code == 1
        assert f"there is no file {path}" in made.output
    assert not path.exists()


@pytest.mark.usefixtures("gate")
def test_a_decision_is_one_of_two(run):
    for options in (["--done", "--not-done"], []):
        refused = run("resolve", "order-7", *options, "--yes")
        assert refused.exit_code == 2
        assert "one of the two" in refused.output
    for fence in ("0", "-1"):
        assert run("resolve", "order-7", "--done", "--fence", fence, "--yes").exit_code == 2
    assert json.loads(run("show", "order-7", "--json").output)["state"] == "in_doubt"


@pytest.mark.parametrize(
    "key", ["refund:" + "a-very-long-part:" * 12, "pay[eur]-7", "pay:key:1", "x[/y]", "x[/]"]
)
def test_a_key_is_shown_as_it_is(gate, run, key):
    with pytest.raises(ConnectionError):
        gate.once(key, doubtful)
    assert key in run("show").output
    assert key in run("show", key).output


@pytest.mark.parametrize("url", ["memory:", "mysql://h", "redis://user:hush@127.0.0.1:1/0"])
def test_a_store_that_cannot_be_looked_at_is_an_error(url):
    for command in ("show", "purge"):
        told = CliRunner().invoke(tidegate, ["idem", command, "--store", url])
        assert told.exit_code == 1
        assert "hush" not in told.output

"""What goes wrong in these tests, and what the server's ledger and the gate's bill must say of it."""

from decimal import Decimal

from tidegate import _doctor

TEXT = "All systems work as expected"
PRICES = {"*": {"input": "1", "output": "2"}}
PROMPT_TOKENS, COMPLETION_TOKENS = 12, 5

WAIT = 0.05
LIMITED = {"status": 429, "headers": {"retry-after": f"{WAIT}"}}
BUSY = {"status": 503, "headers": {"retry-after-ms": "1"}}
# Two failures, which three attempts outlast.
BAD_START = (LIMITED, BUSY)
CUT = {"fault": "cut"}


def stacked(gate):
    """Calls that some layer around the gate made again."""
    name = "tidegate_stacked_retries_total "
    line = next(line for line in gate.metrics_text().splitlines() if line.startswith(name))
    return int(line.removeprefix(name))


def doctor_finds_retries(log):
    """Whether the doctor finds a layer of retries around the gate that wrote a log."""
    findings = _doctor.examine([log], lambda *_: None)["findings"]
    return next(each["verdict"] for each in findings if each["name"] == "double_retries") == "problem"


def assert_booked(server, gate, *, requests, answered=1, failed=0):
    """Each request was an attempt of the gate, each answer is on the bill once, and nothing else retried."""
    [row] = gate.usage(by=())
    assert server.ledger["requests"]["total"] == row.attempts == requests
    assert (row.calls, row.failed) == (answered + failed, failed)
    prompt, completion = answered * PROMPT_TOKENS, answered * COMPLETION_TOKENS
    assert (row.prompt_tokens, row.completion_tokens) == (prompt, completion)
    assert (row.cost_usd, row.estimated_usd) == (Decimal(prompt + 2 * completion) / 1_000_000, 0)
    assert stacked(gate) == 0


def assert_survived(server, gate):
    """One call outlasted a bad start, and the server's hint to wait was heeded."""
    assert_booked(server, gate, requests=3)
    first, second, _ = server.ledger["entries"]
    assert second["arrived_s"] - first["ended_s"] >= WAIT


def assert_cut(server, gate, *, at_most=COMPLETION_TOKENS):
    """A stream that broke off after its first content was not asked for again; its bill is an estimate."""
    [row] = gate.usage(by=())
    assert server.ledger["requests"]["total"] == row.attempts == row.calls == row.failed == 1
    assert 0 < row.completion_tokens <= at_most
    assert row.cost_usd == row.estimated_usd > 0

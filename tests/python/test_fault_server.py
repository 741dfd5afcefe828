import pytest

from tidegate import Client, ConfigError, Gate, RetryPolicy
from tidegate.testing import FaultServer

pytest_plugins = ["pytester"]


def test_a_scripted_failure_is_retried_and_counted():
    with FaultServer([{"status": 500}]) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/v1"
        client = Client(server.url, "test", gate=Gate(retry=RetryPolicy(base=0.001)))
        answer = client.post("/chat/completions", json={"model": "m", "messages": []})
        assert answer.info.attempts == 2
        assert server.ledger["requests"]["total"] == 2
        server.reset_ledger()
        assert server.ledger["requests"]["total"] == 0


def test_a_misspelt_setting_is_named():
    with pytest.raises(ConfigError, match="did you mean latency_ms"):
        FaultServer(latency=5)


def test_the_fixture(pytester):
    pytester.makeconftest('pytest_plugins = ["tidegate.testing"]')
    pytester.makepyfile(
        """
        def test_it(fault_server):
            assert fault_server.url.endswith("/v1")
            fault_server.script([{"status": 503}])
        """
    )
    pytester.runpytest("-q", "-p", "no:asyncio").assert_outcomes(passed=1)

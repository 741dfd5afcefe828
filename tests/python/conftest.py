import pytest


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    """Servers of tests are here: no proxy of the environment leads to them."""
    for name in ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

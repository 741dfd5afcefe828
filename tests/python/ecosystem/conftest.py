import asyncio

import pytest

from faults import PRICES
from tidegate import Gate


@pytest.fixture
def gate():
    return Gate(prices=PRICES)


@pytest.fixture
def down(server):
    """Serve nothing but errors."""
    server.script([{"status": 503, "headers": {"retry-after-ms": "1"}}], repeat_last=True)
    return server


@pytest.fixture
def drop_ins(server, gate):
    """Make the synchronous and the asynchronous client of the server."""
    openai = pytest.importorskip("openai", minversion="3.50")
    assert openai
    import tidegate

    settings = {"base_url": server.url, "api_key": "test", "gate": gate}
    return tidegate.OpenAI(**settings), tidegate.AsyncOpenAI(**settings)


@pytest.fixture
def loop():
    """Be the thread's loop for calls without asyncio, which frameworks make on one that they leave open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.close()
    asyncio.set_event_loop(None)

"""Scenarios about the life of processes: forks, and the ways to end."""

from __future__ import annotations

import functools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cases import case, child, serving
from cases.case import Check
from cases.expect import unknown

_FORK = """
    import json, multiprocessing, os, select, sys, time
    from concurrent.futures import ProcessPoolExecutor
    import tidegate
    url, parent, start, limit = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
    client = tidegate.Client(url, "key")
    def ask(name):
        begun = time.monotonic()
        try:
            answer = client.post("/chat/completions", json={"model": "m", "messages": []},
                                 headers={"x-test-call": name})
            said = answer.json()["choices"][0]["message"]["content"]
        except tidegate.TidegateError as error:
            said = f"{error} after {time.monotonic() - begun:.1f} s"
        return said
    def in_fork(answer):
        receiving, sending = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(sending, answer("child").encode())
            os._exit(0)
        ready, _, _ = select.select([receiving], [], [], limit)
        if not ready:
            os.kill(pid, 9)
        said = os.read(receiving, 65536).decode() if ready else "hang"
        return said, os.waitpid(pid, 0)[1]
    def in_process(answer):
        queue = multiprocessing.get_context("fork").SimpleQueue()
        process = multiprocessing.get_context("fork").Process(target=lambda: queue.put(answer("child")))
        process.start()
        process.join(limit)
        if process.exitcode is None:
            process.kill()
            return "hang", process.exitcode
        return queue.get(), process.exitcode
    def in_pool(answer):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
            return pool.submit(answer, "child").result(limit), 0
    if parent != "import only":
        assert ask("parent") == "parent"
    if parent == "stream open":
        stream = client.stream("/chat/completions", json={"model": "m", "messages": []},
                               headers={"x-test-call": "parent"})
        next(stream)
    starts = {"os.fork": in_fork, "multiprocessing fork Process": in_process, "fork": in_pool}
    said, status = starts[start](ask)
    print(json.dumps({"said": said, "status": status, "after": ask("parent")}))
    if parent == "stream open":
        assert len(list(stream)) > 0, "the parent's stream goes on"

"""


def fork(content, expect):
    for variant in content["variants"]:
        name = f"{variant['parent']}-{variant['start']}"
        run = functools.partial(_fork, variant, content["child_limit_s"], expect)
        yield Check(name, run)


def _fork(variant, limit, expect):
    parent = variant["parent"]
    # The executor's name stands where other rows say what the parent did before.
    done = "one request" if parent == "ProcessPoolExecutor" else parent
    if done not in {"one request", "import only", "stream open"}:
        unknown("parent", done)
    rules = [
        {"match": {"header": {"x-test-call": who}}, "respond": {"content": who}}
        for who in ("parent", "child")
    ]
    with serving.server(rules=rules) as server:
        result = child.told(_FORK, server.url, done, variant["start"], limit)
    for name, wanted in expect.items():
        if name == "child":
            assert result["said"] == "child" or ("ok" not in wanted and "fork" in result["said"]), result
        elif name == "never":
            # A reply of another's request would say `parent`, a signal would be in the status.
            assert result["said"] not in {"hang", "parent"}
            assert result["status"] == 0
        elif name == "parent_request_after":
            assert (result["after"] == "parent") is (wanted == "ok")
        else:
            unknown(name, wanted)


# Each ends as its name says, and writes the time at which it has nothing left to do.
_EXITS = {
    "after call": """
        client.post("/chat/completions", json=ask)
        over()
    """,
    "stream half read": """
        stream = client.stream("/chat/completions", json=ask, headers=drip)
        next(stream)
        async def main():
            async for _ in await asynchronous.stream("/chat/completions", json=ask, headers=drip):
                break
        asyncio.run(main())
        over()
    """,
    "task in flight": """
        async def main():
            task = asyncio.create_task(asynchronous.post("/chat/completions", json=ask, headers=slow))
            await asyncio.sleep(0.05)
            over()
        asyncio.run(main())
    """,
    "daemon thread in call": """
        go = lambda: client.post("/chat/completions", json=ask, headers=slow)
        threading.Thread(target=go, daemon=True).start()
        time.sleep(0.05)
        over()
    """,
    "non-daemon thread finishing later": """
        def go():
            client.post("/chat/completions", json=ask, headers=later)
            over()
        threading.Thread(target=go).start()
    """,
    "sys.exit(3) inside callback": """
        async def main():
            call = asyncio.ensure_future(asynchronous.post("/chat/completions", json=ask))
            def callback(_):
                over()
                sys.exit(3)
            call.add_done_callback(callback)
            await asyncio.sleep(5)
        asyncio.run(main())
    """,
    "exception at module level": """
        client.post("/chat/completions", json=ask)
        over()
        raise RuntimeError("on purpose")
    """,
    "spawned subprocess doing one call": """
        import subprocess
        client.post("/chat/completions", json=ask)
        again = "import sys, tidegate; " \\
            "tidegate.Client(sys.argv[1], 'key').post('/chat/completions', json={'model': 'm'})"
        subprocess.run([sys.executable, "-c", again, url], check=True)
        over()
    """,
}
_PREAMBLE = """
import asyncio, sys, threading, time
import tidegate
url = sys.argv[1]
ask = {"model": "m", "messages": []}
slow, later, drip = ({"x-test-call": name} for name in ("slow", "later", "drip"))
client, asynchronous = tidegate.Client(url, "key"), tidegate.AsyncClient(url, "key")
def over():
    print(time.time(), flush=True)
"""
_CODES = {"sys.exit(3) inside callback": 3, "exception at module level": 1}
_AT_ONCE = 2


def exits(content, expect):
    for variant in content["variants"]:
        runs = min(content["runs_each"], case.REPEATS)
        yield Check(variant, functools.partial(_exit, variant, runs, expect))


def _exit(variant, runs, expect):
    if variant not in _EXITS:
        pytest.skip(f"the runner does not know how to end: {variant}")
    strange = expect.keys() - {"exit_code", "stderr_extra", "signals", "exit_within_s"}
    if strange:
        unknown("expectations", sorted(strange))
    program = _PREAMBLE + child.textwrap.dedent(_EXITS[variant])
    code = _CODES.get(variant, 0)
    assert str(code) in expect["exit_code"]
    rules = [
        {"match": {"header": {"x-test-call": "slow"}}, "respond": {"delay_s": 30}},
        {"match": {"header": {"x-test-call": "later"}}, "respond": {"delay_s": 0.3}},
        {"match": {"header": {"x-test-call": "drip"}}, "respond": {"chunk_delay_s": 0.3}},
    ]

    def once(_):
        ran = child.run(program, server.url, expect=code)
        return ran, time.time() - float(ran.stdout.splitlines()[-1])

    with serving.server(rules=rules) as server, ThreadPoolExecutor(_AT_ONCE) as pool:
        ended = list(pool.map(once, range(runs)))
    for ran, taken in ended:
        said = ran.stderr
        if code == 1:
            assert said.startswith("Traceback")
            assert said.endswith("RuntimeError: on purpose\n")
            assert said.count("\n") <= 4
        else:
            assert said.strip() == expect["stderr_extra"]
        assert taken <= expect["exit_within_s"]

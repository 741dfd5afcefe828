"""Kind `metrics`: names that callers invent must not become series without end."""

from __future__ import annotations

import functools
import json
import re

from cases import child, serving
from cases.case import Check
from cases.expect import unknown

_NAMES = {
    "random 12 letters": "''.join(rng.choices(string.ascii_letters, k=12))",
    "200-byte names": "''.join(rng.choices(string.ascii_letters, k=200))",
    "names with newline, quote, backslash, NUL, emoji": (
        """rng.choice('\\n"\\\\\\0🌍') + str(rng.random()) + '\\n"\\\\\\0🌍'"""
    ),
    "request ids in error messages": "f'req-{rng.random()}'",
}
_FROM_CALLER = {"model", "tool", "tenant", "base_url", "error text"}
# As documented in the module that counts: values of a label, and sets of values of a metric.
_VALUES, _SETS = 100, 400

_CALLS = """
    import asyncio, contextlib, json, random, string, sys
    import tidegate
    url, count, known, names = sys.argv[1], int(sys.argv[2]), *map(json.loads, sys.argv[3:5])
    rng = random.Random(1)
    generators = [eval(f"lambda: {name}") for name in names]
    gate = tidegate.Gate(breaker=None, retry=None)
    client = tidegate.AsyncClient(url, "key", gate=gate)
    def tags(name):
        try:
            return tidegate.tags(tenant=name, route=name, tool=name)
        except tidegate.ConfigError:
            # What no label could hold is refused; the call is made without.
            return contextlib.nullcontext()
    async def call(model, name):
        with tags(name), contextlib.suppress(tidegate.CallError):
            await client.post("/chat/completions", json={"model": model, "messages": []})
    async def calls(count):
        for start in range(0, count, 50):
            batch = [generators[number % len(generators)]() for number in range(start, start + 50)]
            await asyncio.gather(*(call(name, name) for name in batch))
    async def main(count):
        for model in known:
            await call(model, "known")
        await calls(count)
        for model in known:
            await call(model, "known")
    def rss():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096 / 1e6
    # What every process needs for its first thousand calls is no growth.
    asyncio.run(main(1000))
    before = rss()
    asyncio.run(main(count))
    print(json.dumps({"growth": rss() - before, "text": gate.metrics_text()}))
"""

_LABEL = r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"'
_SAMPLE = re.compile(rf"([a-zA-Z_:][\w:]*)(?:\{{((?:{_LABEL},?)*)\}})? (\S+)")


def parse(text):
    """Return the samples of an exposition: name, labels, value. What is not in the format fails."""
    samples = []
    assert text.endswith("\n")
    for line in text.removesuffix("\n").split("\n"):
        if re.fullmatch(r"# (HELP|TYPE) [a-zA-Z_:][\w:]* .*", line):
            continue
        found = _SAMPLE.fullmatch(line)
        assert found, f"not in the format: {line!r}"
        labels = dict(re.findall(_LABEL, found[2] or ""))
        samples.append((found[1], labels, float(found[5])))
    return samples


def checks(case):
    yield Check("calls", functools.partial(_run, case.content, case.expect))


def _run(content, expect):
    strange = content.keys() - {
        "id", "kind", "calls", "labels_from_caller", "generators", "known", "cap_documented", "expect",
    }  # fmt: skip
    strange |= set(content["labels_from_caller"]) - _FROM_CALLER | set(content["generators"]) - _NAMES.keys()
    if strange:
        unknown("fields", sorted(strange))
    names = [_NAMES[name] for name in content["generators"]]
    refused = {"status": 400, "message": "no such thing as req-4711"}
    rules = [{"match": {"every": 5}, "respond": refused}]
    with serving.server(rules=rules, workers=2, ledger={"record_bodies": False}) as server:
        arguments = (server.url, content["calls"], json.dumps(content["known"]), json.dumps(names))
        result = child.told(_CALLS, *arguments, limit=120)
    samples = parse(result["text"])
    values = {}
    series = {}
    for name, labels, _ in samples:
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        series.setdefault(family, set()).add(tuple((key, labels[key]) for key in labels if key != "le"))
        for key, value in labels.items():
            values.setdefault(key, set()).add(value)
    for name, wanted in expect.items():
        _hold(name, wanted, content["known"], (values, series, result["growth"]))


def _hold(name, wanted, known, found):
    values, series, growth = found
    if name == "series_growth_max":
        assert max(map(len, series.values())) <= _SETS, {key: len(sets) for key, sets in series.items()}
    elif name == "overflow_label":
        assert wanted in values["model"]
        assert len(values["model"]) <= _VALUES + len(known) + 1
    elif name == "label_bytes_max":
        assert max(len(_plain(value).encode()) for some in values.values() for value in some) <= wanted
    elif name == "known_models_keep_label":
        assert set(known) <= values["model"]
    elif name == "rss_growth_mb_max":
        assert growth <= wanted
    elif name != "exposition_parses":
        # It was parsed before.
        unknown(name, wanted)


def _plain(value):
    """Return a label's value without the escapes of the format."""
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], value)

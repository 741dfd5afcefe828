"""Kind `args_key`: which arguments make the same key, and which results can be given again."""

from __future__ import annotations

import functools
import json

import pytest

from cases import child
from cases.case import DEFAULT_FOLDER, Check
from cases.expect import unknown
from tidegate import EncodeError, Gate, ResultNotStoredError, _core, idem_key

_GOLDEN = DEFAULT_FOLDER.parent / "fingerprints.json"

_KEYS = """
    import json, sys
    from cases.args_key import key
    texts = json.loads(sys.argv[1])
    print(json.dumps([key(json.loads(text)) for text in texts]))
"""
_EXPRESSION = """
    import json, sys
    from cases.args_key import key
    from tidegate import EncodeError
    exec("import " + sys.argv[1].removeprefix("import "))
    try:
        print(json.dumps(key(eval(sys.argv[2]))))
    except EncodeError as error:
        print(json.dumps(error.path))
"""
_SEEDS = ("0", "1", "random")


def key(arguments, *, tool="pay", turn="t1", tenant="a"):
    """Return the key of a call whose arguments are its identity."""
    fingerprint = _core.fingerprint(tool, "1", {"arguments": arguments}).hex()
    return idem_key(tenant=tenant, workflow="agent", biz_id=turn, step=f"{tool}.{fingerprint}")


def checks(case):
    content = case.content
    if content.get("as") == "python_expr":
        yield from _expressions(content)
        return
    named = {"tool": content["tool"], "turn": content["turn"]}
    for number, group in enumerate(content["groups_equal"]):
        yield Check(f"equal{number}", functools.partial(_hold, named, group, 1))
    for number, group in enumerate(content["groups_distinct"]):
        yield Check(f"distinct{number}", functools.partial(_hold, named, group, len(group)))
    for row in content["also"]:
        yield Check(f"differs in {row['differ_in']}", functools.partial(_differ, row))
    every = [text for group in content["groups_equal"] + content["groups_distinct"] for text in group]
    for where in case.expect["stable_across"]:
        run = _golden if where.startswith("package versions") else functools.partial(_stable, where, every)
        yield Check(where.split(" ")[0], run)


def _hold(named, group, kinds):
    assert len({key(json.loads(text), **named) for text in group}) == kinds


def _differ(row):
    names = {"tool name": "tool", "turn id": "turn", "tenant": "tenant"}
    if row["differ_in"] not in names:
        unknown("a part of the key", row["differ_in"])
    assert key({"a": 1}) != key({"a": 1}, **{names[row["differ_in"]]: "other"})


def _stable(where, texts):
    if "PYTHONHASHSEED" not in where:
        unknown("stable across", where)
    here = [key(json.loads(text)) for text in texts]
    for seed in _SEEDS:
        assert child.told(_KEYS, json.dumps(texts), env={"PYTHONHASHSEED": seed}) == here


def _golden():
    rows = json.loads(_GOLDEN.read_text("utf-8"))
    assert rows
    for row in rows:
        assert _core.fingerprint(row["tool"], row["version"], row["arguments"]).hex() == row["sha256"], row


def _expressions(content):
    for number, text in enumerate(content["values"]):
        yield Check(f"value{number}", functools.partial(_argument, content["imports"], text))
    for number, text in enumerate(content["result_values"]):
        yield Check(f"result{number}", functools.partial(_result, content["imports"], text))


def _evaluated(imports, text):
    names = {}
    exec(imports, names)  # noqa: S102 the case's own
    return eval(text, names)  # noqa: S307 the case's own


def _argument(imports, text):
    gate, runs = Gate(), []
    value = _evaluated(imports, text)

    def tool(value):
        runs.append(value)

    try:
        gate.once("k", tool, value)
    except EncodeError as error:
        refused = error.path
        assert refused.startswith("arguments.value")
        assert runs == []
        assert gate._tools.store.get("k") is None
    else:
        refused = None
        assert len(runs) == 1
    said = {child.told(_EXPRESSION, imports, text, env={"PYTHONHASHSEED": seed}) for seed in _SEEDS}
    assert len(said) == 1
    assert (refused is None) == said.pop().startswith("idem:")


def _result(imports, text):
    gate, runs = Gate(), []
    value = _evaluated(imports, text)

    def tool():
        runs.append(1)
        return value

    assert gate.once("k", tool) is value
    try:
        assert gate.once("k", tool) == value
    except ResultNotStoredError:
        with pytest.raises(ResultNotStoredError):
            gate.once("k", tool)
    assert len(runs) == 1

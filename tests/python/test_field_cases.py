"""Runs public bug reports that were turned into data.

`TIDEGATE_CASES` names a folder with an `index.json` and the files that it lists (default:
`tests/vectors/cases`); its FORMAT.md describes them. A kind without a runner fails, an expectation without a
rule fails, and a scenario that no runner knows is skipped by its name. `TIDEGATE_CASES_REPEATS` (default 20)
bounds the runs of a race that a case wants repeated.
"""

import pytest

from cases import case, expect, kinds


def _parameters():
    seen = {}
    for found in case.load(case.folder()):
        for check in kinds.checks(found):
            name = f"{found.stem}-{check.name}"
            seen[name] = seen.get(name, 0) + 1
            marks = [pytest.mark.skip(reason=check.skipped)] if check.skipped else []
            unique = name if seen[name] == 1 else f"{name}-{seen[name]}"
            yield pytest.param(check, id=unique, marks=marks)


@pytest.mark.parametrize("check", list(_parameters()))
def test_case(check):
    check.run()


def _made(kind, **content):
    return case.Case(kind, "made", case.folder(), {"id": "made", "kind": kind, "expect": {}, **content})


def test_an_expectation_without_a_rule_fails():
    with pytest.raises(pytest.fail.Exception, match="unknown expectation sparkles"):
        expect.hold(None, {"sparkles": 1})


def test_a_kind_without_a_runner_fails():
    (check,) = kinds.checks(_made("seance"))
    with pytest.raises(AssertionError, match="no runner for cases of kind seance"):
        check.run()


def test_a_scenario_without_a_runner_is_skipped_by_name():
    (check,) = kinds.checks(_made("scenario", scenario="eclipse"))
    assert check.skipped == "the runner does not know the scenario eclipse"

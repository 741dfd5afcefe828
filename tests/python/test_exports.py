import dataclasses
import subprocess
import sys
import typing

import pytest

import tidegate
import tidegate.testing


@pytest.mark.parametrize("module", [tidegate, tidegate.testing])
def test_public_names_are_sorted_and_there(module):
    assert list(module.__all__) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_every_public_name_is_documented():
    assert [
        name for name in tidegate.__all__ if not name.startswith("__") and not getattr(tidegate, name).__doc__
    ] == []


@pytest.mark.parametrize(
    "name", [name for name in tidegate.__all__ if dataclasses.is_dataclass(getattr(tidegate, name))]
)
def test_the_types_of_fields_resolve(name):
    """As settings frameworks and serialisers ask for them."""
    cls = getattr(tidegate, name)
    assert typing.get_type_hints(cls).keys() >= {field.name for field in dataclasses.fields(cls)}


def test_errors_are_public_and_named_where_users_import_them():
    def family(cls):
        return {cls, *(error for child in cls.__subclasses__() for error in family(child))}

    errors = {cls for cls in family(tidegate.TidegateError) if cls.__module__.startswith("tidegate")}
    assert {cls.__name__ for cls in errors} <= set(tidegate.__all__)
    assert {cls.__module__ for cls in errors} == {"tidegate"}


def test_the_import_brings_nothing_that_is_optional():
    program = "import sys, tidegate, tidegate.testing; print(*sys.modules)"
    loaded = subprocess.run(  # noqa: S603 this interpreter
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()
    optional = {"asyncio", "click", "genai_prices", "httpx", "openai", "pydantic", "pytest", "rich"}
    assert optional.isdisjoint(loaded)


def test_the_import_leaves_tools_to_those_who_use_them():
    program = "import sys, tidegate; print(*sys.modules); tidegate.ToolPolicy; dir(tidegate).index('Journal')"
    loaded = subprocess.run(  # noqa: S603 this interpreter
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()
    later = {"_execution", "_journal", "_keys", "_once", "_tool", "_tool_policy", "_usage"}
    assert {f"tidegate.{name}" for name in later}.isdisjoint(loaded)
    with pytest.raises(AttributeError, match="no attribute 'Tool'"):
        _ = tidegate.Tool


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_the_command_says_what_to_install(monkeypatch, missing):
    from tidegate import _cli

    monkeypatch.setitem(sys.modules, missing, None)
    for name in [name for name in sys.modules if name.startswith(f"{missing}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "tidegate._commands", raising=False)
    monkeypatch.delattr(tidegate, "_commands", raising=False)
    with pytest.raises(SystemExit, match=rf"needs {missing}.*: pip install 'tidegate\[cli\]'"):
        _cli.main()

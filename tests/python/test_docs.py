"""What the documentation shows works: its blocks of Python run, in order, as a reader would run them.

Those marked ``needs=PACKAGE`` run for themselves, where that package is installed: see ``make ecosystem``.
"""

import re
import textwrap
from pathlib import Path

import pytest

from tidegate import _gate

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)```python(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
KNOWN = re.compile(r"|no-run|needs=(?P<package>\w+)")
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "All systems work as expected"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 12, "output_tokens": 5},
}


def blocks(path):
    """Yield each block's info string, and its code on the lines where it stands in the file."""
    text = path.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        lines_before = text.count("\n", 0, found.start("code"))
        yield found["info"].strip(), "\n" * lines_before + textwrap.dedent(found["code"])


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_CODE = [page for page in PAGES if any(blocks(page))]
OF_PACKAGES = sorted(
    {
        (page, found["package"])
        for page in WITH_CODE
        for info, _ in blocks(page)
        if (found := KNOWN.fullmatch(info)) and found["package"]
    }
)


def name(page):
    return str(page.relative_to(ROOT))


@pytest.fixture
def read(server, monkeypatch, tmp_path):
    """Run the blocks of a page that are marked so, in an environment that leads to the server."""
    server.script(rules=[{"match": {"path": "/v1/messages"}, "respond": {"body_json": MESSAGE}}])
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_BASE", server.url)  # the name that LlamaIndex knows
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "true")
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url.removesuffix("/v1"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    monkeypatch.setattr(_gate, "_default", None)
    monkeypatch.chdir(tmp_path)

    def read(page, mark):
        namespace = {"__name__": "__main__"}
        for info, code in blocks(page):
            assert KNOWN.fullmatch(info)
            compiled = compile(code, page, "exec")
            if info == mark:
                exec(compiled, namespace)  # noqa: S102 that is what a reader does with it

    return read


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_blocks_run(page, read):
    read(page, "")


@pytest.mark.parametrize(
    ("page", "package"), OF_PACKAGES, ids=[f"{name(page)}-{package}" for page, package in OF_PACKAGES]
)
def test_blocks_that_need_a_package_run(page, package, read):
    pytest.importorskip(package, reason=f"{package} is not installed")
    read(page, f"needs={package}")


def test_few_blocks_are_not_run():
    infos = [info for page in PAGES for info, _ in blocks(page)]
    assert infos.count("no-run") * 10 <= len(infos)


def test_the_blocks_of_the_first_pages_are_found():
    assert {"README.md", "docs/quickstart.md"} <= {name(page) for page in WITH_CODE}


def test_blocks_are_found_wherever_they_stand(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "- item\n\n  ```python no-run\n  a = 1\n  ```\n\n```python\nb = 2\n```\n", encoding="utf-8"
    )
    assert list(blocks(page)) == [("no-run", "\n\n\na = 1\n"), ("", "\n\n\n\n\n\n\nb = 2\n")]


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{name(page)} points to {target}"

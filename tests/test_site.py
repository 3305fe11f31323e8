"""The documentation as a whole: one page per hook, made from the code; every page in the site and in llms.txt."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from moryflow_sdk import HOOKS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REFRESH = "python tests/packaging/refresh_docs.py"
HOOK_NAMES = sorted(HOOKS)


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    """The generator of the pages, as its command would run it."""
    return runpy.run_path(str(ROOT / "tests" / "packaging" / "refresh_docs.py"))


@pytest.mark.parametrize("hook", HOOK_NAMES)
def test_a_hook_has_its_page_its_example_and_its_test(generator, hook):
    """No hook goes without; and its docstring leaves none of the five questions open (S0-i)."""
    text = generator["hook_pages"].page(hook)
    example = (ROOT / "user_examples" / "hooks" / f"{hook}.py").read_text(encoding="utf-8")
    assert f"\ndef {hook}(" in example and example in text
    assert f"def test_example_of_{hook}(" in text
    assert (DOCS / "hooks" / f"{hook}.md").is_file(), REFRESH


def test_a_hook_that_says_too_little_is_named(generator):
    """The generator refuses a docstring with a question open, and a hook whose example has no test (S0-i)."""
    pages = generator["hook_pages"]
    with pytest.raises(ValueError, match="no test test_example_of_no_such"):
        pages.test_of("no_such")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages.hookspecs.tool_gate, "__doc__", "Judge a call.")
        with pytest.raises(ValueError, match=r"hookspecs\.py: tool_gate: say what"):
            pages.page("tool_gate")


def test_the_pages_on_disk_are_what_the_code_says(generator):
    """Hook pages, the table of order and failure, and llms.txt are as the generator makes them (S0-i)."""
    stale = [path.name for path, text in generator["documents"]().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], f"run {REFRESH}"
    hooks = {path.stem for path in (DOCS / "hooks").glob("*.md")}
    assert hooks == set(HOOKS), "a page of a hook that is no more"


def test_every_page_stands_in_the_navigation_once(generator):
    """No page is without a way to it (S0-i)."""
    listed = [name for _, names in generator["navigation"]() for name in names]
    written = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted(listed) == written, f"add it to mkdocs.yml, then run {REFRESH}"


def test_llms_txt_has_one_line_per_page():
    """A language model finds every page, with a sentence that says what it holds (S0-i)."""
    lines = [line for line in (DOCS / "llms.txt").read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    linked = [line.partition("](")[2].partition(")")[0] for line in lines]
    assert sorted(linked) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert [line for line in lines if len(line.partition("): ")[2]) < 9] == []


def test_the_site_is_built_without_a_warning(tmp_path):
    """Links and anchors lead somewhere, and the site asks no other server for anything (S0-i)."""
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copyfile(ROOT / "mkdocs.yml", tmp_path / "mkdocs.yml")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    page = (tmp_path / "site" / "hooks" / "tool_gate.html").read_text(encoding="utf-8")
    assert "contracts are signed" in page
    assert "fonts.googleapis" not in page
    assert (tmp_path / "site" / "llms.txt").is_file()

"""The documentation as a whole: one page per hook, made from the code; every page in the site and in llms.txt."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from moryflow.hooks.plugin_set import Stage
from moryflow.kernel.outcome import EndReason
from moryflow.runtime.turn_result import EXIT_CODES
from moryflow.store.sqlite.failures import _SENTENCES
from moryflow_sdk import HOOKS
from moryflow_sdk.errors import RETRYABLE, ModelErrorCode
from moryflow_sdk.verdicts import Cause

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
    test = generator["hook_pages"].test_file(hook)
    assert f"user_examples/hooks/tests/{test.name}" in text
    assert f"def test_example_of_{hook}(" in test.read_text(encoding="utf-8")
    assert (DOCS / "hooks" / f"{hook}.md").is_file(), REFRESH


def test_the_test_of_a_hooks_example_stands_alone(generator, tmp_path):
    """Whoever copies it has every name that it uses (issue C, 2)."""
    for hook in HOOK_NAMES:
        (tmp_path / f"test_my_{hook}.py").write_text(generator["hook_pages"].test_of(hook), encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


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
    assert generator["hook_pages"].table() in (DOCS / "order.md").read_text(encoding="utf-8")
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; building it fails at a warning."""
    root = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, root / "docs")
    shutil.copyfile(ROOT / "mkdocs.yml", root / "mkdocs.yml")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    return root / "site"


def test_the_site_is_built_without_a_warning(site: Path):
    """Links and anchors lead somewhere, and the site asks no other server for anything (S0-i)."""
    page = (site / "hooks" / "tool_gate.html").read_text(encoding="utf-8")
    assert "contracts are signed" in page
    assert "fonts.googleapis" not in page
    assert (site / "llms.txt").is_file()


def test_a_reader_sees_which_file_a_block_is(site: Path):
    """The comments that tests read stand above their blocks (issue E, 4)."""
    if (chromium := shutil.which("chromium") or shutil.which("chromium-browser")) is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto((site / "tutorial.html").as_uri())
        names = page.locator(".block-name").all_inner_texts()
        browser.close()
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    assert names[:2] == ["in a second terminal", "~/.moryflow/tools/words.py"]
    assert len(names) == len(re.findall(r"(?m)^<!-- (?:file|terminal): ", text))


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_that_speaks_of_the_vault_says_what_it_is(page):
    """The word is explained, or leads to the guide, on each page that somebody may come to first (issues C, 2 and E, 4)."""
    text = page.read_text(encoding="utf-8")
    assert "vault" not in text or "the folder that the agent works in" in text or "](guide.md#words)" in text


def test_no_table_has_an_empty_head():
    """Each column says what it holds."""
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    heads = [
        (page.name, head) for page in pages for head in re.findall(r"(?m)^(\|.*\|)\n\|[-|: ]+\|$", page.read_text("utf-8"))
    ]
    assert len(heads) > 5
    assert [(name, head) for name, head in heads if re.search(r"\|\s*\|", head)] == []


def test_the_picture_of_the_front_page_shows_a_conversation_and_no_machine():
    """It is made by record_terminal.py; it asks no other server for a font, and holds no path and no key."""
    picture = (DOCS / "terminal.svg").read_text(encoding="utf-8")
    assert "](terminal.svg)" in (DOCS / "index.md").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", picture).replace("&#160;", " ")
    assert "$ moryflow chat" in text and "python3 test_shop.py" in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|/tmp/|/home/|/work/|sk-|@font-face", picture)


def rows_of(page: str) -> dict[str, list[list[str]]]:
    """Return what stands before and behind the colon of each entry of a page's lists, by each name in code before it."""
    found: dict[str, list[list[str]]] = {}
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = line.removeprefix("- ").split(": ", 1)
        for name in re.findall(r"`([a-z_]+)`", cells[0]) if line.startswith("- ") else ():
            found.setdefault(name, []).append(cells)
    return found


def test_every_end_reason_stands_with_its_exit_code():
    """How a turn ends, with the code that a script sees (issue's page of errors, CONTRACT §1)."""
    rows = rows_of("errors.md")
    for reason in get_args(EndReason):
        assert f"({EXIT_CODES[reason]})" in rows[reason][0][0], reason
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert [code for code in {*EXIT_CODES.values(), 2, 3} if f"\n- {code}: " not in text] == []


def test_every_code_of_a_model_a_stage_and_a_cause_stands_on_the_page():
    """Why a model call failed, where a plugin failed, why a call was refused (issue's page of errors)."""
    rows = rows_of("errors.md")
    wanted = {*get_args(ModelErrorCode), *get_args(Stage), *get_args(Cause)}
    assert wanted - rows.keys() == set()
    retried = {name for name in get_args(ModelErrorCode) if any("↻" in row[0] for row in rows[name])}
    assert retried == set(RETRYABLE)


def test_every_code_of_an_error_stands_on_the_page():
    """Every code in the source: of error classes, of what is raised, and of problems in files (issue's page of errors)."""
    rooms = ("host", "builtin_plugins", "plugin_sdk/moryflow_sdk")
    paths = [path for room in rooms for path in (ROOT / room).rglob("*.py") if "testing" not in path.parts]
    given = {code for path in paths for code in codes_in(path)} | set(_SENTENCES)
    of_files = {code for code in given if code.startswith("wrong_file:")}
    given = given - of_files | {f"{kind}_{code[11:]}" for code in of_files for kind in ("agent", "command")}
    assert {"busy", "no_summary", "agent_id", "agent_frontmatter", "config_syntax", "not_written", "auth"} <= given
    assert len(given) > 100
    assert given - rows_of("errors.md").keys() == set()


def codes_in(path: Path) -> set[str]:
    """The codes that stand in a module: of a class, as ``code=`` of a call, or first in what says that a file is wrong."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef():
                found |= {text for item in node.body for text in _code_of_class(item)}
            case ast.Call(func=ast.Name(id="WrongAgent"), args=[first, *_]):
                found |= _texts(first)
            case ast.Call(func=ast.Name(id="WrongFile"), args=[first, *_]):
                found |= {f"wrong_file:{text}" for text in _texts(first)}
            case ast.Call():
                found |= {text for keyword in node.keywords if keyword.arg == "code" for text in _texts(keyword.value)}
            case _:
                continue
    return found - {""}


def _code_of_class(item: ast.stmt) -> set[str]:
    match item:
        case ast.Assign(targets=[ast.Name(id="code")], value=value) | ast.AnnAssign(target=ast.Name(id="code"), value=value):
            return _texts(value)
        case _:
            return set()


def _texts(value: ast.expr | None) -> set[str]:
    """The texts that an expression may be: of ``"a" if x else "b"`` both."""
    match value:
        case ast.Constant(value=str() as text):
            return {text}
        case ast.IfExp():
            return _texts(value.body) | _texts(value.orelse)
        case _:
            return set()

"""The design pages hold what they promise: ids that can be looked up, tests that exist, rooms that are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DESIGN = ROOT / "docs" / "design"
PRODUCT = ("host", "plugin_sdk", "builtin_plugins", "bin")
USER_PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "docs" / "llms.txt"]
ID = re.compile(
    r"\bS[0-4](?:\.\d+|-[a-j]\b)|\b[DR]\d{1,2}\b|§|\binvariants? \d|\bissue \d"
    r"|\b(?:ARCHITECTURE|CONTRACT|REQUIREMENTS|HOUSE|STYLE)(?:\.md)?(?= [§\d]|\.md|\))"
)
"""How an id is written, or the name of a paper that a reader of the repository does not have."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file, with their numbers."""
    return enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)


def ids(text: str) -> Iterator[str]:
    """The ids in `text`; ``S1.1-S1.7`` stands for all from first to last."""
    for prefix, first, last in re.findall(r"\b(S\d\.|[DR])(\d+)(?:\s*[-–]\s*(?:\1)?(\d+))?\b", text):
        yield from (f"{prefix}{number}" for number in range(int(first), int(last or first) + 1))


def product_files() -> list[Path]:
    """Every text file of the three packages."""
    found = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*") if path.is_file()]
    made = {"__pycache__", "node_modules"}
    return sorted(path for path in found if not made & {*path.parts} and path.suffix not in (".pyc", ".so"))


@pytest.mark.parametrize(
    "text", ["(S0.68)", "by D43", "R12, R13", "(invariant 6)", "CONTRACT §2", "see ARCHITECTURE.md", "(STYLE)", "issue 2"]
)
def test_an_id_is_seen(text: str) -> None:
    """The pattern below can find what it looks for."""
    assert ID.search(text)


@pytest.mark.parametrize("text", ["README, RAM", "SHA256", "S3 and R2D2", "this issue", "D-Bus", "MAX_D1"])
def test_what_is_no_id_is_left_alone(text: str) -> None:
    """Ordinary words and names are not ids."""
    assert not ID.search(text)


def test_product_code_and_user_pages_name_no_ids() -> None:
    """They say the thing itself; ids stand in tests, and tests/requirements.md says what they mean."""
    pages = [path for path in USER_PAGES if DESIGN not in path.parents]
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in [*product_files(), *pages]
        for number, line in texts(path)
        if ID.search(line)
    ]
    assert named == []


def test_every_id_in_a_test_can_be_looked_up() -> None:
    """requirements.md explains each id that a test names, and none that nobody names."""
    page = (ROOT / "tests" / "requirements.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^- \*\*(S\d\.\d+|[DR]\d+)\*\* ", page, re.MULTILINE))
    used = {name for path in (ROOT / "tests").rglob("*.py") for name in ids(path.read_text(encoding="utf-8"))}
    assert explained == used


def test_every_test_that_a_design_page_names_is_there() -> None:
    """A page that names a test which was renamed or dropped says so here."""
    named = {name for page in DESIGN.glob("*.md") for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))}
    written = {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(named) >= 20
    assert named - written == set()


def test_every_place_that_a_design_page_names_is_there() -> None:
    """A page that names a file or a folder which was moved says so here."""
    places = re.compile(r"`((?:host|plugin_sdk|builtin_plugins|tests|docs|user_examples)/[\w./-]+)`")
    named = {name for page in DESIGN.glob("*.md") for name in places.findall(page.read_text(encoding="utf-8"))}
    assert len(named) >= 5
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_the_rooms_of_the_picture_are_the_rooms_of_the_host() -> None:
    """The architecture draws each folder of the host, and none that is not there."""
    page = (DESIGN / "architecture.md").read_text(encoding="utf-8")
    picture = page.partition("\nhost/moryflow\n")[2].partition("```")[0]
    folders = {path.parent.name for path in (ROOT / "host" / "moryflow").glob("*/__init__.py")}
    assert set(re.findall(r"(?:^|  )(\w+)/  ", picture, re.MULTILINE)) == folders

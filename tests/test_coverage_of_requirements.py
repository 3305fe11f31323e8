"""Every requirement that the project has taken on is named by a test: in the docstring, as ``(S2.14)`` or ``(R12, D8)``.

Add a line to :data:`COVERED` when an issue takes on more. ``python3 tests/test_coverage_of_requirements.py`` lists the
tests of each.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
COVERED: dict[str, str] = {
    "one turn through plugins": (
        "S0.1 S0.3 S0.94-S0.95 S1.1-S1.7 S2.10-S2.11 S2.14-S2.16 S2.21-S2.26 S4.1 S4.4-S4.7 S4.9-S4.10 S4.17 S4.19 "
        "D9 D54-D56 D62 D68 D74 R11-R12 R25-R26"
    ),
    "long conversations": "S0.2 S0.12-S0.30 S1.3-S1.32 S2.6-S2.8 S4.12-S4.14 D13-D22 D59-D61 D68",
    "memory bank": "S3.1-S3.16 S3.22-S3.41 D28-D35 D52 D69-D70 R4 R13",
    "agents that work together": "S2.2-S2.5 S2.13 S2.15-S2.19 S4.2-S4.3 S4.8 S4.15-S4.16 D23 D65-D67 R15",
    "how it is packaged": "R31",
}
INVARIANTS = range(1, 12)

_ID = re.compile(r"\b(S\d+\.|[DR])(\d+)(?:\s*[-–]\s*(?:\1)?(\d+))?\b")


def ids(text: str) -> Iterator[str]:
    """The requirement ids in `text`; ``S1.1-S1.7`` and ``S1.1–7`` stand for all from first to last."""
    for match in _ID.finditer(text):
        prefix, first, last = match.groups()
        for number in range(int(first), int(last or first) + 1):
            yield f"{prefix}{number}"


def named() -> dict[str, list[str]]:
    """Which tests name which id, invariants included."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                doc = ast.get_docstring(node) or ""
                for name in {*ids(doc), *(f"invariant {number}" for number in invariants(doc))}:
                    found[name].append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


def invariants(text: str) -> Iterator[int]:
    """The numbers after the word invariant: ``invariant 6``, ``invariants 6, 7 and 9``."""
    for match in re.finditer(r"invariants? (\d+(?:(?:, | and |, and )\d+)*)", text):
        yield from (int(number) for number in re.findall(r"\d+", match[1]))


@pytest.mark.parametrize("issue", COVERED)
def test_every_requirement_is_named_by_a_test(issue: str) -> None:
    """What was taken on can be looked up, and breaks loudly (STYLE)."""
    found = named()
    assert [name for name in ids(COVERED[issue]) if name not in found] == []


def test_every_invariant_is_named_by_a_test() -> None:
    """Each of the eleven invariants of the architecture has a test (ARCHITECTURE §2)."""
    found = named()
    assert [number for number in INVARIANTS if f"invariant {number}" not in found] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(S2.14)", ["S2.14"]),
        ("(R12, D8)", ["R12", "D8"]),
        ("S1.1-S1.3", ["S1.1", "S1.2", "S1.3"]),
        ("S1.1–S1.3", ["S1.1", "S1.2", "S1.3"]),
        ("D54–56", ["D54", "D55", "D56"]),
        ("SHA256 and Py3.11", []),
    ],
)
def test_ids_are_read_one_by_one_and_as_ranges(text: str, expected: list[str]) -> None:
    """A range names all that it spans (STYLE)."""
    assert list(ids(text)) == expected


def main() -> None:
    """List every id with its tests."""
    found = named()
    for issue, text in COVERED.items():
        print(issue)
        for name in ids(text):
            print(f"  {name:<7} {', '.join(found.get(name, ['-']))}")


if __name__ == "__main__":
    main()

"""What changed, as a unified diff that stays short whatever the file's size."""

from __future__ import annotations

import re
from dataclasses import dataclass

CONTEXT = 3
MAX_LINES = 120
MAX_CHARACTERS = 12_000
MAX_COMPARED = 3000
"""Lines compared one with the other; a larger change is only counted."""

_HEADER = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")


@dataclass(frozen=True)
class Diff:
    """Lines added and removed, and the text to show."""

    added: int
    removed: int
    text: str

    @property
    def count(self) -> str:
        """``+2 -1``."""
        return f"+{self.added} -{self.removed}"


def diff(before: str, after: str, name: str, new_name: str = "") -> Diff:
    """Return the difference; the equal beginning and end are taken off before anything is compared."""
    import difflib

    old, new = lines_of(before), lines_of(after)
    limit = min(len(old), len(new))
    head = next((i for i in range(limit) if old[i] != new[i]), limit)
    tail = next((i for i in range(limit - head) if old[-1 - i] != new[-1 - i]), limit - head)
    removed, added = len(old) - head - tail, len(new) - head - tail
    if max(removed, added) > MAX_COMPARED:
        return Diff(added, removed, f"lines {head + 1}-{head + removed} became lines {head + 1}-{head + added}")
    first = max(0, head - CONTEXT)
    shown_old, shown_new = (lines[first : len(lines) - max(0, tail - CONTEXT)] for lines in (old, new))
    lines = list(difflib.unified_diff(shown_old, shown_new, name, new_name or name, n=CONTEXT))
    plus = sum(line.startswith("+") for line in lines[2:])
    minus = sum(line.startswith("-") for line in lines[2:])
    return Diff(plus, minus, _bounded([_shifted(line, first) for line in lines]))


def lines_of(text: str) -> list[str]:
    """Return the lines with their ends, as editors and ``grep`` count them: no form feed and no U+2028 ends one."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _shifted(line: str, by: int) -> str:
    """Return a line of the diff; line numbers count from the beginning of the file."""
    if line.startswith("@@ "):
        return _HEADER.sub(lambda m: f"@@ -{int(m[1]) + by}{m[2] or ''} +{int(m[3]) + by}{m[4] or ''} @@", line)
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _bounded(lines: list[str]) -> str:
    text = "".join(line.replace("\r\n", "\n") for line in lines[:MAX_LINES])
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS] + "…\n"
    left = len(lines) - MAX_LINES
    return text.rstrip("\n") + (f"\n[{left} more lines of the diff]" if left > 0 else "")

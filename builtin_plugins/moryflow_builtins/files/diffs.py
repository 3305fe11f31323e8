"""What changed, as a unified diff that stays short whatever the file's size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moryflow_sdk.support.texts import visible

CONTEXT = 3
MAX_LINES = 120
MAX_CHARACTERS = 12_000
MAX_COMPARED = 3000
"""Lines compared one with the other; a larger change is only counted."""
SHORT_LINES, SHORT_WIDTH, SHORT_FILES = 16, 160, 8
"""What a person is shown after a change: lines in all, characters of a line, files."""

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

    change = _compare(before, after)
    removed, added = len(change.removed), len(change.added)
    if max(removed, added) > MAX_COMPARED:
        head = change.head
        return Diff(added, removed, f"lines {head + 1}-{head + removed} became lines {head + 1}-{head + added}")
    first = max(0, change.head - CONTEXT)
    names = (visible(name), visible(new_name or name))  # a line end in one would look like a line of the file
    lines = list(difflib.unified_diff(*change.around(first), *names, n=CONTEXT))
    plus = sum(line.startswith("+") for line in lines[2:])
    minus = sum(line.startswith("-") for line in lines[2:])
    return Diff(plus, minus, _cut_diff([_shift_numbers(line, first) for line in lines]))


def whole_diff(before: str, after: str) -> Diff:
    """Return the difference with every line of it, for a person who decides about it; it names no file.

    Of a change too large to be compared line by line, all that goes is followed by all that comes.
    """
    import difflib

    change = _compare(before, after)
    first = max(0, change.head - CONTEXT)
    if max(len(change.removed), len(change.added)) <= MAX_COMPARED:
        compared = list(difflib.unified_diff(*change.around(first), n=CONTEXT))[2:]
    else:
        old, new = change.around(first)
        place = f"@@ -{1 if old else 0},{len(old)} +{1 if new else 0},{len(new)} @@\n"
        kept, below = change.old[first : change.head], old[change.head - first + len(change.removed) :]
        marked = (("-", change.removed), ("+", change.added), (" ", below))
        compared = [place, *(f" {line}" for line in kept), *(sign + line for sign, lines in marked for line in lines)]
    plus = sum(line.startswith("+") for line in compared)
    minus = sum(line.startswith("-") for line in compared)
    return Diff(plus, minus, "".join(_shift_numbers(line, first) for line in compared).rstrip("\n"))


class ShownFile(NamedTuple):
    """A file that was changed: its resolved name, what became of it in a word, and the difference if there is one."""

    name: str
    what: str = ""
    made: Diff | None = None


def short_diffs(changed: Sequence[ShownFile]) -> str:
    """Return what a person is shown after a change: each path, and the beginning and the end of its diff.

    Lines of a file begin with a blank, ``+``, ``-`` or a backslash, those of a place with ``@@``; all others are ours.
    """
    each = max(SHORT_LINES // max(len(changed), 1), 4)
    lines = [line for one in changed[:SHORT_FILES] for line in _short(one, each)]
    left = len(changed) - SHORT_FILES
    return "\n".join([*lines, f"and {left} more files"] if left > 0 else lines)


def _short(one: ShownFile, most: int) -> list[str]:
    made = one.made or Diff(0, 0, "")
    head = ", ".join(part for part in (one.what, f"{made.count} lines" if made.text else "") if part)
    lines = made.text.split("\n") if made.text else []
    lines = lines[2:] if lines[:1] and lines[0].startswith("--- ") else lines
    if len(lines) > most:
        first = (most - 1) * 2 // 3
        last = most - 1 - first
        lines = [*lines[:first], f"… {len(lines) - first - last} more lines …", *lines[-last:]]
    cut = (line if len(line) <= SHORT_WIDTH else f"{line[:SHORT_WIDTH]}…" for line in lines)
    return [f"{visible(one.name)}: {head}" if head else visible(one.name), *cut]


class _Comparison(NamedTuple):
    """The lines of two texts, how many are equal at the beginning (`head`) and at the end (`tail`)."""

    old: list[str]
    new: list[str]
    head: int
    tail: int

    @property
    def removed(self) -> list[str]:
        return self.old[self.head : len(self.old) - self.tail]

    @property
    def added(self) -> list[str]:
        return self.new[self.head : len(self.new) - self.tail]

    def around(self, first: int) -> tuple[list[str], list[str]]:
        """Return the old and the new lines from `first` to a few behind the change."""
        end = max(0, self.tail - CONTEXT)
        return self.old[first : len(self.old) - end], self.new[first : len(self.new) - end]


def _compare(before: str, after: str) -> _Comparison:
    old, new = lines_of(before), lines_of(after)
    limit = min(len(old), len(new))
    head = next((i for i in range(limit) if old[i] != new[i]), limit)
    tail = next((i for i in range(limit - head) if old[-1 - i] != new[-1 - i]), limit - head)
    return _Comparison(old, new, head, tail)


def lines_of(text: str) -> list[str]:
    """Return the lines with their ends, as editors and ``grep`` count them: no form feed and no U+2028 ends one."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _shift_numbers(line: str, by: int) -> str:
    """Return a line of the diff; line numbers count from the beginning of the file."""
    if line.startswith("@@ "):
        return _HEADER.sub(lambda m: f"@@ -{int(m[1]) + by}{m[2] or ''} +{int(m[3]) + by}{m[4] or ''} @@", line)
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _cut_diff(lines: list[str]) -> str:
    text = "".join(line.replace("\r\n", "\n") for line in lines[:MAX_LINES])
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS] + "…\n"
    left = len(lines) - MAX_LINES
    return text.rstrip("\n") + (f"\n[{left} more lines of the diff]" if left > 0 else "")

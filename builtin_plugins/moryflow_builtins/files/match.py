"""Find the text that an edit means, and replace exactly that text.

The exact text is tried first, then accents composed in another way, then other line ends and blanks at the ends of lines. The
first way that finds anything counts, and it must find one place; else the error shows the nearest lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moryflow_sdk import ToolError

# In how many lines of a file the one nearest to a text that is not there is looked for.
MAX_COMPARED_LINES = 5000
MAX_SHOWN_LINES = 8


@dataclass(frozen=True)
class Edit:
    """Text to find and its replacement; `all`: replace it everywhere."""

    old: str
    new: str
    all: bool = False


@dataclass(frozen=True)
class Replacement:
    """A place in the text, and the new text for it."""

    start: int
    end: int
    text: str


def apply_edit(text: str, edit: Edit, name: str) -> tuple[str, int]:
    """Return `text` with `edit` made, and how many places it changed.

    :raises ToolError: ``not_found``, ``not_unique`` or ``no_change``; nothing has changed.
    """
    if not edit.old:
        raise ToolError("old_string is empty", code="invalid_args", next_step="use write to create or replace a file")
    if edit.old == edit.new:
        raise ToolError("old_string and new_string are the same", code="no_change", next_step="change new_string")
    for find in (_exact, _by_normal_form, _ignoring_blanks):
        found = list(find(text, edit))
        if found:
            return _replace(text, found, edit, name), len(found)
    near = nearest(text.split("\n"), edit.old.split("\n"))
    raise ToolError(f"old_string is not in {name}{near}", code="not_found", next_step="copy the text as the file has it")


def nearest(lines: Sequence[str], wanted: Sequence[str]) -> str:
    """Return the lines of a file that are most like those `wanted`, as the end of a sentence; empty if none are."""
    from difflib import get_close_matches

    longest = max(range(len(wanted)), key=lambda index: len(wanted[index].strip()))
    stripped = [line.strip() for line in lines[:MAX_COMPARED_LINES]]
    close = get_close_matches(wanted[longest].strip(), stripped, n=1)
    if not close or not close[0]:
        return ""
    first = max(0, stripped.index(close[0]) - longest)
    shown = [line.rstrip("\r") for line in lines[first : first + min(len(wanted), MAX_SHOWN_LINES)]]
    return f"; the nearest is on line {first + 1}:\n" + "\n".join(shown) + "\n"


def _replace(text: str, found: list[Replacement], edit: Edit, name: str) -> str:
    if len(found) > 1 and not edit.all:
        lines = ", ".join(str(text.count("\n", 0, place.start) + 1) for place in found[:10])
        more = " and more" if len(found) > 10 else ""
        raise ToolError(
            f"old_string occurs {len(found)} times in {name}, on lines {lines}{more}",
            code="not_unique",
            next_step="give more lines around it, or set replace_all",
        )
    pieces, position = [], 0
    for place in found:
        pieces += [text[position : place.start], place.text]
        position = place.end
    return "".join([*pieces, text[position:]])


def line_end(text: str, start: int, end: int) -> str:
    """Return the line end used at a place: inside it, at the end of its line, or before it."""
    found = text.find("\n", start, end)
    if found < 0:
        found = text.find("\n", end)
    if found < 0:
        found = text.rfind("\n", 0, start)
    return "\r\n" if found > 0 and text[found - 1] == "\r" else "\n"


def with_ends(new: str, end: str) -> str:
    """Return `new` with the line ends of the file it goes into."""
    return re.sub(r"\r?\n", "\r\n", new) if end == "\r\n" else new


def _exact(text: str, edit: Edit) -> Iterator[Replacement]:
    start = text.find(edit.old)
    while start >= 0:
        end = start + len(edit.old)
        if not _splits(text, end):
            first = start - (text[max(start - 1, 0) : start + 1] == "\r\n")  # a line end is replaced as a whole
            yield Replacement(first, end, with_ends(edit.new, line_end(text, start, end)))
        start = text.find(edit.old, end if edit.all else start + 1)  # count overlapping places: it is unclear which is meant


def _splits(text: str, end: int) -> bool:
    """Whether the position `end` is inside a line end, or between a letter and its accent."""
    following = text[end : end + 1]
    if following.isascii():
        return following == "\n" and text[end - 1] == "\r"
    from unicodedata import combining

    return combining(following) > 0


def _by_normal_form(text: str, edit: Edit) -> Iterator[Replacement]:
    """Find the text with its accents composed in another way (NFC, NFD); the new text is composed in the same way."""
    if edit.old.isascii():
        return
    from unicodedata import normalize

    for form in ("NFC", "NFD"):
        old = normalize(form, edit.old)
        if old != edit.old and old in text:
            yield from _exact(text, Edit(old, normalize(form, edit.new), edit.all))
            return


def _ignoring_blanks(text: str, edit: Edit) -> Iterator[Replacement]:
    """Find the text with other line ends and other blanks before them; lines that old and new share stay as in the file."""
    old, new = (one.replace("\r\n", "\n").split("\n") for one in (edit.old, edit.new))
    head, tail = common_ends(old, new)
    *inner, last = old
    pattern = re.compile(r"[ \t]*\r?\n".join([*(re.escape(line.rstrip(" \t")) for line in inner), re.escape(last)]))
    position = 0
    while (found := pattern.search(text, position)) is not None:
        start, end = found.span()
        position = end if edit.all else start + 1
        if _splits(text, end):
            continue
        there = found[0].split("\n")
        lines = [*there[:head], *new[head : len(new) - tail], *there[len(there) - tail :]]
        carriage = line_end(text, start, end)[:-1]
        kept = [line.removesuffix("\r") for line in lines]
        yield Replacement(start, end, f"{carriage}\n".join(kept))


def common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """Return how many items (characters or lines) `old` and `new` have in common at the beginning and at the end."""
    limit = min(len(old), len(new))
    before = next((i for i in range(limit) if old[i] != new[i]), limit)
    after = next((i for i in range(limit - before) if old[-1 - i] != new[-1 - i]), limit - before)
    return before, after

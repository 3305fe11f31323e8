"""Find the text that an edit means, and replace exactly that text.

The exact text is tried first, then differences in line ends, look-alike characters and trailing blanks are ignored, and last
the indentation of whole lines; new lines are then indented as in the file. The first way that finds anything counts, and it
must find one place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import gcd

from moryflow_sdk import ToolError

Step = tuple[str, str]
"""One level of indentation as the model wrote it, and as the file has it; both are empty if they are the same."""


def reindent(new: Sequence[str], written: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return the lines `new`, indented as in the file: the lines `there` of the file match the model's lines `written`."""
    known: dict[str, str] = {}
    for from_model, in_file in zip(written, there, strict=True):
        if in_file.strip():
            known.setdefault(_indent(from_model), _indent(in_file))
    if all(from_model == in_file for from_model, in_file in known.items()):
        return list(new)
    indents = {_indent(line) for line in new if line.strip()}
    step = _step_between(known) or _guess_step(known, indents)
    moved = {indent: _indent_for(indent, known, step) for indent in indents}
    return [moved[_indent(line)] + line.lstrip(" \t") if line.strip() else line for line in new]


def indents_differently(written: Sequence[str], there: Sequence[str]) -> bool:
    """Whether one of the two is indented with tabs and the other with spaces only."""
    from_model, in_file = ("".join(map(_indent, lines)) for lines in (written, there))
    return bool(from_model and in_file) and ("\t" in from_model) != ("\t" in in_file)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _step_between(known: Mapping[str, str]) -> Step | None:
    """Return the step between two lines of different indentation, or else the step of one line with tabs on one side."""
    for less, more in pairwise(sorted(known, key=len)):
        if more.startswith(less) and known[more].startswith(known[less]) and known[more] != known[less]:
            return _one_level(more.removeprefix(less), known[more].removeprefix(known[less]))
    return next((_one_level(*pair) for pair in known.items() if all(pair) and ("\t" in pair[0]) != ("\t" in pair[1])), None)


def _one_level(written: str, in_file: str) -> Step:
    """Return the step of one level: two tabs for eight spaces make one tab for four. A single space is not a level."""
    levels = gcd(len(written), len(in_file))
    if "\t" in in_file and len(written) == levels:
        return written, "\t"
    return written[: len(written) // levels], in_file[: len(in_file) // levels]


def _guess_step(known: Mapping[str, str], indents: Iterable[str]) -> Step:
    """Guess the step if all known lines have the same indentation."""
    if "\t" in "".join(known):
        return "", ""
    if "\t" in "".join(known.values()):
        return min((indent for indent in indents if indent.strip(" ") == "" != indent), key=len, default=""), "\t"
    return ("\t", " " * 4) if "\t" in "".join(indents) else ("", "")


def _indent_for(indent: str, known: Mapping[str, str], step: Step) -> str:
    """Return `indent` as the file would have it, some levels away from the nearest known indentation."""
    below = [one for one in known if indent.startswith(one)]
    if below:
        nearest = max(below, key=len)
        return known[nearest] + _convert(indent.removeprefix(nearest), step)
    above = [one for one in known if one.startswith(indent)]
    if not above:
        return indent
    nearest = min(above, key=len)
    left_out = _convert(nearest.removeprefix(indent), step)
    return known[nearest].removesuffix(left_out) if known[nearest].endswith(left_out) else indent


def _convert(blanks: str, step: Step) -> str:
    """Return `blanks` with each whole level as the file has it; the rest is alignment and stays."""
    written, in_file = step
    levels = 0
    while written and blanks.startswith(written):
        blanks, levels = blanks.removeprefix(written), levels + 1
    return in_file * levels + blanks


_ALIKE = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
    }
)
_LEFT_OUT = re.compile(r"[ \t]+(?=\r?\n|\Z)|\r(?=\n)")


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
    for find in (_exact, _by_normal_form, _by_lookalikes, _by_lines):
        found = list(find(text, edit))
        if found:
            return _replace(text, found, edit, name), len(found)
    raise ToolError(f"old_string is not in {name}", code="not_found", next_step="read the file and copy the text from it")


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


# ---------------------------------------------------------------- Ignoring differences in characters


def _plain(text: str) -> tuple[str, Callable[[int], int], Callable[[int], int]]:
    """Return `text` in plain form, and functions that map a start and an end in it back to `text`."""
    from bisect import bisect_right

    text = text.translate(_ALIKE)  # one character for one, so positions stay the same
    kept: list[str] = []
    begins: list[int] = []  # where each kept piece begins in the plain text
    shifts: list[int] = []  # how many characters were left out before it
    position = size = 0
    for match in _LEFT_OUT.finditer(text):
        if match.start() > position:
            kept.append(text[position : match.start()])
            begins.append(size)
            shifts.append(position - size)
            size += match.start() - position
        position = match.end()
    kept.append(text[position:])
    begins.append(size)
    shifts.append(position - size)

    def original(index: int) -> int:
        return index + shifts[bisect_right(begins, index) - 1]

    return "".join(kept), original, lambda index: original(index - 1) + 1


def _by_lookalikes(text: str, edit: Edit) -> Iterator[Replacement]:
    plain, begin, end = _plain(text)
    old, new = _plain(edit.old)[0], edit.new.replace("\r\n", "\n")
    if not old.strip():
        return
    to_line_end = edit.old.translate(_ALIKE).endswith((" ", "\t"))  # trailing blanks are ignored only at the end of a line
    before, after = common_ends(old, new.translate(_ALIKE))
    start = plain.find(old)
    while start >= 0:
        stop = start + len(old)
        # The part that old and new have in common stays as in the file, with its quotes, dashes, blanks and line ends.
        left, right = start + before, stop - after
        first = end(left) if left > start else begin(left)
        last = max(end(right), first) if right > left else first
        if not _splits(plain, stop) and (not to_line_end or plain[stop : stop + 1] in ("", "\n")):
            yield Replacement(first, last, with_ends(new[before : len(new) - after], line_end(text, first, last)))
        start = plain.find(old, stop if edit.all else start + 1)


def common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """Return how many items (characters or lines) `old` and `new` have in common at the beginning and at the end."""
    limit = min(len(old), len(new))
    before = next((i for i in range(limit) if old[i] != new[i]), limit)
    after = next((i for i in range(limit - before) if old[-1 - i] != new[-1 - i]), limit - before)
    return before, after


# ---------------------------------------------------------------- Ignoring the indentation of whole lines


def _by_lines(text: str, edit: Edit) -> Iterator[Replacement]:
    old, new = edit.old.replace("\r\n", "\n"), edit.new.replace("\r\n", "\n")
    takes_end = old.endswith("\n") and not new.endswith("\n")
    if old.endswith("\n"):
        old, new = old[:-1], new.removesuffix("\n")
    old_lines, lines = old.split("\n"), text.split("\n")
    wanted, have = [squeezed_line(line) for line in old_lines], [squeezed_line(line) for line in lines]
    if not any(wanted):
        return
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    index = 0
    while index + len(wanted) <= len(lines):
        if have[index : index + len(wanted)] != wanted:
            index += 1
            continue
        after = index + len(wanted)
        start, end = starts[index], min(starts[after], len(text))
        if not takes_end and after < len(starts) - 1:
            end = starts[after] - 1 - lines[after - 1].endswith("\r")
        moved = reindent(new.split("\n"), old_lines, lines[index:after])
        yield Replacement(start, end, with_ends("\n".join(moved), line_end(text, start, end)))
        index = after if edit.all else index + 1


def plain_line(line: str) -> str:
    """Return `line` with look-alike characters replaced and trailing blanks removed, for comparison."""
    return line.translate(_ALIKE).rstrip()


def squeezed_line(line: str) -> str:
    """Return `line` with look-alikes replaced, no blanks around it and single blanks inside, for comparison."""
    return " ".join(line.translate(_ALIKE).split())

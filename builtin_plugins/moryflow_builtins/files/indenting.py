"""Indent new lines as the file does if the model used other blanks: spaces for tabs, two for four."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import gcd

Step = tuple[str, str]
"""What a model wrote for one level of indentation, and what the file has for it; both empty: they are the same."""


def adapted(new: Sequence[str], written: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return the lines `new` as the file would indent them, which has `there` what a model wrote as `written`."""
    known: dict[str, str] = {}
    for ours, theirs in zip(written, there, strict=True):
        if theirs.strip():
            known.setdefault(_indent(ours), _indent(theirs))
    if all(ours == theirs for ours, theirs in known.items()):
        return list(new)
    indents = {_indent(line) for line in new if line.strip()}
    step = _learned(known) or _guessed(known, indents)
    moved = {indent: _moved(indent, known, step) for indent in indents}
    return [moved[_indent(line)] + line.lstrip(" \t") if line.strip() else line for line in new]


def other_blanks(written: Sequence[str], there: Sequence[str]) -> bool:
    """Whether one of two is indented with tabs and the other is indented without any."""
    ours, theirs = ("".join(map(_indent, lines)) for lines in (written, there))
    return bool(ours and theirs) and ("\t" in ours) != ("\t" in theirs)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _learned(known: Mapping[str, str]) -> Step | None:
    """Return the step between two lines that are indented unlike, or else what stands for the tabs of a single one."""
    for less, more in pairwise(sorted(known, key=len)):
        if more.startswith(less) and known[more].startswith(known[less]) and known[more] != known[less]:
            return _smallest(more.removeprefix(less), known[more].removeprefix(known[less]))
    return next((_smallest(*pair) for pair in known.items() if all(pair) and ("\t" in pair[0]) != ("\t" in pair[1])), None)


def _smallest(ours: str, theirs: str) -> Step:
    """Return one level of several: two tabs for eight spaces are one for four. A single space is not a level."""
    levels = gcd(len(ours), len(theirs))
    if "\t" in theirs and len(ours) == levels:
        return ours, "\t"
    return ours[: len(ours) // levels], theirs[: len(theirs) // levels]


def _guessed(known: Mapping[str, str], indents: Iterable[str]) -> Step:
    """Return the step where the lines that are there do not tell it: they are all at one level."""
    if "\t" in "".join(known):
        return "", ""
    if "\t" in "".join(known.values()):
        return min((indent for indent in indents if indent.strip(" ") == "" != indent), key=len, default=""), "\t"
    return ("\t", " " * 4) if "\t" in "".join(indents) else ("", "")


def _moved(indent: str, known: Mapping[str, str], step: Step) -> str:
    """Return what the file has for `indent`: known, or so many levels more or less than one that is."""
    below = [one for one in known if indent.startswith(one)]
    if below:
        nearest = max(below, key=len)
        return known[nearest] + _converted(indent.removeprefix(nearest), step)
    above = [one for one in known if one.startswith(indent)]
    if not above:
        return indent
    nearest = min(above, key=len)
    left_out = _converted(nearest.removeprefix(indent), step)
    return known[nearest].removesuffix(left_out) if known[nearest].endswith(left_out) else indent


def _converted(blanks: str, step: Step) -> str:
    """Return `blanks` in the file's way; what is no whole level aligns, and stays."""
    ours, theirs = step
    levels = 0
    while ours and blanks.startswith(ours):
        blanks, levels = blanks.removeprefix(ours), levels + 1
    return theirs * levels + blanks

"""What a tool gave, in a few lines: the beginning, or the end where that says how it went, a diff, or only how much."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moryflow_sdk.support.texts import visible

from .question_text import preview_lines
from .text import cut

DIFF_LINES = 30
"""Rows that what a call has changed may take."""
OUTPUT_LINES = 4
"""Lines of what a tool gave that are shown; a tool that only reads shows how many there are."""
ERROR_LINES = 8
"""Rows that the error of a call may take."""
BOLD, DIM, RED, GREEN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m"
_DIFF = {"+": GREEN, "-": RED, "@": "\x1b[36m"}
_READERS = frozenset({"read", "ls", "glob", "grep", "skill"})
_NOTICE = re.compile(r"\n\n\[Output truncated:[^]]*\]\s*\Z")
"""What a model is told behind an output that was too long for it."""
_LEFT_OUT = re.compile(r"\[… left out …\]|\[\d+ bytes; these are the last \d+\]")
"""The first line of an output of which only the end was kept."""


class OutputLines(NamedTuple):
    """The lines to show, each with its style.

    :ivar rest: what of it is not shown, to be shown whole when a person asks for it; empty where nothing is left out.
    """

    lines: list[tuple[str, str]]
    rest: str


def failed(result: Mapping[str, Any]) -> bool:
    """Whether a call failed, or the command that it ran."""
    title = str(result.get("title") or "")
    return result["status"] != "ok" or (title.startswith("exit code ") and title != "exit code 0")


def output_lines(result: Mapping[str, Any], columns: int, how: str) -> OutputLines:
    """Return the lines that stand below a call.

    :param how: what is said where something is left out: how all of it can be seen.
    """
    output, diff = str(result.get("output") or ""), str(result.get("diff") or "")
    if result["status"] == "ok" and diff:
        shown = preview_lines(diff, columns + 3, DIFF_LINES, f"; {how}" if how else "")
        return OutputLines(_diff_lines(shown), diff if len(shown) >= DIFF_LINES else "")
    kept = _NOTICE.sub("", output) if result.get("truncated") else output
    lines = [_as_printed(line) for line in kept.rstrip().split("\n")] if kept.strip() else []
    if result["status"] != "ok" and not _ends_with_how_it_ended(result, lines):
        return _error(str(result["status"]), lines, output, columns, how)
    return _few(result, lines, output, columns, how)


def _as_printed(line: str) -> str:
    """Return what is left of a line at a terminal: what a progress bar wrote last, behind its last return."""
    return visible(line.rstrip("\r").rpartition("\r")[2], keep="\t").replace("\t", "    ")


def _diff_lines(lines: Sequence[str]) -> list[tuple[str, str]]:
    shown: list[tuple[str, str]] = []
    style = ""
    for line in lines:
        style = style if line.startswith("  ┊") else _DIFF.get(line.lstrip(" │")[:1], "")
        shown.append((line, style))
    return shown


def _few(result: Mapping[str, Any], lines: list[str], output: str, columns: int, how: str) -> OutputLines:
    only_end = bool(lines) and _LEFT_OUT.fullmatch(lines[0]) is not None
    style, at_end = RED if result["status"] != "ok" else DIM, only_end or _ends_with_how_it_ended(result, lines)
    lines = lines[only_end:]
    few = lines if len(lines) <= OUTPUT_LINES + 1 else lines[-OUTPUT_LINES:] if at_end else lines[:OUTPUT_LINES]
    if (result.get("domain") == "read" or result["tool"] in _READERS) and len(lines) > 1:
        few = []
    shown = [(f"  {cut(line, columns)}", style) for line in few]
    rest = len(lines) - len(few)
    if not rest and not result.get("truncated"):
        return OutputLines(shown, "")
    count = f"{'+' if few else ''}{rest:,} line{'s' if rest != 1 else ''}{' before' if at_end else ''}" if rest else ""
    said = _said(" · ".join(part for part in (count, how) if part), columns)
    return OutputLines([*said, *shown] if at_end else [*shown, *said], output)


def _error(status: str, lines: list[str], output: str, columns: int, how: str) -> OutputLines:
    first = "\n".join(lines).removeprefix(f"{status}: ").split("\n")
    rows = [row for line in [f"{status}: {first[0]}", *first[1:]] for row in textwrap.wrap(line, columns) or [""]]
    if len(rows) <= ERROR_LINES:
        return OutputLines([(f"  {row}", RED) for row in rows], "")
    return OutputLines([*((f"  {row}", RED) for row in rows[: ERROR_LINES - 1]), *_said(f"… {how}", columns)], output)


def _said(text: str, columns: int) -> list[tuple[str, str]]:
    return [(f"  {line}", DIM) for line in textwrap.wrap(text, columns)]


def _ends_with_how_it_ended(result: Mapping[str, Any], lines: list[str]) -> bool:
    """Whether the last line says how a command ended, other than well: what it said before that tells why."""
    return bool(lines) and bool(result.get("title")) and lines[-1] == f"[{result['title']}]"

"""What stands below a call: a few lines of its output, from the end that tells how it went, its diff, or its error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from moryflow_sdk.support.texts import visible

from . import cut
from .question_text import preview_lines, rows_of

# The most rows of a diff.
DIFF_LINES = 30
# How many lines of a tool's output are shown; of a tool that only reads, just their number is shown.
OUTPUT_LINES = 4
# The most rows of a call's error.
ERROR_LINES = 8
BOLD, DIM, RED = "\x1b[1m", "\x1b[2m", "\x1b[1;31m"
_READERS = frozenset({"read", "ls", "glob", "grep", "skill"})
# The note to the model at the end of an output that was too long for it.
_NOTICE = re.compile(r"\n\n\[Output truncated:[^]]*\]\s*\Z")


class OutputLines(NamedTuple):
    """The lines to show, each with its style.

    :ivar rest: the output, to be shown whole when the user asks for it; empty if nothing of it is left out.
    """

    lines: list[tuple[str, str]]
    rest: str


def failed(result: Mapping[str, Any]) -> bool:
    """Return whether a call failed, or the command that it ran."""
    title = str(result.get("title") or "")
    return result["status"] != "ok" or (title.startswith("exit code ") and title != "exit code 0")


def output_lines(result: Mapping[str, Any], columns: int, hint: str) -> OutputLines:
    """Return the lines below a call: its diff, its output or its error.

    :param hint: how to see all of it, if something is left out.
    """
    output, diff = str(result.get("output") or ""), str(result.get("diff") or "")
    if result["status"] == "ok" and diff:
        shown = preview_lines(diff, columns + 3, DIFF_LINES, f"; {hint}" if hint else "")
        return OutputLines([(line, "") for line in shown], diff if len(shown) >= DIFF_LINES else "")
    kept = _NOTICE.sub("", output) if result.get("truncated") else output
    lines = [_as_printed(line) for line in kept.rstrip().split("\n")] if kept.strip() else []
    style, most = DIM, OUTPUT_LINES
    if at_end := failed(result):  # of a command, the last lines tell why; of an error, all do
        style, command = "", bool(result.get("title"))
        if not command:
            said = "\n".join(lines).removeprefix(f"{result['status']}: ")
            lines, at_end, most = rows_in(f"{result['status']}: {said}", columns), False, ERROR_LINES
    elif (result.get("domain") == "read" or result["tool"] in _READERS) and len(lines) > 1:
        most = 0
    few = lines if most > 0 and len(lines) <= most + 1 else lines[len(lines) - most :] if at_end else lines[:most]
    shown = [(f"  {cut(line, columns)}", style) for line in few]
    rest = len(lines) - len(few)
    if not rest and not result.get("truncated"):
        return OutputLines(shown, "")
    count = f"{'+' if few else ''}{rest:,} line{'s' if rest != 1 else ''}{' before' if at_end else ''}" if rest else ""
    hints = [(f"  {row}", DIM) for row in rows_in(" · ".join(part for part in (count, hint) if part), columns)]
    return OutputLines([*hints, *shown] if at_end else [*shown, *hints], output)


def _as_printed(line: str) -> str:
    return visible(line.rstrip("\r").rpartition("\r")[2], keep="\t").replace("\t", "    ")


def rows_in(text: str, columns: int) -> list[str]:
    return [row.rstrip() for line in text.split("\n") for row in rows_of("", "", line, columns + 1, words=True)] if text else []

"""A question as a person reads it: whose it is, what will happen, why it is asked, and what *always* does.

Text that others chose is shown in lines with a prefix that our own lines never have, without invisible characters, so that it
cannot imitate the question. A text that is too long loses its middle, so neither end can be pushed out of sight.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from moryflow_sdk.support.texts import visible

from . import fitting
from .streams import stderr

LEAST_COLUMNS = 20
"""The fewest columns that a terminal is taken to have."""
LOW = 40
"""Rows below which a terminal gives each part of a question one row less."""
MOST_TARGETS = 8
ROW_OF_KEYS = 70
"""Columns that the answers on offer take, with the one that is typed."""
ALL = 1 << 30
V = "; v shows all"
ROOT = "vault:/"
"""The folder in which a command runs unless its call names another."""


class QuestionText(NamedTuple):
    """The text of a question.

    :ivar text: as much of it as fits on the screen; `whole` is all of it.
    :ivar always: whether the answer *always* stores anything; only then is it offered.
    """

    text: str
    whole: str
    always: bool

    @property
    def cut(self) -> bool:
        """Whether `text` leaves anything out."""
        return self.text != self.whole

    @property
    def keys(self) -> str:
        """The answers on offer, as the prompt behind which a person types."""
        offered = [
            "[o]nce",
            *(["[a]lways"] if self.always else []),
            "[r]eject",
            "[s]top",
            *(["[v]iew all"] if self.cut else []),
            "or why not",
        ]
        lines = [""]
        for answer in offered:
            if len(lines[-1]) + len(answer) > screen()[0] - len("   > o"):
                lines.append("")
            lines[-1] += f"  {answer}"
        return "\n".join(lines) + " > "


_VERBS = {"read": "read", "edit": "change", "web_fetch": "fetch", "web_search": "search for", "mcp": "call", "task": "start"}
"""What a tool wants to do with its targets, by its domain. A tool of any other domain, or of none, wants to run them."""


def question(request: Mapping[str, Any], approval: str = "", whose: str = "") -> QuestionText:
    """Return the text of the question in `request`, which is as the store and the event ``permission.asked`` have it."""
    columns, rows = screen()
    whole = "\n".join(_lines(request, approval, whose, columns, ALL))
    text = "\n".join(_lines(request, approval, whose, columns, rows))
    return QuestionText(f"\n{text}\n", f"\n{whole}\n", bool(_always(request)))


def screen() -> tuple[int, int]:
    """Return columns and rows of the terminal at standard error or input; standard output may be a pipe."""
    found = (80, 24)
    for stream in (sys.stdin, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            found = os.get_terminal_size(stream.fileno())
    columns, rows = shutil.get_terminal_size(found)
    return max(columns, LEAST_COLUMNS), rows


def _lines(request: Mapping[str, Any], approval: str, whose: str, columns: int, rows: int) -> Iterator[str]:
    few, least = (ALL, ALL) if rows >= ALL else (3, 5) if rows < LOW else (4, 6)
    mark = f"  ({approval})" if approval else ""
    shown = str((*request.get("targets", ()), "")[0])
    verb = "run" if shown.startswith("tool:") else _VERBS.get(str(request.get("domain", "")), "run")
    head = _field(
        "? ", f"{visible(whose)}{visible(str(request.get('tool', '')))} wants to {verb}{mark}", columns, few, words=True
    )
    targets = [_field("    ", visible(target), columns, few, words=True) for target in request.get("targets", ())]
    if request.get("folder", ROOT) != ROOT:
        targets.append(_field("  in ", visible(str(request["folder"])), columns, few))
    below = _field("  because: ", visible(str(request.get("reason", ""))), columns, few, words=True)
    always = _always(request)
    below += _field("  ", f"always {visible(always)}" if always else "this answer is not stored", columns, few, words=True)
    preview = str(request.get("preview") or "")
    room = rows - len(head) - len(below) - 2 - ROW_OF_KEYS // columns
    shown = _fitting_targets(targets, ALL if rows >= ALL else room - (least if preview else 0), columns)
    yield from head
    yield from shown
    yield from preview_lines(preview, columns, max(least, room - len(shown)))
    yield from below


def _fitting_targets(targets: Sequence[list[str]], rows: int, columns: int) -> list[str]:
    """Return the lines of as many targets as fit, at least two: a long list must not push the question off the screen."""
    most = MOST_TARGETS if rows < ALL else ALL
    while True:
        lines = _without_middle(targets, most, f"targets{V}", columns)
        if len(lines) <= rows or most <= 2:
            return lines
        most -= 1


def preview_lines(text: str, columns: int, rows: int, hint: str = V) -> list[str]:
    """Return a preview in at most `rows` rows, each marked as a line of the preview.

    :param hint: how to see all of it, if lines are left out.
    """
    if not text:
        return []
    lines = [visible(line, keep="\t").replace("\t", "    ") for line in text.split("\n")]
    pieces = [piece for line in lines for piece in rows_of("  │ ", "  ┊ ", line, columns, words=True)]
    return _without_middle([[piece] for piece in pieces], rows, f"lines{hint}", columns)


def _always(request: Mapping[str, Any]) -> str:
    """Return what *always* would do; a question stored by an earlier version has only the patterns."""
    if "always" in request:
        return str(request["always"] or "")
    remember = request.get("remember") or ()
    patterns = (remember,) if isinstance(remember, str) else remember
    return f"stores: {', '.join(map(str, patterns))}" if patterns else ""


def _field(mark: str, text: str, columns: int, rows: int, *, words: bool = False) -> list[str]:
    """Wrap a text of one line into at most `rows` rows, with `words` between words if possible."""
    pieces = list(rows_of(mark, "      ", text, columns, words=words))
    return _without_middle([[piece] for piece in pieces], rows, f"lines{V}", columns)


def rows_of(first: str, further: str, text: str, columns: int, *, words: bool = False) -> Iterator[str]:
    """Yield `text` in rows of at most `columns` - 1 columns, the first behind `first` and the others behind `further`."""
    room = max(columns - max(len(first), len(further)) - 1, 2)
    text, mark = _writable(text), first
    while True:
        piece = text[:room] if text[:room].isascii() else fitting(text, room) or text[:1]
        blank = piece.rfind(" ") + 1
        if words and len(piece) < len(text) and blank > room // 2:
            piece = piece[:blank]
        yield f"{mark}{piece}"
        text, mark = text[len(piece) :], further
        if not text:
            return


def _writable(text: str) -> str:
    """Return `text` with escapes for what the terminal's encoding lacks; they must be there before wrapping."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)


def _without_middle(items: Sequence[list[str]], most: int, what: str, columns: int) -> list[str]:
    """Return the lines of at most `most` items, the first and the last ones; a line between says how many are left out."""
    if len(items) > most:
        first = max(1, (most - 1) * 2 // 3)
        last = max(1, most - 1 - first)
        gap = f"  … {len(items) - first - last:,} more {what} …"
        items = [*items[:first], [gap if len(gap) <= columns else f"{gap[: columns - 1]}…"], *items[-last:]]
    return [line for item in items for line in item]


async def show_whole(text: str) -> None:
    """Show a text that is longer than the screen: with ``$PAGER`` if that is set, else as it is."""
    try:
        command = shlex.split(os.environ.get("PAGER", ""))
    except ValueError as error:
        stderr().write(f"moryflow: $PAGER cannot be read: {error}; without it:\n")
        command = []
    if not (command and sys.stderr.isatty()):
        stderr().write(text)
        return
    try:
        pager = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=sys.stderr.fileno())
    except OSError as error:
        stderr().write(f"moryflow: $PAGER ({command[0]}) cannot be started: {error.strerror}; without it:\n{text}")
        return
    try:
        await pager.communicate(text.encode("utf-8", "replace"))
    finally:
        if pager.returncode is None:
            pager.terminate()
    if pager.returncode:
        stderr().write(f"moryflow: $PAGER ({command[0]}) ended with {pager.returncode}; without it:\n{text}")

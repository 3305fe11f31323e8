"""A question as the user reads it: whose it is, what will happen, what is unusual about that, and what *always* stores.

Text that others chose is shown in lines with a prefix that our own lines never have, without invisible characters, so that it
cannot imitate the question. A text that is too long loses its middle, so neither end can be pushed out of sight.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from moryflow_sdk.support.texts import in_words, visible

from . import fitting
from .diffs import numbered

# The fewest columns that a terminal is taken to have.
LEAST_COLUMNS = 20
# Rows below which a terminal gives each part of a question one row less.
LOW = 40
MAX_TARGETS = 8
# Columns that the answers on offer take, with the one that is typed.
ROW_OF_KEYS = 90
ALL = 1 << 30
V = "; v shows all"
# The folder in which a command runs unless its call names another.
ROOT = "vault:/"


class QuestionText(NamedTuple):
    """The text of a question.

    :ivar text: as much of it as fits on the screen; `whole` is all of it.
    :ivar always: the lines that say what *always* stores; without any it is not offered.
    :ivar other: the key that changes what *always* stores, with its word: ``[e]xact`` or ``[w]ider``; empty if there is none.
    :ivar preset: whether rules are offered beside *always*.
    """

    text: str
    whole: str
    always: str
    other: str
    preset: bool

    @property
    def cut(self) -> bool:
        """Whether `text` leaves anything out."""
        return self.text != self.whole

    @property
    def keys(self) -> str:
        """The answers on offer, as the prompt behind which the user types."""
        offered = [
            "[o]nce",
            *(["[a]lways"] if self.always else []),
            *([self.other] if self.other else []),
            *(["[f]rom now on"] if self.preset else []),
            "[r]efuse",
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


# What a tool wants to do with its targets, by its domain. A tool of any other domain, or of none, wants to run them.
_VERBS = {"read": "read", "edit": "change", "web_fetch": "fetch", "web_search": "search for", "mcp": "call", "task": "start"}


def question(request: Mapping[str, Any], whose: str = "", *, exact: bool = False) -> QuestionText:
    """Return the text of the question in `request`, which is as the store and the event ``permission.asked`` have it.

    :param exact: *always* stores nothing but what is asked about.
    """
    columns, rows = screen()
    whole = "\n".join(_lines(request, whose, columns, ALL, exact))
    text = "\n".join(_lines(request, whose, columns, rows, exact))
    always = "\n".join(_always(request, columns, 3, exact))
    other = ("[w]ider" if exact else "[e]xact") if request.get("exact") else ""
    return QuestionText(f"\n{text}\n", f"\n{whole}\n", always, other, bool(request.get("preset")))


def screen() -> tuple[int, int]:
    """Return columns and rows of the terminal at standard error or input; standard output may be a pipe."""
    found = (80, 24)
    for stream in (sys.stdin, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            found = os.get_terminal_size(stream.fileno())
    columns, rows = shutil.get_terminal_size(found)
    return max(columns, LEAST_COLUMNS), rows


def _lines(request: Mapping[str, Any], whose: str, columns: int, rows: int, exact: bool) -> Iterator[str]:
    few, least = (ALL, ALL) if rows >= ALL else (3, 5) if rows < LOW else (4, 6)
    named, tool = tuple(map(str, request.get("targets", ()))), str(request.get("tool", ""))
    verb = "run" if (*named, "")[0].startswith("tool:") else _VERBS.get(str(request.get("domain", "")), "run")
    says = "the agent asks" if request.get("questions") else f"{visible(tool)} wants to {verb}"
    head = _field("? ", f"{visible(whose)}{says}", columns, few, words=True)
    folder = str(request.get("folder", ROOT))
    where = [] if folder == ROOT else _field("  in ", visible(in_words(folder)), columns, few)
    unusual = visible(str(request.get("unusual", request.get("reason", ""))))
    below = _field("  ! ", unusual, columns, few, words=True) if unusual else []
    below += _always(request, columns, few, exact)
    if request.get("preset"):
        below += _field("  from now on: ", visible(str(request["preset"]["says"])), columns, few + 1, words=True)
    preview = str(request.get("preview") or "")
    room = rows - len(head) - len(where) - len(below) - 2 - ROW_OF_KEYS // columns
    ahead = ALL if rows >= ALL else room - (least if preview else 0)
    targets = [_target(one, columns, ahead if len(named) == 1 else few) for one in named if in_words(one) != tool]
    shown = [*_fitting_targets(targets, ahead, columns), *where]
    yield from head
    yield from shown
    yield from preview_lines(preview, columns, max(least, room - len(shown) + len(where)))
    yield from below


def _target(target: str, columns: int, rows: int) -> list[str]:
    if not target.startswith("shell:"):
        return _field("    ", visible(in_words(target)), columns, min(rows, 4) if rows < ALL else rows, words=True)
    lines = visible(in_words(target), keep="\n\t").replace("\t", "    ").split("\n")
    pieces = [[row] for line in lines for row in rows_of("    ", "      ", line, columns, words=True)]
    return _without_middle(pieces, max(rows, 2), f"lines{V}", columns)


def _fitting_targets(targets: Sequence[list[str]], rows: int, columns: int) -> list[str]:
    """Return the lines of as many targets as fit, at least two: a long list must not push the question off the screen."""
    most = MAX_TARGETS if rows < ALL else ALL
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
    lines = [visible(line, keep="\t").replace("\t", "    ") for line in numbered(text).split("\n")]
    pieces = [piece for line in lines for piece in rows_of("  │ ", "  ┊ ", line, columns, words=True)]
    return _without_middle([[piece] for piece in pieces], rows, f"lines{hint}", columns)


def _always(request: Mapping[str, Any], columns: int, rows: int, exact: bool) -> list[str]:
    said = str((request.get("exact") if exact else None) or request.get("always", "")).removeprefix("stores: ")
    return _field("  always: ", visible(said), columns, rows, words=True) if said else []


def _field(mark: str, text: str, columns: int, rows: int, *, words: bool = False) -> list[str]:
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

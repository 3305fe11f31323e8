"""Diffs as people read them: with line numbers, signs in colour, and the code in its syntax by weight and slant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ROW = re.compile(r"( *│ *\d* )([-+ ]) (.*)", re.DOTALL)
_NAMED = re.compile(r"│ (\S+\.\w+)(?:: \+\d+ -\d+ lines)?\Z")
# Words are never in a colour: of the sixteen, none has a contrast of 4.5 on light and on dark in every theme.
_TOKENS = {"Keyword": "\x1b[1m", "Comment": "\x1b[2;3m", "String": "\x1b[3m", "Function": "\x1b[1m", "Class": "\x1b[1m"}
DIM = "\x1b[2m"
_SIGNS = {"+": "\x1b[1;32m", "-": "\x1b[1;31m", " ": DIM}


def numbered(diff: str) -> str:
    """Return a unified diff with the number of each line in front, in place of the headers of its hunks.

    What is no hunk stays as it is; in a diff of the vault's files the names lose their prefix.
    """
    lines, shown = diff.split("\n"), list[str]()
    last = [int(found[number]) + int(found[number + 1] or 1) for found in _HUNK.finditer(diff) for number in (1, 3)]
    width, old, new, left, gap = len(str(max(last, default=0))), 0, 0, (0, 0), False
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        sign, (of_old, of_new) = line[:1] or " ", left
        if of_old + of_new > 0 and sign in "+- ":
            number = "" if gap else str(old if sign == "-" else new)
            shown.append(f"{number:>{width}} {sign} {line[1:]}")
            old, new = old + (sign != "+"), new + (sign != "-")
            left = of_old - (sign != "+"), of_new - (sign != "-")
        elif found := _HUNK.match(line):
            shown += ["⋮"] if old else []
            old, new, gap = int(found[1]), int(found[3]), False
            left = int(found[2] or 1), int(found[4] or 1)
        elif line.startswith("… "):  # lines are left out: those below have no known number
            gap = True
            shown.append(line)
        elif not (line.startswith("--- ") and after.startswith("+++ ")):  # a name is enough
            shown.append(line.removeprefix("+++ ").replace("vault:/", ""))
            old = 0
    return "\n".join(shown)


def painted(rows: Iterable[str], name: str = "") -> Iterator[list[tuple[str, str]]]:
    """Yield each row of a numbered diff as pieces with their styles; `name` is that of the file until a row names another."""
    for row in rows:
        named = _NAMED.search(row)
        name, found = named[1] if named else name, _ROW.fullmatch(row)
        if found is not None:
            sign = found[2]
            yield [(found[1], DIM), (f"{sign} ", _SIGNS[sign]), *_tokens(found[3], name)]
        else:
            yield [(row, "")]


def _tokens(code: str, name: str) -> Iterator[tuple[str, str]]:
    lexer = _lexer(name)
    for kind, text in lexer.get_tokens(code) if lexer else ((None, code),):
        words = () if kind is None else tuple(kind)
        yield text.rstrip("\n"), next((style for word, style in _TOKENS.items() if word in words), "")


@lru_cache(maxsize=64)
def _lexer(name: str) -> Any:
    from pygments.lexers import get_lexer_for_filename
    from pygments.util import ClassNotFound

    try:
        return get_lexer_for_filename(name, stripnl=False, stripall=False, ensurenl=False)
    except ClassNotFound:
        return None

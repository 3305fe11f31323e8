"""Characters that make a command look like another one."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence

_ODD = re.compile(r"[^\t\n -~]")
_LOOKS_EMPTY = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2800\u3164\uffa0")
_LIKE_SIGNS = frozenset(
    "\u02c6\u02cb\u02dc\u02f8\u01c0\u0296\u2016\u2032\u2033\u2035\u2044\u204f\u2212\u2215\u2216\u2217\u2223\u223c\u2236\u2758\u27cb\u29f5\u29f8\u29f9\u3008\u3009\ua789\u2028"
)
"""Letters and signs that a person takes for a dash, a quote, a slash, a bar, a star or a semicolon."""

_SHELL_SIGNS = frozenset(";|&<>()$`\"'\\{}~*?[]!#=- /")


def odd_character(text: str, quoted: Sequence[tuple[int, int]]) -> str:
    """Return the first misleading character of `text` that is not inside one of the `quoted` spans; else nothing.

    Control characters, those that turn or hide text, blanks that are no blanks to a shell, and look-alikes of signs
    that mean something to one.
    """
    if not _ODD.search(text):
        return ""
    spans = sorted(quoted)
    starts = [start for start, _ in spans]
    for found in _ODD.finditer(text):
        if misleading(found.group()) and not _inside(found.start(), starts, spans):
            return found.group()
    return ""


def _inside(position: int, starts: list[int], spans: list[tuple[int, int]]) -> bool:
    index = bisect_right(starts, position) - 1
    return index >= 0 and position < spans[index][1]


def misleading(char: str) -> bool:
    """Whether `char` is invisible, turns the text around it, or looks like a sign of the shell."""
    category = unicodedata.category(char)
    if category[0] in "CZ" or char in _LOOKS_EMPTY or "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef":
        return True
    if category in ("Pd", "Pi", "Pf") or char in _LIKE_SIGNS:
        return not char.isascii()
    return not char.isascii() and any(part in _SHELL_SIGNS for part in unicodedata.normalize("NFKC", char))


def named(char: str) -> str:
    """Return a character as it can be shown."""
    return f"U+{ord(char):04X} {unicodedata.name(char, '')}".strip()

"""Texts that were not read: the commands that may be in them, and characters that mislead."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_CUTS = re.compile(r"[;&|\n(){}`<>]|\$\(")
_QUOTED = re.compile(r"([\"'])(.*?)\1", re.DOTALL)
_LEADING = frozenset(
    ["then", "do", "else", "elif", "if", "while", "until", "!", "time", "exec", "command", "eval", "coproc", "case", "in",
     "function"]
)  # fmt: skip
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=|\d*[<>]+.")


def rough_commands(text: str) -> Iterator[str]:
    """Yield the parts of `text` that may be commands, and the ends of them, without quotes, keywords and assignments."""
    text = re.sub(r"\\\n|\$(?=[\"'])", "", text).replace("{}", "_")
    inner = (found.group(2) for found in _QUOTED.finditer(text))
    for piece in (*_CUTS.split(text), *(piece for quoted in inner for piece in _CUTS.split(quoted) if " " in piece)):
        words = re.sub(r"[\"'\\]", "", piece).split()
        while words and (words[0] in _LEADING or _ASSIGNED.match(words[0])):
            words.pop(0)
        for start in range(min(len(words), 12)):
            yield " ".join(words[start : start + 64])


_SIGNS = frozenset(";|&<>()$`\"'\\{}~*?[]!#=- /")
_LOOKS_EMPTY = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2800\u3164\uffa0")
# Letters and signs that the user takes for a dash, a quote, a slash, a bar, a star or a semicolon.
_LIKE_SIGNS = frozenset(
    "\u02c6\u02cb\u02dc\u02f8\u01c0\u0296\u2016\u2032\u2033\u2035\u2044\u204f\u2212\u2215\u2216\u2217\u2223\u223c\u2236\u2758\u27cb\u29f5\u29f8\u29f9\u3008\u3009\ua789\u2028"
)


def misleading_character(text: str) -> str:
    """Return the name of a control, invisible or look-alike character outside quotes; empty if there is none."""
    if re.fullmatch(r"[\t\n -~]*", text):
        return ""
    for char in dict.fromkeys(re.sub(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", "", text)):
        category = unicodedata.category(char)
        hidden = (category[0] in "CZ" and char not in " \t\n") or char in _LOOKS_EMPTY or 0xFE00 <= ord(char) <= 0xFE0F
        dash = category in ("Pd", "Pi", "Pf") and not char.isascii()
        sign = not char.isascii() and any(part in _SIGNS for part in unicodedata.normalize("NFKC", char))
        if hidden or dash or sign or char in _LIKE_SIGNS or 0xE0100 <= ord(char) <= 0xE01EF:
            return f"U+{ord(char):04X} {unicodedata.name(char, '')}".strip()
    return ""

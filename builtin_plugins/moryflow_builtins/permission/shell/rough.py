"""A second look at a text that was not understood: which commands may it hold? For denials only (R6)."""

from __future__ import annotations

import re
from collections.abc import Iterator

_CUTS = re.compile(r"[;&|\n(){}`]|\$\(")
_QUOTES = re.compile(r"[\"'\\]")
_LEADING = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "time", "exec", "command", "eval", "coproc"})
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
MAX_COMMANDS = 2000


def rough_commands(text: str) -> Iterator[str]:
    """Yield texts that may be commands, without quotes, keywords and assignments."""
    for piece in _CUTS.split(text.replace("\\\n", "").replace("{}", "_"), maxsplit=MAX_COMMANDS):
        words = _QUOTES.sub("", piece).split()
        while words and (words[0] in _LEADING or _ASSIGNED.match(words[0])):
            words.pop(0)
        if words:
            yield " ".join(words)
            name = words[0].rpartition("/")[2]
            if name and name != words[0]:
                yield " ".join((name, *words[1:]))

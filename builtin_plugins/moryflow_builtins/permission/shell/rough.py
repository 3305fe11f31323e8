"""A second look at a text that was not understood: which commands may it hold? For denials only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_CUTS = re.compile(r"[;&|\n(){}`]|\$\(")
_QUOTES = re.compile(r"[\"'\\]")
_LEADING = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "time", "exec", "command", "eval", "coproc"})
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_INTRODUCES = re.compile(r"[:=!%,]")
_PROSE = re.compile(r"--?(?:m|message|title|body|notes?|description|comment|subject|text)(?:=.*)?", re.DOTALL)
"""Options whose value is read by people."""

MAX_COMMANDS = 2000
MAX_WORDS = 64
"""How many words of a program that is not known are looked at as commands."""


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


def disguised(name: str, rest: Sequence[str], *, known: bool) -> Iterator[str]:
    """Yield the commands that `name` with its words `rest` may be or run, in other letters or behind a program.

    :param known: what the program does with its words is understood.
    """
    for spelling in sorted({name.lower(), name.partition(".")[0]} - {name, ""}):
        yield " ".join((spelling, *rest))
    if known:
        return
    few = rest[:MAX_WORDS]
    yield from (" ".join(rest[index : index + MAX_WORDS]) for index in range(len(few)))
    named = ((index, word.rpartition("/")) for index, word in enumerate(few))
    yield from (" ".join((base, *rest[index + 1 : index + MAX_WORDS])) for index, (_, slash, base) in named if slash and base)
    yield from (" ".join((name, *rest[index : index + MAX_WORDS])) for index in _after_options(few))
    for before, word in zip(("", *few), few, strict=False):
        if " " in word and not _PROSE.fullmatch(before) and not _PROSE.fullmatch(word):
            yield from rough_commands(_INTRODUCES.sub(";", word))


def _after_options(rest: Sequence[str]) -> Iterator[int]:
    """Yield where the words after leading options may begin, with or without values of those options."""
    for index, text in enumerate(rest):
        before = rest[index - 1] if index else ""
        if index and not text.startswith("-"):
            yield index
            if not before.startswith("-"):
                return

"""Texts that are not what they look like: misleading characters, and commands that may hide in what is not understood."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from moryflow_builtins.permission.policy import CompiledRule, RuleHit, RuleSet

_ODD = re.compile(r"[^\t\n -~]")
_LOOKS_EMPTY = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2800\u3164\uffa0")
_LIKE_SIGNS = frozenset(
    "\u02c6\u02cb\u02dc\u02f8\u01c0\u0296\u2016\u2032\u2033\u2035\u2044\u204f\u2212\u2215\u2216\u2217\u2223\u223c\u2236\u2758\u27cb\u29f5\u29f8\u29f9\u3008\u3009\ua789\u2028"
)
"""Letters and signs that a person takes for a dash, a quote, a slash, a bar, a star or a semicolon."""

_SHELL_SIGNS = frozenset(";|&<>()$`\"'\\{}~*?[]!#=- /")


def odd_character(text: str, quoted: Sequence[tuple[int, int]]) -> str:
    """Return the first misleading character of `text` that is not inside one of the `quoted` spans; else nothing.

    Control characters, those that turn or hide text, blanks that are not blanks to a shell, and look-alikes of signs
    that mean something to one.
    """
    if not _ODD.search(text):
        return ""
    spans = sorted(quoted)
    starts = [start for start, _ in spans]
    for found in _ODD.finditer(text):
        if is_misleading(found.group()) and not _inside(found.start(), starts, spans):
            return found.group()
    return ""


def _inside(position: int, starts: list[int], spans: list[tuple[int, int]]) -> bool:
    index = bisect_right(starts, position) - 1
    return index >= 0 and position < spans[index][1]


def is_misleading(char: str) -> bool:
    """Whether `char` is invisible, turns the text around it, or looks like a sign of the shell."""
    category = unicodedata.category(char)
    if category[0] in "CZ" or char in _LOOKS_EMPTY or "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef":
        return True
    if category in ("Pd", "Pi", "Pf") or char in _LIKE_SIGNS:
        return not char.isascii()
    return not char.isascii() and any(part in _SHELL_SIGNS for part in unicodedata.normalize("NFKC", char))


def character_name(char: str) -> str:
    """Return a character as it can be shown."""
    return f"U+{ord(char):04X} {unicodedata.name(char, '')}".strip()


_CUTS = re.compile(r"[;&|\n(){}`]|\$\(")
_QUOTES = re.compile(r"[\"'\\]")
_LEADING = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "time", "exec", "command", "eval", "coproc"})
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_INTRODUCES = re.compile(r"[:=!%,]")
_PROSE = re.compile(r"--?(?:m|message|title|body|notes?|description|comment|subject|text)(?:=.*)?", re.DOTALL)
"""Options whose value is read by people."""

MAX_WORDS = 64
"""How many words of a program that is not known are looked at as commands."""


def rough_commands(text: str) -> Iterator[str]:
    """Yield texts that may be commands, without quotes, keywords and assignments."""
    for piece in _CUTS.split(text.replace("\\\n", "").replace("{}", "_")):
        words = _QUOTES.sub("", piece).split()
        while words and (words[0] in _LEADING or _ASSIGNED.match(words[0])):
            words.pop(0)
        if words:
            yield " ".join(words)
            name = words[0].rpartition("/")[2]
            if name and name != words[0]:
                yield " ".join((name, *words[1:]))


def disguised_commands(name: str, rest: Sequence[str], *, known: bool) -> Iterator[str]:
    """Yield the commands that `name` with its words `rest` may be or run, in other letters or behind a program.

    :param known: what the program does with its words is understood.
    """
    for spelling in sorted({name.lower(), name.partition(".")[0]} - {name, ""}):
        yield " ".join((spelling, *rest))
    if known:
        return
    few = rest[:MAX_WORDS]
    yield from (" ".join(rest[index : index + MAX_WORDS]) for index in range(len(few)))
    paths = ((index, word.rpartition("/")) for index, word in enumerate(few))
    yield from (" ".join((base, *rest[index + 1 : index + MAX_WORDS])) for index, (_, slash, base) in paths if slash and base)
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


def denial_of(rules: RuleSet, text: str) -> RuleHit | None:
    """Return the denial that a text would get if it were a command."""

    def probe(compiled: CompiledRule) -> RuleHit | None:
        return RuleHit(compiled.rule, compiled.rule.decision) if compiled.matches(f"shell:{text}") else None

    hit = rules.last_for((text.partition(" ")[0],), probe)
    return hit if hit is not None and hit.decision == "deny" else None


def has_denial(rules: RuleSet) -> bool:
    """Whether any rule denies a command; without one, hidden commands need not be searched."""
    return any(compiled.rule.decision == "deny" for compiled in rules.of("bash"))

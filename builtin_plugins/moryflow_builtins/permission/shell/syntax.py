"""The parts of a shell text, as far as the judge needs them, and the arguments that its words expand to.

Values here and in the other modules are named tuples: a frozen dataclass takes seven times as long to define, and thirty of
them took a third of the time that the first command waited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Literal, NamedTuple
from urllib.parse import unquote

from moryflow_builtins.permission.policy import shortened


class NotParsed(Exception):
    """The text is not shell, or it can be read in more than one way."""


class PlainText(NamedTuple):
    """Characters that stand for themselves. Unquoted ones may still be a pattern, braces or a tilde."""

    text: str
    quoted: bool
    scripts = ()


class Expansion(NamedTuple):
    """Something that is replaced when the command runs, and the scripts that run for it."""

    raw: str
    scripts: tuple[Script, ...] = ()


Piece = PlainText | Expansion


class Word(NamedTuple):
    """One word as written."""

    raw: str
    pieces: tuple[Piece, ...]

    @property
    def bare(self) -> str | None:
        """The word, if nothing in it is quoted or expanded; only such a word can be a keyword."""
        if not self.pieces:
            return None
        piece = self.pieces[0]
        return piece.text if len(self.pieces) == 1 and isinstance(piece, PlainText) and not piece.quoted else None


class Redirect(NamedTuple):
    """``2> file``, ``<<EOF`` …

    :param descriptor: the text before the operator: digits, ``{name}`` or nothing.
    :param target: the word after the operator; for a here-document, its delimiter.
    :param body: the text of a here-document or here-string; the parser adds that of a here-document when it reaches the
        end of the line.
    """

    operator: str
    descriptor: str
    target: Word
    body: list[Word]


class Assignment(NamedTuple):
    """``NAME=value`` in front of a command; `words` are the values (several for an array)."""

    name: str
    raw: str
    words: tuple[Word, ...]


class Simple(NamedTuple):
    """A simple command."""

    raw: str
    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]


Kind = Literal[
    "group", "subshell", "if", "while", "for", "select", "case", "function", "coproc", "test", "arithmetic", "empty"
]  # fmt: skip


class Compound(NamedTuple):
    """A compound command.

    :param words: loop words, the subject and patterns of a ``case``, the operands of ``[[ ]]``, expansions of ``(( ))``.
    :param bodies: the lists inside, in order; for ``if``: condition, then-part, condition, then-part …, else-part.
    :param name: the variable of a loop, or the name of a function.
    """

    kind: Kind
    raw: str
    words: tuple[Word, ...] = ()
    bodies: tuple[Script, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    name: str = ""


Command = Simple | Compound


class Pipeline(NamedTuple):
    """Commands joined by ``|``."""

    commands: tuple[Command, ...]
    negated: bool = False


class Chain(NamedTuple):
    """Pipelines joined by ``&&`` and ``||``; `operators` stand between them."""

    pipelines: tuple[Pipeline, ...]
    operators: tuple[str, ...] = ()
    background: bool = False


class Script(NamedTuple):
    """A list of commands.

    :param unsure: why the text may not be what it seems, although bash runs it.
    """

    chains: tuple[Chain, ...] = ()
    unsure: str = ""


MAX_WORDS = 512
"""How many words the braces of one word may expand to; with more the word is unknown."""

MAX_EXPANDED = 4096
"""How many words the braces of one command may expand to."""

MAX_GROUPS = 32
"""How many braces may be opened in one word."""

_GLOB = frozenset("*?[")
_SEQUENCE = re.compile(r"(-?\d{1,6}|[A-Za-z])\.\.(-?\d{1,6}|[A-Za-z])(?:\.\.(-?\d{1,6}))?", re.ASCII)
_TILDE_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=~")


class Arg(NamedTuple):
    """One argument.

    :param text: what the program gets; an unknown part of it is written as in the source.
    :param why: why the argument is unknown; empty for a literal word. An allow covers only literal words.
    :param tilde: the argument begins with the user's home, written ``~``.
    """

    text: str
    why: str = ""
    tilde: bool = False

    @property
    def static(self) -> bool:
        """Whether the program surely gets `text`."""
        return not self.why

    @property
    def path(self) -> str:
        """The argument as a path for :meth:`Files.resolve`, which takes a leading ``~`` for the home folder."""
        return self.text if self.tilde or not self.text.startswith("~") else f"./{self.text}"

    def cut(self, start: int) -> Arg:
        """Return the argument without its first `start` characters, for example the value of ``--file=…``."""
        rest = self.text[start:]
        return Arg(rest, self.why, tilde=(self.tilde and start == 0) or rest.startswith("~/"))


def scripts_of(words: Iterable[Word]) -> Iterator[Script]:
    """Return the scripts that run while `words` are expanded."""
    return (script for word in words for piece in word.pieces for script in piece.scripts)


def join_words(words: Iterable[Arg]) -> Arg:
    """Return `words` joined by blanks; the result is unknown if one of them is."""
    words = tuple(words)
    return Arg(" ".join(word.text for word in words), next((word.why for word in words if word.why), ""))


_MARKS = re.compile(r"[=@<,;]|:(?!.*//)", re.DOTALL)

MAX_PIECES = 200
"""How many parts of one word are tried as files."""


def file_pieces(arg: Arg) -> list[Arg]:
    """Return a word and the parts of it that may be files: ``a=@b,c`` holds ``@b,c``, ``b,c``, ``b`` and ``c``."""
    if not _MARKS.search(arg.text):
        return [arg]
    parts = _MARKS.split(arg.text, maxsplit=MAX_PIECES)[1:]
    texts = dict.fromkeys((arg.text.partition("=")[2], arg.text.partition("@")[2], *parts))
    return [arg, *(Arg(text, arg.why, tilde=text.startswith("~/")) for text in texts if text)]


_FILE_ADDRESS = re.compile(r"(?:\A|[=@,<+\"'(])fileb?:(//)?", re.IGNORECASE)


def addressed_files(text: str) -> Iterator[str]:
    """Yield the files that ``file:`` addresses in `text` name, in any case, with or without a host, unescaped."""
    for found in islice(_FILE_ADDRESS.finditer(text), MAX_PIECES):
        rest = text[found.end() :]
        start = rest.find("/") if found.group(1) else 0
        for whole in dict.fromkeys((rest, rest[start:] if start > 0 else rest)):
            yield unquote(whole, errors="surrogateescape")


def arguments(words: Iterable[Word]) -> list[Arg]:
    left = [MAX_EXPANDED]
    return [argument for word in words for argument in _arguments(word, left)]


def argument(word: Word) -> Arg:
    """Return the argument that a word expands to where bash does not expand braces, for example in an assignment."""
    return _finish([*_marks(word.pieces)], word)


def _arguments(word: Word, left: list[int]) -> list[Arg]:
    """Return the arguments that one word expands to; `left`: how many words the command's braces may still expand to."""
    bare = word.bare
    if bare is not None and not _SPECIAL.search(bare):
        return [Arg(bare)]
    marks = [*_marks(word.pieces)]
    if ("{", False) not in marks:
        return [_finish(marks, word)]
    try:
        expanded = _expand_braces(marks) if left[0] > 0 and marks.count(("{", False)) <= MAX_GROUPS else []
    except _TooMany:
        expanded = []
    if not expanded:
        return [Arg(_text_of(marks), "its braces stand for too many words")]
    left[0] -= len(expanded)
    if _quirky(marks, expanded):
        return [Arg(_text_of(marks), f"the braces in {shortened(word.raw, 40)} can be read in two ways")]
    # bash drops a word that braces leave empty, unless something in it was quoted.
    return [_finish(item, word) for item in expanded if item]


_SPECIAL = re.compile(r"[*?\[{~]")

Mark = tuple[str, bool]
"""A character and whether it is quoted; an expansion is one quoted mark that holds its source."""


def _marks(pieces: Iterable[Piece]) -> Iterator[Mark]:
    for piece in pieces:
        if isinstance(piece, Expansion):
            yield _DYNAMIC + piece.raw, True
        elif piece.text:
            yield from ((char, piece.quoted) for char in piece.text)
        else:
            yield "", True


_DYNAMIC = "\ufdd0"
"""Marks the source of an expansion. Unicode assigns no character to it, so no text holds it."""


def _text_of(marks: Iterable[Mark]) -> str:
    return "".join(text.removeprefix(_DYNAMIC) for text, _ in marks)


def _finish(marks: list[Mark], word: Word) -> Arg:
    text = _text_of(marks)
    dynamic = next((mark[len(_DYNAMIC) :] for mark, _ in marks if mark.startswith(_DYNAMIC)), None)
    if dynamic is not None:
        return Arg(text, f"{shortened(dynamic, 40)} is known only when it runs")
    if any(char in _GLOB and not quoted for char, quoted in marks) and _may_glob(marks):
        return Arg(text, f"{shortened(text, 40)} is a pattern; what it matches is known only when it runs")
    if marks and marks[0] == ("~", False):
        if len(marks) == 1 or marks[1] == ("/", False):
            return Arg(text, tilde=True)
        return Arg(text, f"{shortened(text, 40)} depends on users and folders")
    if _TILDE_ASSIGNED.match(word.raw):
        return Arg(text, f"the ~ in {shortened(text, 40)} is expanded")
    return Arg(text)


def _may_glob(marks: list[Mark]) -> bool:
    """Whether the unquoted pattern characters can match anything; ``[`` alone is the name of a program."""
    unquoted = "".join(char for char, quoted in marks if not quoted)
    return "*" in unquoted or "?" in unquoted or ("[" in unquoted and any(char == "]" for char, _ in marks))


# ---------------------------------------------------------------- braces


class _TooMany(Exception):
    """Braces expand to more than :data:`MAX_WORDS` words, or to a sequence that is not read here."""


def _expand_braces(marks: list[Mark]) -> list[list[Mark]]:
    """Return the words that ``{a,b}`` and ``{1..3}`` in `marks` expand to, in the order of bash."""
    group = _group(marks)
    if group is None:
        return [marks]
    start, end, choices = group
    tails = _expand_braces(marks[end + 1 :])
    heads = [marks[:start] + inner for choice in choices for inner in _expand_braces(choice)]
    if len(heads) * len(tails) > MAX_WORDS:
        raise _TooMany
    return [head + tail for head in heads for tail in tails]


def _group(marks: list[Mark]) -> tuple[int, int, list[list[Mark]]] | None:
    """Return where the first brace group begins and ends, and its alternatives."""
    for start, mark in enumerate(marks):
        if mark != ("{", False):
            continue
        end, commas = _closing(marks, start)
        if end is None:
            continue
        if commas:
            cuts = [start, *commas, end]
            return start, end, [marks[a + 1 : b] for a, b in pairwise(cuts)]
        sequence = _sequence(marks[start + 1 : end])
        if sequence is not None:
            return start, end, sequence
    return None


def _quirky(marks: list[Mark], expanded: list[list[Mark]]) -> bool:
    """Whether unquoted braces are left over, which bash may read differently."""
    unquoted = _REFLOG.sub("", "".join(char for char, quoted in marks if not quoted))
    if "{" not in unquoted or ("," not in unquoted and ".." not in unquoted):
        return False
    return any(not quoted and char in "{}" for item in expanded for char, quoted in item)


_REFLOG = re.compile(r"@\{[^{},.]*\}")
"""``HEAD@{1}``, the one common word in which braces stand for themselves."""


def _closing(marks: list[Mark], start: int) -> tuple[int | None, list[int]]:
    level = 0
    commas: list[int] = []
    for index in range(start + 1, len(marks)):
        match marks[index]:
            case ("{", False):
                level += 1
            case ("}", False):
                if level == 0:
                    return index, commas
                level -= 1
            case (",", False) if level == 0:
                commas.append(index)
            case _:
                pass
    return None, []


def _sequence(marks: list[Mark]) -> list[list[Mark]] | None:
    text = "".join(char for char, quoted in marks if not quoted)
    found = _SEQUENCE.fullmatch(text) if len(text) == len(marks) else None
    if found is None:
        return None
    first, last, step = found.groups()
    if first.isalpha() != last.isalpha():
        return None
    low, high = (ord(first), ord(last)) if first.isalpha() else (int(first), int(last))
    width = abs(int(step or 1)) or 1
    values = range(low, high + 1, width) if low <= high else range(low, high - 1, -width)
    if len(values) > MAX_WORDS or (first.isalpha() and first.islower() != last.islower()):
        raise _TooMany
    padded = any(re.match(r"-?0\d", end) for end in (first, last))
    length = max(len(first), len(last)) if padded else 0
    shown = (chr(value) if first.isalpha() else f"{value:0{length}d}" for value in values)
    return [[(char, True) for char in item] for item in shown]

"""What a shell text consists of, as far as judging it needs: which commands, which words, in which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


class NotParsed(Exception):
    """The text is not shell, or written in a way that could be read in more than one way."""


@dataclass(frozen=True, slots=True)
class PlainText:
    """Characters that stand for themselves. Unquoted ones may still be a pattern, braces or a tilde."""

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Expansion:
    """Something that is replaced when the command runs, and the scripts that run for it."""

    raw: str
    scripts: tuple[Script, ...] = ()


Piece = PlainText | Expansion


@dataclass(frozen=True, slots=True)
class Word:
    """One word as written."""

    raw: str
    pieces: tuple[Piece, ...]

    @property
    def bare(self) -> str | None:
        """The word, when nothing in it is quoted or expanded; only such a word can be a keyword."""
        if not self.pieces:
            return None
        piece = self.pieces[0]
        return piece.text if len(self.pieces) == 1 and isinstance(piece, PlainText) and not piece.quoted else None


@dataclass(frozen=True, slots=True)
class Redirect:
    """``2> file``, ``<<EOF`` …

    :param descriptor: what stands before the operator: digits, ``{name}`` or nothing.
    :param target: the word after it; of a here-document its delimiter.
    :param body: of a here-document or here-string, the text that is fed in; a here-document's is read, and put here,
        when the line it stands in has ended.
    """

    operator: str
    descriptor: str
    target: Word
    body: list[Word] = field(default_factory=list["Word"], compare=False)


@dataclass(frozen=True, slots=True)
class Assignment:
    """``NAME=value`` in front of a command; `words` are the values (several for an array)."""

    name: str
    raw: str
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple command."""

    raw: str
    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]


Kind = Literal[
    "group", "subshell", "if", "while", "for", "select", "case", "function", "coproc", "test", "arithmetic", "empty"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compound:
    """A compound command.

    :param words: loop words, the subject and patterns of a ``case``, the operands of ``[[ ]]``, expansions of ``(( ))``.
    :param bodies: the lists inside, in order; of an ``if`` condition, then-part, condition, then-part …, else-part.
    :param name: of a loop its variable, of a function its name.
    """

    kind: Kind
    raw: str
    words: tuple[Word, ...] = ()
    bodies: tuple[Script, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    name: str = ""


Command = Simple | Compound


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands joined by ``|``."""

    commands: tuple[Command, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Pipelines joined by ``&&`` and ``||``; `operators` stand between them."""

    pipelines: tuple[Pipeline, ...]
    operators: tuple[str, ...] = ()
    background: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """A list of commands."""

    chains: tuple[Chain, ...] = ()

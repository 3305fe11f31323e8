"""Simple commands: assignments, words, redirections and here-documents."""

from __future__ import annotations

import re
from abc import abstractmethod

from .lexer import BLANK, Cursor, Lexer
from .syntax import Assignment, Command, Compound, Expansion, NotParsed, PlainText, Redirect, Simple, Word, scripts_of

_OPERATORS = frozenset({"&&", "||", ";;", ";&", ";;&", "|&", "<<", "<<-", "<<<", "<&", "<>", ">>", ">&", ">|", "&>", "&>>"})
_FIRST = frozenset(";&|<>()")
_REDIRECTS = frozenset({"<", ">", "<<", "<<-", "<<<", "<&", "<>", ">>", ">&", ">|", "&>", "&>>"})
_DESCRIPTOR = re.compile(r"(\d+|\{[A-Za-z_]\w*\})(?=[<>])", re.ASCII)
_BLANKS = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?\+?=", re.ASCII)
_SUBSCRIPT = re.compile(r"([A-Za-z_]\w*)\[", re.ASCII)
_RESERVED_SPLIT = frozenset(
    {
        "then", "do", "done", "fi", "elif", "else", "esac", "}", "{", "if", "while", "until", "for", "select", "case",
        "function", "[[", "coproc", "!", "time",
    }
)  # fmt: skip
"""Keywords that are refused as a first word: there they follow a redirection, or have a continued line in them."""


class SimpleReader(Lexer):
    """A lexer that also reads operators, lines and simple commands."""

    def __init__(self, text: str, outer: Cursor | None = None) -> None:
        super().__init__(text, outer)
        self.heredocs: list[tuple[Redirect, str]] = []
        self.heredocs_read = 0
        self.unclosed = False
        self.substitutions = 0

    @abstractmethod
    def function_body(self, name: Word) -> Compound:
        """Read the body of a function. The parser implements this."""

    # -------------------------------------------------------------------------------- blanks, lines, operators

    def blanks(self) -> None:
        """Skip blanks, continued lines and a comment."""
        found = _BLANKS.match(self.text, self.position)
        assert found is not None
        self.position = found.end()

    def newlines(self) -> None:
        """Skip line ends and blank lines, and read the here-documents that begin after a line end."""
        self.blanks()
        while self.peek() == "\n":
            self.position += 1
            waiting, self.heredocs = self.heredocs, []
            for redirect, delimiter in waiting:
                redirect.body.append(self._heredoc(redirect, delimiter))
                self.heredocs_read += 1
            self.blanks()

    def operator(self) -> str:
        """Return the operator that begins here, without consuming it; empty if none does."""
        return self._operator()[0] if self.peek() in _FIRST else ""

    def _operator(self) -> tuple[str, int]:
        start, operator = self.position, ""
        while self.peek() and self.peek() in ";&|<>()-" and (not operator or operator + self.peek() in _OPERATORS):
            operator += self.peek()
            self.position += 1
            self.skip_continuations()
        end, self.position = self.position, start
        return operator, end

    def take(self, *operators: str) -> str:
        """Consume and return one of `operators` if it comes next; else return an empty text."""
        self.blanks()
        if self.peek() not in _FIRST:
            return ""
        operator, end = self._operator()
        if operator not in operators:
            return ""
        self.position = end
        return operator

    def words(self) -> list[Word]:
        """Read words up to an operator or the end of the line."""
        found: list[Word] = []
        self.blanks()
        while (word := self.word()) is not None:
            found.append(word)
            self.blanks()
        return found

    # -------------------------------------------------------------------------------- simple commands

    def simple(self, start: int) -> Command:
        """Read a simple command, or the definition of a function."""
        assignments: list[Assignment] = []
        words: list[Word] = []
        redirects: list[Redirect] = []
        while True:
            redirects += self.redirects()
            place = self.position
            word = self.word()
            if word is None:
                break
            assignment = self._assignment(word, place)
            if assignment is not None and not words:
                assignments.append(assignment)
                continue
            if not words and not assignments and self._defines(word):
                return self.function_body(word)
            words.append(word if assignment is None else _as_word(assignment, word))
        if not (assignments or words or redirects):
            raise NotParsed(f"{self.peek()!r} is not expected" if self.peek() else "a command is missing")
        raw = self.text[start : self.position].rstrip(BLANK)
        return Simple(raw, tuple(assignments), tuple(words), tuple(redirects))

    def _defines(self, word: Word) -> bool:
        """Whether `word` is the name in ``name()``, whose parentheses are consumed."""
        if word.bare in _RESERVED_SPLIT:
            raise NotParsed("a keyword stands where a command is expected")
        self.blanks()
        if self.operator() != "(":
            return False
        self.take("(")
        if not self.take(")"):
            raise NotParsed("'(' is not expected")
        return True

    def _assignment(self, word: Word, place: int) -> Assignment | None:
        """Return the assignment that `word` is, with the array list after it; ``None`` if it is none."""
        first = word.pieces[0]
        if not isinstance(first, PlainText) or first.quoted:
            return None
        head = _ASSIGNMENT.match(first.text)
        if head is None:
            name = _SUBSCRIPT.match(first.text)
            if name and not any(
                "]" in piece.text for piece in word.pieces if isinstance(piece, PlainText) and not piece.quoted
            ):
                raise NotParsed("a subscript goes on after a blank")
            return Assignment(name.group(1), word.raw, (word,)) if name and _subscript_assigned(word) else None
        value = Word(word.raw[head.end() :], (PlainText(first.text[head.end() :], quoted=False), *word.pieces[1:]))
        if self.peek() != "(" or word.bare is None or head.end() != len(first.text):
            return Assignment(head.group(1), word.raw, (value,))
        self.position += 1
        values: list[Word] = []
        self.newlines()
        while (item := self.word()) is not None:
            values.append(item)
            self.newlines()
        if not self.take(")"):
            raise NotParsed("the list of an array is not closed")
        return Assignment(head.group(1), self.text[place : self.position], tuple(values))

    # -------------------------------------------------------------------------------- redirections

    def redirects(self) -> list[Redirect]:
        """Read the redirections that come next."""
        found: list[Redirect] = []
        self.blanks()
        while (redirect := self._redirect()) is not None:
            found.append(redirect)
            self.blanks()
        return found

    def _redirect(self) -> Redirect | None:
        start = self.position
        descriptor = _DESCRIPTOR.match(self.text, start)
        if descriptor:
            self.position = descriptor.end()
        operator, end = self._operator() if self.operator() else ("", start)
        if operator not in _REDIRECTS or self.peek(2) in ("<(", ">("):
            self.position = start
            return None
        self.position = end
        self.blanks()
        number = _DESCRIPTOR.match(self.text, self.position)  # bash reads the 2 in `< 2>a` as a descriptor, not as a name
        copies = operator in ("<&", ">&") and number is not None and number.group(1).isdecimal()
        target = self.word() if number is None or copies else None
        if target is None:
            raise NotParsed("a redirection has no target")
        redirect = Redirect(operator, descriptor.group(1) if descriptor else "", target, [])
        if operator == "<<<":
            redirect.body.append(target)
        elif operator in ("<<", "<<-"):
            plain = [piece.text for piece in target.pieces if isinstance(piece, PlainText)]
            if len(plain) < len(target.pieces) or "\n" in target.raw:
                raise NotParsed("the end of a here-document is not a plain word")
            self.heredocs.append((redirect, "".join(plain)))
        return redirect

    def _heredoc(self, redirect: Redirect, delimiter: str) -> Word:
        """Read the lines of a here-document up to its delimiter."""
        expands = redirect.target.bare is not None
        lines: list[str] = []
        start = self.position
        while self.position < len(self.text):
            end = self.text.find("\n", self.position)
            end = len(self.text) if end < 0 else end
            line = self.text[self.position : end]
            line = line.lstrip("\t") if redirect.operator == "<<-" else line
            self.position = min(end + 1, len(self.text))
            if line == delimiter:
                self.quoted_spans.append((start, end))
                break
            if expands and (len(line) - len(line.rstrip("\\"))) % 2:
                raise NotParsed("a line of a here-document is continued")
            lines.append(line)
        else:
            self.unclosed = True  # bash prints a warning and takes the rest of the text
        return self._heredoc_word("".join(f"{text}\n" for text in lines), expands)

    def _heredoc_word(self, body: str, expands: bool) -> Word:
        if not expands:
            return Word(body, (PlainText(body, quoted=True),))
        inner = type(self)(body, self)
        inner.deeper()
        pieces = tuple(inner.heredoc_pieces())
        self.unclosed |= inner.unclosed
        return Word(body, pieces)


def _subscript_assigned(word: Word) -> bool:
    later = (piece.text for piece in word.pieces[1:] if isinstance(piece, PlainText) and not piece.quoted)
    return any("]=" in text or "]+=" in text for text in later)


def _as_word(assignment: Assignment, word: Word) -> Word:
    """Return an assignment among the operands of a command, for example of ``declare``, as a word."""
    if assignment.raw == word.raw:
        return word
    return Word(assignment.raw, (Expansion(assignment.raw, tuple(scripts_of(assignment.words))),))

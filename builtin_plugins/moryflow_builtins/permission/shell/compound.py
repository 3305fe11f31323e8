"""Compound commands: loops, branches, groups, functions."""

from __future__ import annotations

import re
from abc import abstractmethod

from .simple import SimpleReader
from .syntax import Chain, Command, Compound, Kind, Pipeline, Script, Word

CLOSERS = frozenset({"then", "do", "done", "fi", "elif", "else", "esac", "}"})
OPENERS = frozenset({"{", "if", "while", "until", "for", "select", "case", "function", "[[", "coproc"})
RESERVED = CLOSERS | OPENERS | {"!", "time", "in", "]]"}
_KEYWORD = re.compile(r"(?:!|\{|\}|\[\[|\]\]|[a-z]+)(?=[ \t\n;&|<>()]|\Z)")
_CASE_ENDS = (";;", ";&", ";;&")


class CompoundReader(SimpleReader):
    """Adds keywords and what they begin to simple commands."""

    @abstractmethod
    def script(self, *closing: str) -> Script:
        """Read a list; the grammar's part."""

    @abstractmethod
    def command(self) -> Command:
        """Read one command; the grammar's part."""

    # -------------------------------------------------------------------------------- tokens

    def expect(self, what: str) -> None:
        found = self.take(what) if what == ")" else self.keyword(what)
        if not found:
            raise self.failure(f"{what!r} is missing")

    def next_keyword(self) -> str:
        """Return the reserved word that comes next, without consuming it."""
        self.blanks()
        found = _KEYWORD.match(self.text, self.position)
        return found.group() if found and found.group() in RESERVED else ""

    def keyword(self, *names: str) -> str:
        """Consume one of the reserved words `names` when it comes next."""
        found = self.next_keyword()
        if found in names:
            self.position += len(found)
            return found
        return ""

    def _body(self, *closing: str) -> Script:
        """Read a list that must not be empty."""
        script = self.script(*closing)
        if not script.chains:
            raise self.failure("a command is missing")
        return script

    def compound(self, opener: str) -> Compound:
        match opener:
            case "(":
                return Compound("subshell", "", bodies=(self._enclosed(")", ")"),))
            case "{":
                return Compound("group", "", bodies=(self._enclosed("}"),))
            case "if":
                return Compound("if", "", bodies=tuple(self._if()))
            case "while" | "until":
                return Compound("while", "", bodies=(self._body(), self._do()))
            case "for":
                return self._for("for")
            case "select":
                return self._for("select")
            case "case":
                return self._case()
            case "[[":
                return self._test()
            case "coproc":
                return self._coproc()
            case _:
                return self._function()

    def _enclosed(self, end: str, *closing: str) -> Script:
        body = self._body(*closing)
        self.expect(end)
        return body

    def _if(self) -> list[Script]:
        bodies = [self._body(), self._then()]
        while following := self.keyword("elif", "else", "fi"):
            if following == "fi":
                return bodies
            bodies.append(self._body())
            if following == "elif":
                bodies.append(self._then())
        raise self.failure("'fi' is missing")

    def _then(self) -> Script:
        self.expect("then")
        return self._body()

    def _do(self) -> Script:
        self.newlines()
        self.expect("do")
        return self._enclosed("done")

    def _for(self, kind: Kind) -> Compound:
        self.blanks()
        if self.peek(2) == "((":
            scripts = self.arithmetic()
            self.take(";")
            return Compound("for", "", bodies=(*scripts, self._loop_body()), name="((")
        name = self.word()
        if name is None or name.bare is None:
            raise self.failure("the loop has no variable")
        self.newlines()
        words = self.words() if self.keyword("in") else []
        self.take(";")
        return Compound(kind, "", tuple(words), (self._loop_body(),), name=name.bare)

    def _loop_body(self) -> Script:
        self.newlines()
        return self._enclosed("}") if self.keyword("{") else self._do()

    def _case(self) -> Compound:
        self.blanks()
        subject = self.word()
        if subject is None:
            raise self.failure("'case' has no subject")
        words, bodies = [subject], list[Script]()
        self.newlines()
        self.expect("in")
        self.newlines()
        while not self.keyword("esac"):
            words += self._patterns()
            bodies.append(self.script(*_CASE_ENDS))
            if not self.take(*_CASE_ENDS):
                self.expect("esac")
                break
            self.newlines()
        return Compound("case", "", tuple(words), tuple(bodies))

    def _patterns(self) -> list[Word]:
        self.take("(")
        patterns: list[Word] = []
        while not patterns or self.take("|"):
            self.blanks()
            pattern = self.word()
            if pattern is None:
                raise self.failure("a pattern is missing")
            patterns.append(pattern)
        self.expect(")")
        return patterns

    def _test(self) -> Compound:
        words: list[Word] = []
        while True:
            self.newlines()
            if self.peek(2) not in ("<(", ">(") and self.take("(", ")", "&&", "||", "<", ">"):
                continue
            word = self.word(" \t\n") if words and words[-1].bare == "=~" else self.word()
            if word is None:
                raise self.failure("']]' is missing")
            if word.bare == "]]":
                return Compound("test", "", tuple(words))
            words.append(word)

    def _coproc(self) -> Compound:
        self.blanks()
        start = self.position
        if not self._opens() and self.word() is not None and not self._opens():
            self.position = start
        chain = Chain((Pipeline((self.command(),)),))
        return Compound("coproc", "", bodies=(Script((chain,)),))

    def _opens(self) -> bool:
        """Whether a compound command comes next."""
        return self.next_keyword() in OPENERS or self.operator() == "("

    def _function(self) -> Compound:
        self.blanks()
        name = self.word()
        if name is None:
            raise self.failure("a function has no name")
        if self.take("("):
            self.expect(")")
        return self.function_body(name)

    def function_body(self, name: Word) -> Compound:
        """Read the body of a function."""
        self.newlines()
        if not self._opens():
            raise self.failure("a function has no body")
        body = Script((Chain((Pipeline((self.command(),)),)),))
        return Compound("function", "", bodies=(body,), name=name.raw)

"""The grammar: lists, pipelines and compound commands. Simple commands are read in :mod:`.simple`.

What cannot be read as bash reads it is refused here; why the grammar is ours stands in the docstring of the package.
"""

from __future__ import annotations

import re
from functools import lru_cache

from .compound import CLOSERS, OPENERS, RESERVED, CompoundReader
from .lexer import BLANK, Lexer
from .syntax import Chain, Command, Compound, Pipeline, PlainText, Script, Simple, Word

_ENDS = frozenset({";", "&", "&&", "||", "|", "|&", ")", ";;", ";&", ";;&"})


_PLAIN = re.compile(r"([\w./@%+,-]+)(?: [\w./@%+,:=-]+)*(?= *(?:[;\n|]|&&|&(?![>&])|\Z))", re.ASCII)
"""A command of plain words; most are."""


@lru_cache(maxsize=1024)
def _plain(text: str) -> Pipeline:
    words = tuple(Word(word, (PlainText(word, quoted=False),)) for word in text.split(" "))
    return Pipeline((Simple(text, (), words, ()),))


def parse(text: str) -> tuple[Script, list[tuple[int, int]]]:
    """Return `text` parsed, and where its quotes begin and end.

    :raises NotParsed: it is not shell, or not surely read as bash reads it.
    """
    parser = Parser(text)
    script = parser.script()
    parser.end_of_text()
    return script, parser.quoted_spans


class Parser(CompoundReader):
    """Reads one text; a back-quoted command inside it gets a parser of its own."""

    def nested(self, text: str) -> Script:
        """Read the text of a back-quoted command."""
        inner = Parser(text, self)
        inner.deeper()
        script = inner.script()
        inner.end_of_text()
        return script

    def end_of_text(self) -> None:
        """Check that nothing is left."""
        if self.heredocs:
            raise self.failure("a here-document is not closed")
        if self.position < len(self.text):
            raise self.failure(f"{self.peek()!r} is not expected")

    def script_until(self, closing: str) -> Script:
        """Read commands up to the parenthesis that closes them, and that too."""
        self.deeper()
        self.substitutions += 1
        waiting, self.heredocs = self.heredocs, []
        start = self.position
        script = self.script(closing)
        self.substitutions -= 1
        if self.heredocs or (waiting and "\n" in self.text[start : self.position]):
            raise self.failure("a here-document crosses the end of a substitution")
        self.heredocs = waiting
        self.expect(closing)
        self.depth -= 1
        return script

    def reader(self, text: str) -> Lexer:
        """Return a reader for a text that was cut out of this one."""
        return Parser(text, self)

    # -------------------------------------------------------------------------------- lists

    def script(self, *closing: str) -> Script:
        """Read a list up to one of the operators in `closing`, or to a word that closes something; it is left."""
        chains: list[Chain] = []
        self.newlines()
        read = self.heredocs_read
        while self.position < len(self.text) and not self._closes(closing):
            if self.substitutions and self.heredocs_read != read:
                # bash 5.2 prints a substitution and reads it again, and loses a separator after a here-document.
                raise self.failure("commands follow a here-document inside a substitution")
            chain = self._chain()
            ended = self.take(";", "&")
            chains.append(Chain(chain.pipelines, chain.operators, background=True) if ended == "&" else chain)
            self.blanks()
            if not ended and self.peek() != "\n":
                break
            self.newlines()
        return Script(tuple(chains))

    def _closes(self, closing: tuple[str, ...]) -> bool:
        operator = self.operator()
        return operator in closing if operator else self.next_keyword() in CLOSERS

    def _chain(self) -> Chain:
        pipelines = [self._pipeline()]
        operators: list[str] = []
        while operator := self.take("&&", "||"):
            self.newlines()
            operators.append(operator)
            pipelines.append(self._pipeline())
        return Chain(tuple(pipelines), tuple(operators))

    def _pipeline(self) -> Pipeline:
        plain = self._plain_command()
        if plain is None:
            return self._full_pipeline()
        return self._rest_of_pipeline(list(plain.commands), negated=False) if self._piped() else plain

    def _plain_command(self) -> Pipeline | None:
        self.blanks()
        found = _PLAIN.match(self.text, self.position)
        if found is None or found.group(1) in RESERVED:
            return None
        self.position = found.end()
        return _plain(found.group())

    def _piped(self) -> bool:
        self.blanks()
        return self.peek() == "|" and self.peek(2) != "||"

    def _full_pipeline(self) -> Pipeline:
        negated = timed = False
        while keyword := self.keyword("!", "time"):
            negated ^= keyword == "!"
            timed |= keyword == "time"
            while keyword == "time" and self._time_option():
                pass
        self._check_timed(timed=timed)
        if timed and (self.peek() in ("", "\n") or self.operator() in _ENDS):
            return Pipeline((Compound("empty", "time"),), negated)
        return self._rest_of_pipeline([self.command()], negated=negated)

    def _rest_of_pipeline(self, commands: list[Command], *, negated: bool) -> Pipeline:
        while self.take("|", "|&"):
            self.newlines()
            plain = self._plain_command()
            while plain is None and self.keyword("time"):
                while self._time_option():
                    pass
                self._check_timed(timed=True)
            commands.append(plain.commands[0] if plain else self.command())
        return Pipeline(tuple(commands), negated)

    def _check_timed(self, *, timed: bool) -> None:
        """bash 5.2 knows no keyword after ``time`` inside a substitution, and then ends it elsewhere."""
        self.blanks()
        if timed and self.substitutions and self.next_keyword() in OPENERS:
            raise self.failure("a compound command is timed inside a substitution")

    def _time_option(self) -> bool:
        self.blanks()
        found = re.compile(r"(?:-p|--)(?=[ \t\n;&|<>()]|\Z)").match(self.text, self.position)
        self.position = found.end() if found else self.position
        return found is not None

    # -------------------------------------------------------------------------------- commands

    def command(self) -> Command:
        self.blanks()
        start = self.position
        if self.peek(2) == "((":
            return self._closed(Compound("arithmetic", "", bodies=self.arithmetic()), start)
        keyword = self.next_keyword()
        if self.operator() != "(" and keyword not in OPENERS:
            if keyword:
                raise self.failure(f"{keyword!r} is not expected")
            return self.simple(start)
        self.deeper()
        compound = self.compound(self.take("(") or self.keyword(keyword))
        self.depth -= 1
        return self._closed(compound, start)

    def _closed(self, compound: Compound, start: int) -> Compound:
        """Read the redirections after a compound command, and check that nothing else follows."""
        redirects = tuple(self.redirects())
        raw = self.text[start : self.position].rstrip(BLANK)
        self.blanks()
        if self.peek() not in ("", "\n") and self.operator() not in _ENDS and self.next_keyword() not in CLOSERS:
            raise self.failure("a compound command is followed by a word")
        return Compound(compound.kind, raw, compound.words, compound.bodies, redirects, compound.name)

"""The grammar: lists, pipelines and compound commands. Simple commands are read in :mod:`.simple_command`.

A text that the parser may read differently from bash raises :class:`NotParsed`. The package's docstring says why the parser
is ours.
"""

from __future__ import annotations

import re
from functools import lru_cache

from .lexer import BLANK
from .simple_command import SimpleReader
from .syntax import Chain, Command, Compound, Kind, NotParsed, Piece, Pipeline, PlainText, Script, Simple, Word

CLOSERS = frozenset({"then", "do", "done", "fi", "elif", "else", "esac", "}"})
OPENERS = frozenset({"{", "if", "while", "until", "for", "select", "case", "function", "[[", "coproc"})
RESERVED = CLOSERS | OPENERS | {"!", "time", "in", "]]"}
_KEYWORD = re.compile(r"(?:!|\{|\}|\[\[|\]\]|[a-z]+)(?=[ \t\n;&|<>()]|\Z)")
_UNARY = re.compile(r"-[a-hknoprstuvwxzGLNORS]")
_BINARY = re.compile(r"==?|!=|=~|-(?:eq|ne|lt|le|gt|ge|nt|ot|ef)")
_CASE_ENDS = (";;", ";&", ";;&")
_ENDS = frozenset({";", "&", "&&", "||", "|", "|&", ")", ";;", ";&", ";;&"})


_PLAIN = re.compile(r"([\w./@%+,-]+)(?: [\w./@%+,:=-]+)*(?= *(?:[;\n|]|&&|&(?![>&])|\Z))", re.ASCII)
"""A command of plain words, as most are; it takes a shortcut through the parser."""


@lru_cache(maxsize=1024)
def _plain(text: str) -> Pipeline:
    words = tuple(Word(word, (PlainText(word, quoted=False),)) for word in text.split(" "))
    return Pipeline((Simple(text, (), words, ()),))


def parse(text: str) -> tuple[Script, list[tuple[int, int]]]:
    """Return the script in `text`, and the spans of its quotes.

    :raises NotParsed: `text` is not shell, or bash may read it differently.
    """
    parser = Parser(text)
    script = parser.script()
    parser.end_of_text()
    unsure = "a here-document is not closed" if parser.unclosed else ""
    return script._replace(unsure=unsure), parser.quoted_spans


class Parser(SimpleReader):
    """Parses one text. A back-quoted command in it gets a parser of its own."""

    def nested(self, text: str) -> Script:
        """Read the text of a back-quoted command."""
        inner = Parser(text, self)
        inner.deeper()
        script = inner.script()
        inner.end_of_text()
        self.unclosed |= inner.unclosed
        return script

    def end_of_text(self) -> None:
        """Check that the whole text was read.

        :raises NotParsed: it was not.
        """
        for redirect, _ in self.heredocs:
            redirect.body.append(Word("", ()))
            self.unclosed = True
        if self.position < len(self.text):
            raise NotParsed(f"{self.peek()!r} is not expected")

    def script_until(self, closing: str) -> Script:
        """Read commands up to the closing parenthesis, which is consumed."""
        self.deeper()
        self.substitutions += 1
        waiting, self.heredocs = self.heredocs, []
        start = self.position
        script = self.script(closing)
        self.substitutions -= 1
        if self.heredocs or (waiting and "\n" in self.text[start : self.position]):
            raise NotParsed("a here-document crosses the end of a substitution")
        self.heredocs = waiting
        self.expect(closing)
        self.depth -= 1
        return script

    # -------------------------------------------------------------------------------- lists

    def script(self, *closing: str) -> Script:
        """Read a list up to one of the operators in `closing`, or a keyword in :data:`CLOSERS`, which is not consumed."""
        chains: list[Chain] = []
        self.newlines()
        read = self.heredocs_read
        while self.position < len(self.text) and not self._closes(closing):
            if self.substitutions and self.heredocs_read != read:
                # bash 5.2 prints a substitution and parses it again, and so loses a separator after a here-document.
                raise NotParsed("commands follow a here-document inside a substitution")
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
        return self._rest_of_pipeline(list(plain.commands), negated=False) if self._pipe_follows() else plain

    def _plain_command(self) -> Pipeline | None:
        self.blanks()
        found = _PLAIN.match(self.text, self.position)
        if found is None or found.group(1) in RESERVED:
            return None
        self.position = found.end()
        return _plain(found.group())

    def _pipe_follows(self) -> bool:
        self.blanks()
        return self.peek() == "|" and self.peek(2) != "||"

    def _full_pipeline(self) -> Pipeline:
        negated = timed = False
        while keyword := self.keyword("!", "time"):
            negated ^= keyword == "!"
            timed |= keyword == "time"
            while keyword == "time" and self._time_option():
                pass
        self._check_time(timed=timed)
        if timed and (self.peek() in ("", "\n") or self.operator() == ";"):
            return Pipeline((Compound("empty", "time"),), negated)
        return self._rest_of_pipeline([self.command()], negated=negated)

    def _rest_of_pipeline(self, commands: list[Command], *, negated: bool) -> Pipeline:
        while self.take("|", "|&"):
            self.newlines()
            plain = self._plain_command()
            while plain is None and self.keyword("time"):
                while self._time_option():
                    pass
                self._check_time(timed=True)
            commands.append(plain.commands[0] if plain else self.command())
        return Pipeline(tuple(commands), negated)

    def _check_time(self, *, timed: bool) -> None:
        """Refuse a keyword after ``time`` inside a substitution: bash 5.2 does not know it there and ends elsewhere."""
        self.blanks()
        if timed and self.substitutions and self.next_keyword() in OPENERS:
            raise NotParsed("a compound command is timed inside a substitution")

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
            return self._close(Compound("arithmetic", "", bodies=self.arithmetic()), start)
        keyword = self.next_keyword()
        if self.operator() != "(" and keyword not in OPENERS:
            if keyword:
                raise NotParsed(f"{keyword!r} is not expected")
            return self.simple(start)
        self.deeper()
        compound = self.compound(self.take("(") or self.keyword(keyword))
        self.depth -= 1
        return self._close(compound, start)

    def _close(self, compound: Compound, start: int) -> Compound:
        """Read the redirections after a compound command, and check that nothing else follows."""
        redirects = tuple(self.redirects())
        raw = self.text[start : self.position].rstrip(BLANK)
        self.blanks()
        if self.peek() not in ("", "\n") and self.operator() not in _ENDS and self.next_keyword() not in CLOSERS:
            raise NotParsed("a compound command is followed by a word")
        return Compound(compound.kind, raw, compound.words, compound.bodies, redirects, compound.name)

    # -------------------------------------------------------------------------------- tokens

    def expect(self, what: str) -> None:
        found = self.take(what) if what == ")" else self.keyword(what)
        if not found:
            raise NotParsed(f"{what!r} is missing")

    def next_keyword(self) -> str:
        """Return the reserved word that comes next, without consuming it."""
        self.blanks()
        found = _KEYWORD.match(self.text, self.position)
        return found.group() if found and found.group() in RESERVED else ""

    def keyword(self, *names: str) -> str:
        """Consume and return one of the reserved words `names` if it comes next; else return an empty text."""
        found = self.next_keyword()
        if found in names:
            self.position += len(found)
            return found
        return ""

    def _next_word(self, problem: str) -> Word:
        """Read a word that must come next; `problem` says that there is none."""
        self.blanks()
        word = self.word()
        if word is None:
            raise NotParsed(problem)
        return word

    def _body(self, *closing: str) -> Script:
        """Read a list that must not be empty."""
        script = self.script(*closing)
        if not script.chains:
            raise NotParsed("a command is missing")
        return script

    def compound(self, opener: str) -> Compound:
        match opener:
            case "(":
                return Compound("subshell", "", bodies=(self._body_until(")", ")"),))
            case "{":
                return Compound("group", "", bodies=(self._body_until("}"),))
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

    def _body_until(self, end: str, *closing: str) -> Script:
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
        raise NotParsed("'fi' is missing")

    def _then(self) -> Script:
        self.expect("then")
        return self._body()

    def _do(self) -> Script:
        self.newlines()
        self.expect("do")
        return self._body_until("done")

    def _for(self, kind: Kind) -> Compound:
        self.blanks()
        if self.peek(2) == "((":
            scripts = self.arithmetic()
            self.take(";")
            return Compound("for", "", bodies=(*scripts, self._loop_body()), name="((")
        name = self.word()
        if name is None or name.bare is None:
            raise NotParsed("the loop has no variable")
        self.newlines()
        words = self.words() if self.keyword("in") else []
        self.take(";")
        return Compound(kind, "", tuple(words), (self._loop_body(),), name=name.bare)

    def _loop_body(self) -> Script:
        self.newlines()
        return self._body_until("}") if self.keyword("{") else self._do()

    def _case(self) -> Compound:
        words, bodies = [self._next_word("'case' has no subject")], list[Script]()
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
            patterns.append(self._next_word("a pattern is missing"))
        self.expect(")")
        return patterns

    def _test(self) -> Compound:
        words = self._condition()
        self.newlines()
        if self.keyword("]]") != "]]":
            raise NotParsed("']]' is missing")
        return Compound("test", "", tuple(words))

    def _condition(self) -> list[Word]:
        """Read terms joined by ``&&`` and ``||``."""
        words = self._term()
        self.newlines()
        while self.take("&&", "||"):
            words += self._term()
            self.newlines()
        return words

    def _term(self) -> list[Word]:
        self.newlines()
        if self.take("("):
            self.deeper()
            words = self._condition()
            self.newlines()
            self.expect(")")
            self.depth -= 1
            return words
        left = self._operand()
        if left.bare == "!":
            return [left, *self._term()]
        if _UNARY.fullmatch(left.bare or ""):
            return [left, self._operand()]
        self.blanks()  # no newline: bash wants an operator behind a word
        if self.peek(2) not in ("<(", ">(") and self.take("<", ">"):
            return [left, self._operand()]
        if self.next_keyword() == "]]" or self.operator():
            return [left]
        comparison = self._operand()
        if not _BINARY.fullmatch(comparison.bare or ""):
            raise NotParsed(f"{comparison.raw!r} is not expected")
        before = {"=~": None, "==": "?*+@!", "=": "?*+@!", "!=": "?*+@!"}.get(comparison.bare or "", "")
        return [left, comparison, self._operand(before)]

    def _operand(self, before: str | None = "") -> Word:
        self.blanks()
        start = self.position
        stops = " \t\n;&<>()" + ("" if before is None else "|")  # only a regular expression may hold a plain bar
        pieces = self._operand_pieces(before, stops) if self.next_keyword() != "]]" else []
        if not pieces:
            raise NotParsed("an operand is missing in [[ ]]")
        return Word(self.text[start : self.position], tuple(pieces))

    def _operand_pieces(self, before: str | None, stops: str) -> list[Piece]:
        """Read an operand. Parentheses of a pattern in it are balanced, and hold blanks and operators.

        :param before: the characters after which a parenthesis belongs to the operand; ``None``: any, as in a regular
            expression.
        """
        pieces = self.pieces(stops)
        while self.peek() == "(" and (before is None or self.text[self.position - 1] in before):
            self.position += 1
            self.deeper()
            inner = self._operand_pieces(None, "()")
            if self.peek() != ")":
                raise NotParsed("a parenthesis in a pattern is not closed")
            self.position += 1
            self.depth -= 1
            pieces += [PlainText("(", quoted=False), *inner, PlainText(")", quoted=False), *self.pieces(stops)]
        return pieces

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
        name = self._next_word("a function has no name")
        if self.take("("):
            self.expect(")")
        return self.function_body(name)

    def function_body(self, name: Word) -> Compound:
        self.newlines()
        if not self._opens():
            raise NotParsed("a function has no body")
        body = Script((Chain((Pipeline((self.command(),)),)),))
        return Compound("function", "", bodies=(body,), name=name.raw)

"""Words: quotes, expansions and their contents, read as bash reads them.

Where the reading of bash depends on details that are easy to get wrong, this raises :class:`NotParsed`, and the command is
asked about.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable

from .syntax import Expansion, NotParsed, Piece, PlainText, Script, Word

MAX_DEPTH = 40
"""How deeply substitutions and compound commands may be nested. bash has no such limit, but people do not write more."""


class Cursor:
    """A position in a text. The grammar is in :class:`~.parser.Parser`."""

    def __init__(self, text: str, outer: Cursor | None = None) -> None:
        self.text = text
        self.position = 0
        self.depth = outer.depth if outer else 0
        self.quoted_spans: list[tuple[int, int]] = []

    @abstractmethod
    def script_until(self, closing: str) -> Script:
        """Read commands up to `closing`, which is consumed. The parser implements this."""

    @abstractmethod
    def nested(self, text: str) -> Script:
        """Read `text`, a part of this text, as a script of its own. The parser implements this."""

    def deeper(self) -> None:
        """Count one more level of nesting.

        :raises NotParsed: there are more than :data:`MAX_DEPTH`.
        """
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotParsed("it is nested too deeply")

    def peek(self, length: int = 1) -> str:
        return self.text[self.position : self.position + length]

    def skip_continuations(self) -> bool:
        """Skip backslash-newline pairs, which bash removes first; return whether there were any."""
        start = self.position
        while self.text.startswith("\\\n", self.position):
            self.position += 2
        return self.position > start


_SIMPLE = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_NUMBERS = (
    (re.compile(r"[0-7]{1,3}"), 8, 0),
    (re.compile(r"x([0-9A-Fa-f]{1,2})"), 16, 1),
    (re.compile(r"u([0-9A-Fa-f]{1,4})"), 16, 1),
    (re.compile(r"U([0-9A-Fa-f]{1,8})"), 16, 1),
)


def decode_ansi_c(text: str, position: int) -> tuple[str, int]:
    """Return the decoded text between `position` and the closing quote, and the position after that quote.

    :raises NotParsed: the quote is not closed, or an escape gives a byte that is not a character by itself.
    """
    decoded: list[str] = []
    while position < len(text):
        char = text[position]
        if char == "'":
            return "".join(decoded), position + 1
        if char != "\\":
            decoded.append(char)
            position += 1
            continue
        piece, position = _escape(text, position + 1)
        decoded.append(piece)
    raise NotParsed("a $' quote is not closed")


def _escape(text: str, position: int) -> tuple[str, int]:
    following = text[position : position + 1]
    if following in _SIMPLE and following:
        return _SIMPLE[following], position + 1
    for pattern, base, group in _NUMBERS:
        number = pattern.match(text, position)
        if number:
            value = int(number.group(group), base)
            wide = following in ("u", "U")
            if value == 0 or value > (0x10FFFF if wide else 0x7F) or 0xD800 <= value <= 0xDFFF:
                raise NotParsed("an escape in $'…' gives a byte that cannot be shown")
            return chr(value), number.end()
    if following == "c" or following == "":
        raise NotParsed("an escape in $'…' gives a control character")
    return f"\\{following}", position + 1


BLANK = " \t"
META = " \t\n;&|<>()"
_PLAIN = re.compile(r"[^ \t\n;&|<>()$`'\"\\]+")
_IN_DOUBLE = re.compile(r"[^\"\\$`]+")
_IN_HEREDOC = re.compile(r"[^\\$`]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")


class Lexer(Cursor):
    """A cursor that reads words. The grammar is in :class:`~.parser.Parser`."""

    # -------------------------------------------------------------------------------- words

    def word(self) -> Word | None:
        """Read a word; return ``None`` if none begins here."""
        start = self.position
        pieces = self.pieces()
        if self.position == start or not pieces:
            return None
        return Word(self.text[start : self.position], tuple(pieces))

    def pieces(self, stops: str = META) -> list[Piece]:
        """Read up to one of `stops` that is neither quoted nor part of an expansion."""
        pieces: list[Piece] = []
        text, end = self.text, len(self.text)
        while self.position < end:
            char = text[self.position]
            if char in "<>" and self.peek(2)[1:] == "(":
                pieces.append(self._process())
            elif char in stops:
                break
            elif char in "'\"`$\\":
                pieces += self._special(char)
            elif char in META:
                self._append(pieces, char, quoted=False)
                self.position += 1
            else:
                plain = _PLAIN.match(text, self.position)
                assert plain is not None
                self._append(pieces, plain.group(), quoted=False)
                self.position = plain.end()
        return pieces

    def _append(self, pieces: list[Piece], text: str, *, quoted: bool) -> None:
        last = pieces[-1] if pieces else None
        if isinstance(last, PlainText) and last.quoted == quoted:
            pieces[-1] = PlainText(last.text + text, quoted)
        else:
            pieces.append(PlainText(text, quoted))

    def _special(self, char: str) -> list[Piece]:
        start = self.position
        if char == "\\":
            return self._escape()
        if char == "`":
            return [self._backticks(in_double=False)]
        if char == "$":
            return [self.dollar(in_double=False)]
        self.position += 1
        if char == "'":
            pieces: list[Piece] = [PlainText(self._single(), quoted=True)]
        else:
            pieces = self._double()
        self.quoted_spans.append((start, self.position))
        return pieces

    def _escape(self) -> list[Piece]:
        following = self.peek(2)[1:]
        if not following:
            raise NotParsed("it ends with a backslash")
        self.position += 2
        return [] if following == "\n" else [PlainText(following, quoted=True)]

    def _single(self) -> str:
        """Read up to the closing single quote."""
        start, closed = self.position, self.text.find("'", self.position)
        if closed < 0:
            raise NotParsed("a single quote is not closed")
        self.position = closed + 1
        return self.text[start:closed]

    def _double(self) -> list[Piece]:
        """Read up to the closing double quote."""
        pieces = self._expanding(_IN_DOUBLE, '"')
        if self.peek() != '"':
            raise NotParsed("a double quote is not closed")
        self.position += 1
        return pieces or [PlainText("", quoted=True)]

    def _expanding(self, plain: re.Pattern[str], stop: str) -> list[Piece]:
        """Read text in which only ``$``, back quotes and some backslashes are special."""
        pieces: list[Piece] = []
        while self.position < len(self.text):
            char = self.peek()
            run = plain.match(self.text, self.position)
            if run:
                self._append(pieces, run.group(), quoted=True)
                self.position = run.end()
            elif char == stop:
                break
            elif char == "\\":
                following = self.peek(2)[1:]
                self.position += 2 if following else 1
                kept = "" if following == "\n" else following if following in f"$`\\{stop or chr(0)}" else f"\\{following}"
                self._append(pieces, kept, quoted=True)
            elif char == "`":
                pieces.append(self._backticks(in_double=True))
            else:
                pieces.append(self.dollar(in_double=True))
        return pieces

    def heredoc_pieces(self) -> list[Piece]:
        """Read the whole text as the body of a here-document with an unquoted delimiter."""
        return self._expanding(_IN_HEREDOC, "")

    # -------------------------------------------------------------------------------- expansions

    def dollar(self, *, in_double: bool) -> Piece:
        """Read the expansion, the quote or the plain ``$`` that begins here."""
        start = self.position
        self.position += 1
        if self.skip_continuations():
            raise NotParsed("a line is continued inside an expansion")
        char = self.peek()
        if char in ("'", '"') and not in_double:
            return self._dollar_quote(char)
        if char and char in "({[":
            self.deeper()
            scripts = self._enclosed_scripts(char, in_double=in_double)
            self.depth -= 1
            return Expansion(self.text[start : self.position], scripts)
        name = _NAME.match(self.text, self.position)
        if name is None:
            return PlainText("$", quoted=True)
        self.position = name.end()
        return Expansion(self.text[start : self.position])

    def _dollar_quote(self, char: str) -> Piece:
        start = self.position
        self.position += 1
        if char == "'":
            text, self.position = decode_ansi_c(self.text, self.position)
            piece: Piece = PlainText(text, quoted=True)
        else:
            pieces = self._double()
            if not all(isinstance(inner, PlainText) for inner in pieces):
                scripts = (script for inner in pieces for script in inner.scripts)
                piece = Expansion(self.text[start - 1 : self.position], tuple(scripts))
            else:
                piece = PlainText("".join(inner.text for inner in pieces if isinstance(inner, PlainText)), quoted=True)
        self.quoted_spans.append((start, self.position))
        return piece

    def _enclosed_scripts(self, char: str, *, in_double: bool) -> tuple[Script, ...]:
        """Read ``{…}``, ``[…]``, ``(…)`` or ``((…))`` after a ``$``."""
        if char == "{":
            return self._braces(in_double=in_double)
        if char == "[":
            self.position += 1
            return self._balanced("[", "]")
        if self.peek(2) == "((":
            return self.arithmetic()
        self.position += 1
        return (self.script_until(")"),)

    def arithmetic(self) -> tuple[Script, ...]:
        """Read ``((…))`` from its first parenthesis. A subshell in a subshell has to be written ``( (``."""
        self.position += 2
        scripts = self._balanced("(", ")")
        if self.peek() != ")":
            raise NotParsed("'((' begins no arithmetic")
        self.position += 1
        return scripts

    def _balanced(self, opening: str, closing: str) -> tuple[Script, ...]:
        """Read arithmetic up to its `closing`, which is consumed; return the scripts inside."""
        scripts: list[Script] = []
        level = 0
        while self.position < len(self.text):
            char = self.peek()
            if char == "$":
                scripts += self.dollar(in_double=True).scripts
                continue
            if char == "`":
                scripts += self._backticks(in_double=True).scripts
                continue
            if char in "'\"\\":
                raise NotParsed("there are quotes inside arithmetic")
            self.position += 1
            if char == opening:
                level += 1
            elif char == closing:
                level -= 1
                if level < 0:
                    return tuple(scripts)
        raise NotParsed("arithmetic is not closed")

    def _braces(self, *, in_double: bool) -> tuple[Script, ...]:
        """Read ``${…}`` from its brace; return the scripts inside."""
        self.position += 1
        if self.peek() and self.peek() in " \t\n|(":
            raise NotParsed("a command stands inside ${ }")
        scripts: list[Script] = []
        while self.position < len(self.text):
            char = self.peek()
            if char == "}":
                self.position += 1
                return tuple(scripts)
            scripts += self._inside_braces(char, in_double=in_double)
        raise NotParsed("an expansion is not closed")

    def _inside_braces(self, char: str, *, in_double: bool) -> Iterable[Script]:
        if char == "$":
            return self.dollar(in_double=in_double).scripts
        if char == "`":
            return self._backticks(in_double=in_double).scripts
        if char in "<>" and self.peek(2)[1:] == "(" and not in_double:
            return self._process().scripts
        if char == "\\":
            self.position += 2
            return ()
        self.position += 1
        if char == '"':
            return (script for piece in self._double() for script in piece.scripts)
        if char == "'" and in_double:
            raise NotParsed("a single quote stands inside an expansion inside double quotes")
        if char == "'" and re.search(r"\$\(|`", self._single()):
            raise NotParsed("a command is quoted inside an expansion, which may run it all the same")
        return ()

    def _process(self) -> Expansion:
        """Read ``<(…)`` or ``>(…)``."""
        start = self.position
        self.position += 2
        script = self.script_until(")")
        return Expansion(self.text[start : self.position], (script,))

    def _backticks(self, *, in_double: bool) -> Expansion:
        """Read a back-quoted command: bash removes one level of backslashes, then parses the rest."""
        start = self.position
        removed = '$`\\"' if in_double else "$`\\"
        inner: list[str] = []
        position = start + 1
        while position < len(self.text):
            char = self.text[position]
            if char == "`":
                self.position = position + 1
                return Expansion(self.text[start : self.position], (self.nested("".join(inner)),))
            if char == "\\" and self.text[position + 1 : position + 2] in tuple(removed):
                position += 1
                char = self.text[position]
            inner.append(char)
            position += 1
        raise NotParsed("a back quote is not closed")

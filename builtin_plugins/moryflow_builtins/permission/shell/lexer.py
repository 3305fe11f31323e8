"""Read the small part of the shell that people and models write; everything else is :class:`NotRead`.

Read are: simple commands of words, joined by ``&& || ; | &`` and line ends; groups, subshells, ``$(…)``; ``if``, ``while``,
``until``, ``for``; redirections; here-documents that run nothing. The commands come out as a flat list, in the order of the
text: which of them will run does not matter, because all are judged.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# How deeply `$(…)` may be nested.
MAX_DEPTH = 30

# How many words a command may have; braces make many of few characters.
MAX_WORDS = 20_000

RUN_TIME = "known only when it runs"


class NotRead(Exception):
    """The text holds something that is not in the small language; the message says what."""


class Word(NamedTuple):
    """One word of a command.

    :param text: without quotes; an expansion stands in it as it was written.
    :param why: why its value is unknown before it runs; empty if the text is the value.
    :param bare: nothing in it is quoted.
    :param tilde: it begins with a ``~`` that the shell expands.
    """

    text: str
    why: str = ""
    bare: bool = True
    tilde: bool = False


class Redirect(NamedTuple):
    """A redirection; `body` is the text of a here-document or a here-string."""

    operator: str
    word: Word
    body: str = ""


class SimpleCommand(NamedTuple):
    """A simple command.

    :param assigned: the assignments in front of it.
    :param piped: its input is another command's output.
    :param after: the operator behind it.
    :param surely: it is run in this shell whatever happens: in no branch, loop, subshell or pipeline.
    :param loop: it is in a loop, so it may run again after the commands behind it.
    :param grouped: its redirections are those of a group or a subshell.
    :param scope: the places in the text at which the subshells around it begin, the outermost first.
    """

    words: tuple[Word, ...]
    assigned: tuple[Word, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    piped: bool = False
    after: str = ""
    surely: bool = False
    loop: bool = False
    scope: tuple[int, ...] = ()
    grouped: bool = False


def read(text: str) -> list[SimpleCommand]:
    """Return the commands of `text`, those in ``$(…)`` before the command that they are in.

    :raises NotRead: the text holds anything else, or bash would refuse it.
    """
    reader = _Reader(text, 0, ())
    reader.commands("")
    return reader.found


_META = " \t\n;&|<>()"
_NOT_READ = frozenset(["case", "esac", "function", "select", "coproc"])
# Keywords → those that have to be open before them.
_CLOSES = {
    "then": ("if", "elif"), "elif": ("then",), "else": ("then",), "fi": ("then", "else"),
    "do": ("while", "until", "for"), "done": ("do",), "}": ("{",),
}  # fmt: skip
_KEYWORDS = frozenset(["if", "while", "until", "!", "{", "time", *_CLOSES])
_ENDS = frozenset(["fi", "done", "}"])

_PLAIN = re.compile(r"[^ \t\n;&|<>()$`'\"\\*?\[{~#]+")
_IN_DOUBLE = re.compile(r'[^"\\`$]+')
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
_PARAMETER = re.compile(r"\$\{#?[A-Za-z_]\w*(?:(?::?[-=+?]|%%?|##?|//?|:)[^$`'\"\\{}()<>]*)?\}")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_ELEMENT = re.compile(r"[A-Za-z_]\w*\[[^]]*\]\+?=", re.ASCII)
_REDIRECTION = re.compile(r"(?:\d{1,4})?(?=[<>])|(?=&>)")
_OPERATOR = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>&|>>|>\||<|>")
_JOINT = re.compile(r";;|;&|&&|\|\||\|&|[;&|]")
_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|[0-7]{3}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[nt\\'\"rabefvE?])"
_ANSI = re.compile(rf"\$'((?:[^'\\]|{_ESCAPE})*)'")
_ANSI_ESCAPE = re.compile(_ESCAPE)
_LETTERS = dict(zip("ntrabefvE", "\n\t\r\a\b\x1b\f\v\x1b", strict=True))
_BRACES = re.compile(r"\{([^{}\s]*,[^{}\s]*)\}")
_SEQUENCE = re.compile(r"\{(-?\d{1,3})\.\.(-?\d{1,3})\}")
_TILDE_INSIDE = re.compile(r"\w+\+?=~|.*[:=]~")


def _decode(found: re.Match[str]) -> str:
    body = found.group()[1:]
    if body[0] not in "01234567xuU":
        return _LETTERS.get(body, body)
    code = int(body, 8) if body[0].isdigit() else int(body[1:], 16)
    if not 0 < code < 0x110000 or 0xD800 <= code < 0xE000:
        raise NotRead(f"{found.group()} is not a character")
    return chr(code)


class _Reader:
    """Reads `text` from `at`, inside the subshells `scope`."""

    def __init__(self, text: str, at: int, scope: tuple[int, ...]) -> None:
        self.text = text
        self.at = at
        self.scope = scope
        self.found: list[SimpleCommand] = []
        self._pending: list[tuple[list[Redirect], int, str]] = []  # here-documents whose bodies begin on the next line
        self._raw = ""
        self._outer = scope
        self._words: list[Word] = []
        self._assigned: list[Word] = []
        self._redirects: list[Redirect] = []
        self._open: list[str] = []  # keywords and parentheses that are not closed yet
        self._before = ""  # the operator before the command
        self._needs_command = self._closed = False

    def _peek(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]

    def commands(self, stop: str) -> None:
        """Read commands until `stop`, a closing parenthesis, or the end of the text."""
        if len(self._outer) > MAX_DEPTH:
            raise NotRead("it is nested too deeply")
        while True:
            while self._peek() in (" ", "\t") or self._peek(2) == "\\\n":
                self.at += 1 if self._peek() != "\\" else 2
            char = self._peek()
            if not char:
                if stop or self._open or self._pending:
                    raise NotRead("something is not closed")
                return self._end("")
            if char == "\n":
                self.at += 1
                self._end("\n")
                self._bodies()
            elif char == "#":
                cut = self.text.find("\n", self.at)
                self.at = len(self.text) if cut < 0 else cut
            elif self._peek(2) in ("<(", ">("):
                raise NotRead("a process substitution")
            elif found := _REDIRECTION.match(self.text, self.at):
                self.at = found.end()
                self._redirect(self._redirects)
            elif char == ")":
                self.at += 1
                if self._open and self._open[-1] == "(":
                    self._end("")
                    self._open.pop()
                    self.scope = self.scope[:-1]
                    self._closed = True
                elif stop == ")" and not self._open and not self._pending:
                    return self._end("")
                else:
                    raise NotRead("a parenthesis closes nothing")
            elif char == "(":
                if self._words or self._assigned or self._redirects or self._closed or self._peek(2) == "((":
                    raise NotRead("a parenthesis stands inside a command")
                self._open.append("(")
                self.scope = (*self.scope, self.at)
                self._before, self._needs_command = "", True
                self.at += 1
            elif char in ";&|":
                after = _JOINT.match(self.text, self.at)[0]  # pyright: ignore[reportOptionalSubscript]
                if after in (";;", ";&"):
                    raise NotRead("a part of case")
                self.at += len(after)
                self._end(after)
            else:
                for word in self._word():
                    self._take(word)

    def _take(self, word: Word) -> None:
        """Take a word: a keyword, an assignment, or a word of the command."""
        if not self._words and not self._assigned and word.bare and not word.why:
            if word.text in _NOT_READ:
                raise NotRead(f"{word.text} is not read")
            if word.text in _KEYWORDS:
                self._keyword(word.text)
                return
            if word.text == "for":
                self._open.append("for")
        if self._closed:
            raise NotRead(f"{word.text[:40]!r} stands behind a closed group")
        if len(self._words) >= MAX_WORDS:
            raise NotRead("it has too many words")
        if not self._words and _ELEMENT.match(self._raw):
            raise NotRead("an assignment to an element")
        self._needs_command = False
        is_assignment = not self._words and _ASSIGNMENT.match(word.text) and _ASSIGNMENT.match(self._raw)
        (self._assigned if is_assignment else self._words).append(word)

    def _end(self, operator: str) -> None:
        """End the command at an operator, or at the end of the text."""
        empty = not (self._words or self._assigned or self._redirects)
        if not empty:
            loop = any(keyword in ("do", "while", "until", "for") for keyword in self._open)
            begins = self._before in ("", ";", "\n") and operator not in ("|", "|&", "&")
            surely = begins and not self._open and not self._outer
            parts = (tuple(self._words), tuple(self._assigned), tuple(self._redirects))
            piped = self._before in ("|", "|&")
            self.found.append(SimpleCommand(*parts, piped, operator, surely, loop, self.scope, self._closed))
        elif operator not in ("", "\n") and not self._closed:
            raise NotRead("an operator stands without a command")
        elif operator == "" and self._needs_command:
            raise NotRead("a command is missing at the end")
        blank = operator == "\n" and empty and not self._closed
        self._before = self._before if blank and self._before else operator
        self._needs_command = (self._needs_command and blank) or operator not in ("", "\n", ";", "&")
        self._words, self._assigned, self._redirects, self._closed = [], [], [], False

    def _keyword(self, text: str) -> None:
        if text in _CLOSES:
            if not self._open or self._open[-1] not in _CLOSES[text]:
                raise NotRead(f"{text} stands alone")
            self._open.pop()
        elif text == "time" and (option := re.compile(r"[ \t]+-p(?=\s)").match(self.text, self.at)):
            self.at = option.end()
        if text not in _ENDS and text not in ("!", "time"):
            self._open.append(text)
        self._closed = text in _ENDS
        self._needs_command = not self._closed
        self._before = self._before if text in ("!", "time") else ""

    def _word(self) -> list[Word]:
        """Read one word; braces may make several of it."""
        start, why, bare, tilde, marks = self.at, "", True, False, False
        parts: list[tuple[bool, str]] = []  # quoted, text
        while (char := self._peek()) and char not in _META:
            if char == "\\":
                if self._peek(2) == "\\\n":
                    self.at += 2
                    continue
                if len(self._peek(2)) < 2:
                    raise NotRead("it ends with a backslash")
                parts.append((True, self._peek(2)[1]))
                self.at += 2
                bare = False
            elif char == "'":
                cut = self.text.find("'", self.at + 1)
                if cut < 0:
                    raise NotRead("a quote is not closed")
                parts.append((True, self.text[self.at + 1 : cut]))
                self.at = cut + 1
                bare = False
            elif char in '"$`':
                ansi = _ANSI.match(self.text, self.at) if char == "$" else None
                if ansi:
                    text, unknown = _ANSI_ESCAPE.sub(_decode, ansi[1]), ""
                    self.at = ansi.end()
                else:
                    text, unknown = self._double() if char == '"' else self._dollar()
                parts.append((True, text))
                why = why or unknown
                bare = False
            elif char == "~" and self.at == start:
                following = self.text[self.at + 1 : self.at + 2]
                why = "the home folder of another user" if following and following not in f"{_META}/" else ""
                tilde = True
                parts.append((True, "~"))
                self.at += 1
            elif plain := _PLAIN.match(self.text, self.at):
                parts.append((False, plain[0]))
                self.at = plain.end()
            else:
                marks = marks or char in "*?["
                parts.append((False, char))
                self.at += 1
        self._raw = self.text[start : self.at]
        if self._peek() in ("<", ">") and re.fullmatch(r"\{\w+\}", self._raw):
            raise NotRead("a redirection sets a variable")
        text = "".join(part for _, part in parts)
        if not why and any("{" in part for quoted, part in parts if not quoted) and text not in ("{", "}", "{}"):
            return _braces(parts, text, tilde)
        closed_class = "*" in text or "?" in text or "]" in text
        if not why and marks and text not in ("[", "[[") and closed_class:
            why = "a pattern that matches files"
        if not why and "~" in self._raw and _ASSIGNMENT.match(self._raw) and _TILDE_INSIDE.match(self._raw):
            why = "a ~ in it is expanded"
        return [Word(text, why, bare, tilde)]

    def _double(self) -> tuple[str, str]:
        """Read a double-quoted text; return it, and why its value is unknown."""
        self.at += 1
        out, why = [], ""
        while True:
            char = self._peek()
            if not char:
                raise NotRead("a quote is not closed")
            if char == '"':
                self.at += 1
                return "".join(out), why
            if char == "\\":
                following = self._peek(2)[1:]
                out.append("" if following == "\n" else following if following in ("$", "`", '"', "\\") else f"\\{following}")
                self.at += 2
            elif char in "$`":
                if self._peek(2) in ("$'", '$"'):
                    out.append("$")
                    self.at += 1
                    continue
                text, unknown = self._dollar()
                out.append(text)
                why = why or unknown
            else:
                run = _IN_DOUBLE.match(self.text, self.at)[0]  # pyright: ignore[reportOptionalSubscript]
                out.append(run)
                self.at += len(run)

    def _dollar(self) -> tuple[str, str]:
        """Read an expansion; return it as it is written, and why its value is unknown."""
        start = self.at
        if self._peek() == "`":
            raise NotRead("back quotes")
        if self._peek(3) in ("$((", "$\\\n") or self._peek(2) in ("$[", '$"', "$'"):
            raise NotRead("arithmetic, or a quote of another kind")
        if self._peek(2) == "$(":
            inner = _Reader(self.text, self.at + 2, (*self.scope, self.at))
            inner.commands(")")
            self.at = inner.at
            self.found += inner.found
            return self.text[start : self.at], RUN_TIME
        found = _PARAMETER.match(self.text, self.at) or _VARIABLE.match(self.text, self.at)
        if found:
            self.at = found.end()
            return found[0], RUN_TIME
        if self._peek(2) == "${":
            raise NotRead("an expansion with quotes or expansions in it")
        self.at += 1
        return "$", ""

    def _redirect(self, redirects: list[Redirect]) -> None:
        operator = _OPERATOR.match(self.text, self.at)[0]  # pyright: ignore[reportOptionalSubscript]
        self.at += len(operator)
        while self._peek() in (" ", "\t"):
            self.at += 1
        if not self._peek() or self._peek() in _META:
            raise NotRead("a redirection has no target")
        words = self._word()
        if len(words) != 1:
            raise NotRead("a redirection has several targets")
        if operator in ("<<", "<<-"):
            if "$" in self._raw:
                raise NotRead("a here-document ends with an expansion")
            self._pending.append((redirects, len(redirects), self._raw))
        redirects.append(Redirect(operator, words[0], words[0].text if operator == "<<<" else ""))

    def _bodies(self) -> None:
        """Read the here-documents that begin on this line, and put each body to its command."""
        for redirects, place, raw in self._pending:
            operator, word, _ = redirects[place]
            lines: list[str] = []
            while True:
                if self.at >= len(self.text):
                    raise NotRead("a here-document is not closed")
                cut = self.text.find("\n", self.at)
                line = self.text[self.at : cut if cut >= 0 else len(self.text)]
                self.at += len(line) + 1
                line = line.lstrip("\t") if operator == "<<-" else line
                if line == word.text:
                    break
                lines.append(line)
            body = "\n".join(lines)
            quoted = any(sign in raw for sign in "'\"\\")
            plain = re.sub(r"\\[\\$`]", "", body)
            if not quoted and (any(sign in plain for sign in ("`", "$(", "${", "$[", "\\\n")) or plain.endswith("\\")):
                raise NotRead("a here-document that may run commands")
            redirects[place] = Redirect(operator, Word(word.text, "" if quoted or "$" not in plain else RUN_TIME), body)
            self._put(redirects)
        self._pending = []

    def _put(self, redirects: list[Redirect]) -> None:
        """Replace the redirections of the command that was ended before its here-documents were read."""
        marks = [(one.operator, one.word.text) for one in redirects]
        for index in range(len(self.found) - 1, -1, -1):
            if [(one.operator, one.word.text) for one in self.found[index].redirects] == marks:
                self.found[index] = self.found[index]._replace(redirects=tuple(redirects))
                return


def _braces(parts: list[tuple[bool, str]], text: str, tilde: bool) -> list[Word]:
    """Return the words that one word with a brace stands for; one of unknown value if that is not plain."""
    if any(sign in part for quoted, part in parts if quoted for sign in "{},"):
        return [Word(text, "braces that are expanded", tilde=tilde)]
    if text.count("{") == 1 and (found := _SEQUENCE.search(text)):
        first, last = int(found[1]), int(found[2])
        step = 1 if first <= last else -1
        values = [str(number) for number in range(first, last + step, step)]
        return [Word(text[: found.start()] + value + text[found.end() :], "", False, tilde) for value in values]
    if text.count("{") == 1 and not set("*?[") & set(text) and (found := _BRACES.search(text)):
        return [Word(text[: found.start()] + value + text[found.end() :], "", False, tilde) for value in found[1].split(",")]
    if ("," not in text and ".." not in text) or re.fullmatch(r"[^{}]*@\{[^{},.]*\}[^{}]*", text):
        return [Word(text, "a pattern that matches files" if set("*?[") & set(text) else "", False, tilde)]
    return [Word(text, "braces that are expanded", tilde=tilde)]

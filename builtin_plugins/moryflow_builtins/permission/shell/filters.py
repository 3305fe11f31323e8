"""Enough of ``sed``, ``awk`` and ``jq`` to know whether a script runs programs, or reads or writes files by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .effects import CommandEffects, WrittenFile
from .syntax import Arg

_ADDRESS = re.compile(r"\s*(?:\d+~\d+|\d+|\$|[+~]\d+)\s*")
_ARGUMENT = re.compile(r"[ \t]*[\w.-]*[ \t]*(?=[;\n}]|\Z)", re.ASCII)
"""A label or a number. It must end at a separator: in some versions more text begins another command."""

_WITH_ARGUMENT = frozenset("btTqQlL:v")
_PLAIN = frozenset("dDgGhHnNpPxz=F")


def sed_dangers(script: str) -> tuple[str, list[str], list[str]]:
    """Return what `script` does beyond editing a stream (empty: nothing), and the files that it reads and writes."""
    reader = _Sed(script)
    try:
        reader.run()
    except _NotUnderstood:
        return "is not understood", reader.reads, reader.writes
    return reader.danger, reader.reads, reader.writes


class _NotUnderstood(Exception):
    """The script is not one this reader knows."""


class _Sed:
    def __init__(self, script: str) -> None:
        self._script = script
        self._position = 0
        self.danger = ""
        self.reads: list[str] = []
        self.writes: list[str] = []

    def run(self) -> None:
        while self._skip(" \t\n;"):
            self._addresses()
            self._skip(" \t!")
            self._command(self._next())

    def _skip(self, chars: str) -> bool:
        while self._position < len(self._script) and self._script[self._position] in chars:
            self._position += 1
        return self._position < len(self._script)

    def _next(self) -> str:
        if self._position >= len(self._script):
            raise _NotUnderstood
        self._position += 1
        return self._script[self._position - 1]

    def _line(self) -> str:
        end = self._script.find("\n", self._position)
        end = len(self._script) if end < 0 else end
        text = self._script[self._position : end]
        self._position = end
        return text

    def _addresses(self) -> None:
        for _ in range(2):
            self._skip(" \t")
            plain = _ADDRESS.match(self._script, self._position)
            if plain:
                self._position = plain.end()
            elif self._script.startswith(("/", "\\"), self._position):
                delimiter = self._next()
                self._until(self._next() if delimiter == "\\" else delimiter)
                flags = re.compile("[IM]*").match(self._script, self._position)
                self._position = flags.end() if flags else self._position
            else:
                return
            self._skip(" \t")
            if not self._script.startswith(",", self._position):
                return
            self._position += 1

    def _until(self, delimiter: str) -> None:
        """Skip a pattern or a replacement; give up on a delimiter between brackets, which versions read differently."""
        start = self._position
        if delimiter in "\n\\":
            raise _NotUnderstood
        while (char := self._next()) != delimiter:
            if char == "\\":
                self._next()
        opened = self._script[start : self._position - 1].rpartition("[")
        if opened[1] and "]" not in opened[2][1:] and not opened[0].endswith("\\"):
            raise _NotUnderstood

    def _command(self, command: str) -> None:
        if command in "}{":
            return
        if command == "e":
            self.danger = "runs programs"
            self._line()
        elif command in "rRwW":
            path = self._line().strip()
            (self.reads if command in "rR" else self.writes).append(path)
            self.danger = self.danger or f"{'reads' if command in 'rR' else 'writes'} the file {path}"
        elif command == "s":
            self._substitute()
        elif command == "y":
            delimiter = self._next()
            self._until(delimiter)
            self._until(delimiter)
        elif command in "aic":
            self._text()
        elif command in _WITH_ARGUMENT:
            argument = _ARGUMENT.match(self._script, self._position)
            if argument is None:
                raise _NotUnderstood
            self._position = argument.end()
        elif command == "#":
            self._line()
        elif command not in _PLAIN:
            raise _NotUnderstood

    def _text(self) -> None:
        """Skip the text of ``a``, ``i`` and ``c``, which continues after a line that ends with a backslash."""
        line = self._line()
        while (len(line) - len(line.rstrip("\\"))) % 2 and self._position < len(self._script):
            self._position += 1
            line = self._line()

    def _substitute(self) -> None:
        delimiter = self._next()
        self._until(delimiter)
        self._until(delimiter)
        while self._position < len(self._script):
            flag = self._script[self._position]
            if flag in "gpiIM0123456789":
                self._position += 1
            elif flag == "e":
                self._position += 1
                self.danger = "runs programs"
            elif flag == "w":
                self._position += 1
                path = self._line().strip()
                self.writes.append(path)
                self.danger = self.danger or f"writes the file {path}"
            else:
                return


_ANYWHERE = re.compile(r"\b(system|getline|extension|ARGV|ENVIRON|PROCINFO|SYMTAB|FUNCTAB)\b")
_IN_CODE = re.compile(r"@|(?<!\|)\|(?!\|)|\b(close|fflush)\b")
_OUTPUT = re.compile(r"\bprintf?\b[^;}\n]*>")
_INNERMOST = re.compile(r"\([^()]*\)")
_BEFORE_REGEX = frozenset("(,~!&|{};\n=<>?:+-*/%^$")
_WORDS_BEFORE_REGEX = frozenset({"print", "printf", "return", "exit", "in", "case", "else", "do", "and", "or"})
_STRING = re.compile(r'"(?:[^"\\\n]|\\(?:.|\n))*"')
_REGEX = re.compile(r"/(?:[^\\/\[\n]|\\.|\[\^?(?:[^\]\[/\\\n]|\\.|\[:[a-z]+:\])+\])*/")
"""A pattern that every version of awk ends at the same slash; a slash in brackets would not be."""

_GOES_ON = re.compile(r"(,|&&|\|\|)\s*\n")
_LENGTH = re.compile(r"\blength\s*\Z")
"""After ``length`` a slash begins a pattern in mawk, but divides in gawk."""

_CONDITION = re.compile(r"\b(?:if|while|for)\s*\Z")
MAX_PROGRAM = 16 * 1024
"""Longer scripts count as dangerous."""

_ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that are a blank in one version and an error in another."""


def awk_is_dangerous(program: str) -> bool:
    """Whether `program` may run programs, or read or write files by itself; true if that is not certain."""
    if len(program) > MAX_PROGRAM or _ODD.search(program) or _ANYWHERE.search(program):
        return True
    code = _code_of(program)
    if code is None:
        return True
    code = _GOES_ON.sub(r"\1 ", code)
    return bool(_IN_CODE.search(code) or _OUTPUT.search(_without_parentheses(code)))


def _without_parentheses(code: str) -> str:
    """Return `code` without the text in parentheses, in which ``>`` compares and does not write."""
    while (shorter := _INNERMOST.sub(" 0 ", code)) != code:
        code = shorter
    return code


def _code_of(program: str) -> str | None:
    """Return `program` without strings, patterns and comments; ``None`` if it is not clear where they are."""
    code: list[str] = []
    position = 0
    while position < len(program):
        char = program[position]
        if char == "#":
            end = program.find("\n", position)
            position = len(program) if end < 0 else end
        elif char == "/" and _LENGTH.search("".join(code[-12:])):
            return None
        elif char == '"' or (char == "/" and _regex_may_begin("".join(code))):
            closed = (_STRING if char == '"' else _REGEX).match(program, position)
            if closed is None:
                return None
            code.append(" 0 ")
            position = closed.end()
        elif program.startswith("\\\n", position):  # a continued line
            code.append(" ")
            position += 2
        elif char == "/" and code and "".join(code[-2:]).strip()[-2:] in ("++", "--"):
            return None
        else:
            code.append(char)
            position += 1
    return "".join(code)


def _regex_may_begin(before: str) -> bool:
    """Whether a slash after `before` begins a pattern; if not, it divides."""
    before = before.rstrip(" \t")
    if before.endswith(("++", "--")):
        return False
    if not before or before[-1] in _BEFORE_REGEX:
        return True
    if before.endswith(")"):
        return _ends_a_condition(before)
    word = re.search(r"[A-Za-z_]\w*\Z", before)
    return word is not None and word.group() in _WORDS_BEFORE_REGEX


def _ends_a_condition(code: str) -> bool:
    """Whether the parenthesis at the end of `code` closes the condition of ``if``, ``while`` or ``for``."""
    level = 0
    for position in range(len(code) - 1, -1, -1):
        level += {")": 1, "(": -1}.get(code[position], 0)
        if level == 0:
            return _CONDITION.search(code, 0, position) is not None
    return False


_JQ_STRING = re.compile(r'"(?:[^"\\]|\\[^(])*"')
_READS = re.compile(
    r"(?<![\w.])ENV\b|(?<![\w.$])env\b(?!:)|(?<![.\w])(import|include|input_filename|get_search_list|modulemeta)\b|\$\s*__prog"
)
_READS_IN_YQ = re.compile(r"(?<![.\w])(strenv|envsubst|load\w*)\b")
_PAIRS = {"--arg": False, "--argjson": False, "--slurpfile": True, "--rawfile": True, "--argfile": True}
"""Options that take a name and a value → whether the value is a file."""

_GUARDED = {
    "from-file": "takes its filter from a file",
    "library-path": "looks for modules elsewhere",
    "run-tests": "takes its filters from a file",
    "in-place": "changes files",
    "inplace": "changes files",
}
_LETTERS = {"f": "from-file", "L": "library-path", "i": "in-place"}
_WITH_FILE = frozenset({"library-path", "run-tests"})


def inspect_jq(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``jq``: its filter may read the environment, modules and other files."""
    words: list[tuple[int, bool]] = []
    from_file, in_place, data, options, index = False, False, True, True, 1
    while index < len(args):
        text = args[index].text
        if not options or not text.startswith("-") or text == "-":
            words.append((index, data))
        elif text == "--":
            options = False
        elif text in _PAIRS:
            effects.reads += args[index + 2 : index + 3] if _PAIRS[text] else ()
            index += 2
        elif text in ("--args", "--jsonargs"):
            data = False
        else:
            names = _options(text)
            from_file |= "from-file" in names
            in_place |= bool(names & {"in-place", "inplace"})
            index += _note_options(args, index, names, effects)
        index += 1
    _take_words(args, words, effects, from_file=from_file)
    effects.writes += map(WrittenFile, effects.reads if in_place else ())


def _options(text: str) -> set[str]:
    """Return the full names of the options in one word; options that do not matter are left out."""
    if not text.startswith("--"):
        return {_LETTERS[letter] for letter in text[1:] if letter in _LETTERS} if text[1] != "L" else {"library-path"}
    name = text[2:].partition("=")[0]
    return {known for known in (*_GUARDED, "indent") if known.startswith(name)}


def _note_options(args: Sequence[Arg], index: int, names: set[str], effects: CommandEffects) -> int:
    """Record the effects of options; return how many of the next words are their values."""
    text = args[index].text
    for name in names & set(_GUARDED):
        effects.guard(index, f"{args[0].text} {text} {_GUARDED[name]}")
    attached = text[2:] if text.startswith("-L") else text.partition("=")[2]
    if attached:
        effects.reads += [args[index].cut(len(text) - len(attached))] if names & set(_GUARDED) else []
        return 0
    effects.reads += args[index + 1 : index + 2] if names & _WITH_FILE else ()
    return 1 if names & {"library-path", "indent"} else 0


def _take_words(args: Sequence[Arg], words: list[tuple[int, bool]], effects: CommandEffects, *, from_file: bool) -> None:
    """Take the first word as the filter, unless the filter is in a file, and the others as files, unless they are data."""
    verbs = args[0].text.endswith("yq")  # yq has subcommands and more options with values: any word may be the filter
    for place, (index, data) in enumerate(words):
        if (place == 0 and not from_file) or verbs:
            # Remove the strings if they surely are strings: no text is interpolated, and no comment holds a quote.
            text = args[index].text
            text = text if "#" in text or "\\(" in text else _JQ_STRING.sub('""', text)
            if _READS.search(text) or (verbs and _READS_IN_YQ.search(text)):
                effects.guard(index, "the filter reads the environment or other files")
        if (place > 0 and data) or (place == 0 and from_file):
            effects.reads += [args[index]] if args[index].text != "-" else []

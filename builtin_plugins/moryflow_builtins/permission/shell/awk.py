"""Enough of ``awk`` to know whether a program does more than print what it read."""

from __future__ import annotations

import re

_ANYWHERE = re.compile(r"\b(system|getline|extension|ARGV|ENVIRON|PROCINFO|SYMTAB|FUNCTAB)\b")
_IN_CODE = re.compile(r"@|(?<!\|)\|(?!\|)|\b(close|fflush)\b")
_OUTPUT = re.compile(r"\bprintf?\b[^;}\n]*>")
_INNERMOST = re.compile(r"\([^()]*\)")
_BEFORE_REGEX = frozenset("(,~!&|{};\n=<>?:+-*/%^$")
_WORDS_BEFORE_REGEX = frozenset({"print", "printf", "return", "exit", "in", "case", "else", "do", "and", "or"})
_STRING = re.compile(r'"(?:[^"\\\n]|\\(?:.|\n))*"')
_REGEX = re.compile(r"/(?:[^\\/\[\n]|\\.|\[\^?(?:[^\]\[/\\\n]|\\.|\[:[a-z]+:\])+\])*/")
"""A pattern that every version of awk ends at the same slash; one with a slash in brackets is not."""

_GOES_ON = re.compile(r"(,|&&|\|\|)\s*\n")
_LENGTH = re.compile(r"\blength\s*\Z")
"""After it a slash begins a pattern for mawk, and divides for gawk."""

_CONDITION = re.compile(r"\b(?:if|while|for)\s*\Z")
MAX_PROGRAM = 16 * 1024
"""Longer programs are not looked into."""

_ODD = re.compile(r"[^\t\n -~\u00a0-\U0010ffff]")
"""Characters that are a blank to one version and an error to another."""


def awk_is_dangerous(program: str) -> bool:
    """Whether `program` may run, read or write something by itself, or cannot be told from one that does."""
    if len(program) > MAX_PROGRAM or _ODD.search(program) or _ANYWHERE.search(program):
        return True
    code = _code_of(program)
    if code is None:
        return True
    code = _GOES_ON.sub(r"\1 ", code)
    return bool(_IN_CODE.search(code) or _OUTPUT.search(_without_parentheses(code)))


def _without_parentheses(code: str) -> str:
    """Drop what stands in parentheses, where ``>`` compares and does not write."""
    while (shorter := _INNERMOST.sub(" 0 ", code)) != code:
        code = shorter
    return code


def _code_of(program: str) -> str | None:
    """Return `program` without strings, patterns and comments; ``None`` when it is not clear what is one."""
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
        elif program.startswith("\\\n", position):  # a line that goes on
            code.append(" ")
            position += 2
        elif char == "/" and code and "".join(code[-2:]).strip()[-2:] in ("++", "--"):
            return None
        else:
            code.append(char)
            position += 1
    return "".join(code)


def _regex_may_begin(before: str) -> bool:
    """Whether a slash after `before` begins a pattern; after an operand it divides."""
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
    """Whether the parenthesis at the end of `code` closes that of ``if``, ``while`` or ``for``."""
    level = 0
    for position in range(len(code) - 1, -1, -1):
        level += {")": 1, "(": -1}.get(code[position], 0)
        if level == 0:
            return _CONDITION.search(code, 0, position) is not None
    return False

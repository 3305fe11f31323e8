"""Enough of ``awk`` to know whether a program does more than print what it read."""

from __future__ import annotations

import re

_ANYWHERE = re.compile(r"\b(system|getline|ARGV|ENVIRON|PROCINFO|SYMTAB|FUNCTAB)\b")
_IN_CODE = re.compile(r"@|(?<!\|)\|(?!\|)|\b(close|fflush)\b")
_OUTPUT = re.compile(r"\bprintf?\b[^;}\n]*>")
_INNERMOST = re.compile(r"\([^()]*\)")
_BEFORE_REGEX = frozenset("(,~!&|{};\n=<>?:+-*%^")
_WORDS_BEFORE_REGEX = frozenset({"print", "printf", "return", "in", "case", "else", "do", "and", "or"})


def awk_is_dangerous(program: str) -> bool:
    """Whether `program` may run, read or write something by itself, or cannot be told from one that does."""
    if _ANYWHERE.search(program):
        return True
    code = _code_of(program)
    return code is None or bool(_IN_CODE.search(code) or _OUTPUT.search(_without_parentheses(code)))


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
        elif char == '"' or (char == "/" and _regex_may_begin("".join(code[-40:]))):
            end = _closing(program, position)
            if end is None:
                return None
            code.append(" 0 ")
            position = end
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
    word = re.search(r"[A-Za-z_]\w*\Z", before)
    return word is not None and word.group() in _WORDS_BEFORE_REGEX


def _closing(program: str, start: int) -> int | None:
    """Return the place after the string or pattern that begins at `start`."""
    position = start + 1
    bracket = False
    while position < len(program):
        char = program[position]
        if char == "\\":
            position += 1
        elif char == "\n":
            return None
        elif char == "[" and program[start] == "/":
            bracket = True
        elif char == "]" and bracket:
            bracket = False
        elif char == program[start]:
            return None if bracket else position + 1
        position += 1
    return None

"""Regular expressions in linear time: what a rule's author wrote can be wrong, but it cannot hang the gate.

The standard library parses the pattern; the matching is a simulation of all paths at once, kept as a lazily built
table. Back-references, look-around and atomic groups are refused, because no such simulation exists for them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

MAX_STATES = 4000
"""A pattern that needs more is refused; ``a{1000}`` needs 1,000."""

_MAX_TABLE = 50_000
_MAX_VISITS = 2_000_000
_START, _NEWLINE, _WORD, _OTHER = range(4)
Test = Callable[[str], bool]


class BadRegex(ValueError):
    """The pattern cannot be used; the message says why."""


class TooMuchWork(Exception):
    """A huge pattern met a huge text; the answer is not known, and the caller chooses the safe one."""


@dataclass(slots=True)
class _State:
    """A place in the pattern: consumes a character (`test`), checks a position (`at`), or only leads on."""

    test: Test | None = None
    at: str = ""
    out: list[int] = field(default_factory=list[int])


@lru_cache(maxsize=512)
def compile_linear(pattern: str) -> Linear:
    """Return the matcher of `pattern`.

    :raises BadRegex: it does not compile, or cannot be matched in linear time.
    """
    try:
        tree = importlib.import_module("re._parser").parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadRegex(f"the regular expression does not compile: {error}") from error
    builder = _Builder(tree.state.flags)
    try:
        start, end = builder.sequence(tree)
    except RecursionError as error:
        raise BadRegex("the regular expression is nested too deeply") from error
    return Linear(builder.states, start, end)


class Linear:
    """A compiled pattern with :meth:`search` and :meth:`fullmatch`."""

    def __init__(self, states: list[_State], start: int, end: int) -> None:
        self._states = states
        self._start = frozenset((start,))
        self._end = end
        self._table: dict[tuple[frozenset[int], int, str], tuple[frozenset[int], bool]] = {}
        self._visits = 0

    def search(self, text: str) -> bool:
        """Whether the pattern matches anywhere in `text`.

        :raises TooMuchWork: it would take longer than a gate may.
        """
        return self._run(text, anywhere=True)

    def fullmatch(self, text: str) -> bool:
        """Whether the pattern matches all of `text`.

        :raises TooMuchWork: it would take longer than a gate may.
        """
        return self._run(text, anywhere=False)

    def _run(self, text: str, *, anywhere: bool) -> bool:
        self._visits = 0
        current, before, last = self._start, _START, len(text) - 1
        for index, char in enumerate(text):
            follow = "\n$" if char == "\n" and index == last else char
            current, accepted = self._step(current, before, follow)
            if accepted and anywhere:
                return True
            if anywhere:
                current = current | self._start
            elif not current:
                return False
            before = _NEWLINE if char == "\n" else _WORD if _is_word(char) else _OTHER
        return self._step(current, before, "")[1]

    def _step(self, current: frozenset[int], before: int, follow: str) -> tuple[frozenset[int], bool]:
        key = (current, before, follow)
        found = self._table.get(key)
        if found is None:
            if len(self._table) > _MAX_TABLE:
                self._table.clear()
            found = self._table[key] = self._compute(current, before, follow)
        return found

    def _compute(self, current: frozenset[int], before: int, follow: str) -> tuple[frozenset[int], bool]:
        seen: set[int] = set()
        pending = list(current)
        after: set[int] = set()
        while pending:
            index = pending.pop()
            if index in seen:
                continue
            seen.add(index)
            state = self._states[index]
            if state.test is not None:
                if follow and state.test(follow[0]):
                    after.update(state.out)
            elif not state.at or _holds(state.at, before, follow):
                pending.extend(state.out)
        self._visits += len(seen)
        if self._visits > _MAX_VISITS:
            raise TooMuchWork
        return frozenset(after), self._end in seen


def _holds(at: str, before: int, follow: str) -> bool:
    """Whether a position assertion holds between the kind of character `before` and the text that follows."""
    at_word = bool(follow) and _is_word(follow[0])
    match at:
        case "AT_BEGINNING" | "AT_BEGINNING_STRING":
            return before == _START
        case "AT_BEGINNING_LINE":
            return before in (_START, _NEWLINE)
        case "AT_END":
            return follow in ("", "\n$")
        case "AT_END_LINE":
            return follow == "" or follow[0] == "\n"
        case "AT_END_STRING":
            return follow == ""
        case "AT_BOUNDARY" | "AT_UNI_BOUNDARY":
            return (before == _WORD) != at_word
        case _:
            return (before == _WORD) == at_word


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


_CATEGORIES: dict[str, Test] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_NOT_DIGIT": lambda char: not char.isdecimal(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda char: not char.isspace(),
    "CATEGORY_WORD": _is_word,
    "CATEGORY_NOT_WORD": lambda char: not _is_word(char),
}


class _Builder:
    """Turns the standard library's parse into states; each method returns the first and the last one."""

    def __init__(self, flags: int) -> None:
        self.states: list[_State] = []
        self._flags = flags
        self._depth = 0

    def _new(self, **values: Any) -> int:
        if len(self.states) >= MAX_STATES:
            raise BadRegex(f"the regular expression is too large (more than {MAX_STATES} states)")
        self.states.append(_State(**values))
        return len(self.states) - 1

    def sequence(self, items: Iterable[Any]) -> tuple[int, int]:
        """Chain `items`."""
        start = last = self._new()
        for name, argument in items:
            first, end = self._item(str(name), argument)
            self.states[last].out.append(first)
            last = end
        return start, last

    def _item(self, name: str, argument: Any) -> tuple[int, int]:
        match name:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                state = self._new(test=self._test(name, argument))
                end = self._new()
                self.states[state].out.append(end)
                return state, end
            case "AT":
                code = str(argument)
                code += "_LINE" if self._flags & re.MULTILINE and code in ("AT_BEGINNING", "AT_END") else ""
                state, end = self._new(at=code), self._new()
                self.states[state].out.append(end)
                return state, end
            case "BRANCH":
                return self._branch(argument[1])
            case "SUBPATTERN":
                return self._group(argument)
            case "MAX_REPEAT" | "MIN_REPEAT":
                return self._repeat(*argument)
            case _:
                raise BadRegex(f"{name.lower().replace('_', ' ')} cannot be matched in linear time; write it without")

    def _branch(self, branches: Iterable[Any]) -> tuple[int, int]:
        start, end = self._new(), self._new()
        for branch in branches:
            first, last = self.sequence(branch)
            self.states[start].out.append(first)
            self.states[last].out.append(end)
        return start, end

    def _group(self, argument: Any) -> tuple[int, int]:
        _, add, remove, items = argument
        saved = self._flags
        self._flags = (saved | add) & ~remove
        try:
            return self.sequence(items)
        finally:
            self._flags = saved

    def _repeat(self, low: int, high: Any, items: Any) -> tuple[int, int]:
        unbounded = str(high) == "MAXREPEAT"
        start = last = self._new()
        for _ in range(low):
            first, end = self.sequence(items)
            self.states[last].out.append(first)
            last = end
        final = self._new()
        if unbounded:
            first, end = self.sequence(items)
            self.states[last].out += [first, final]
            self.states[end].out += [first, final]
            return start, final
        for _ in range(int(high) - low):
            first, end = self.sequence(items)
            self.states[last].out += [first, final]
            last = end
        self.states[last].out.append(final)
        return start, final

    def _test(self, name: str, argument: Any) -> Test:
        match name:
            case "ANY":
                return (lambda _: True) if self._flags & re.DOTALL else (lambda char: char != "\n")
            case "LITERAL":
                plain: Test = _one_of((("LITERAL", argument),))
            case "NOT_LITERAL":
                plain = _one_of((("NEGATE", None), ("LITERAL", argument)))
            case _:
                plain = _one_of(tuple((str(kind), value) for kind, value in argument))
        return _folded(plain, name, argument) if self._flags & re.IGNORECASE else plain


def _one_of(items: tuple[tuple[str, Any], ...]) -> Test:
    """Return the test of a character class as the standard library parsed it."""
    negated = items[0][0] == "NEGATE"
    tests = [_member(kind, value) for kind, value in items if kind != "NEGATE"]
    return lambda char: any(test(char) for test in tests) != negated


def _member(kind: str, value: Any) -> Test:
    if kind == "LITERAL":
        wanted = chr(value)
        return lambda char: char == wanted
    if kind == "RANGE":
        low, high = chr(value[0]), chr(value[1])
        return lambda char: low <= char <= high
    return _CATEGORIES[str(value)]


def _folded(plain: Test, name: str, argument: Any) -> Test:
    """Return `plain` without regard to case; a negated class holds only when no spelling is in it."""
    negated = name == "NOT_LITERAL" or (name == "IN" and str(argument[0][0]) == "NEGATE")
    combine = all if negated else any
    return lambda char: combine(plain(form) for form in (char, char.lower(), char.upper()) if len(form) == 1)

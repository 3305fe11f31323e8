"""One simple command as rules see it, and what a rule has to spell out to cover it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from moryflow_sdk import Rule
from moryflow_sdk.support.patterns import Pattern, compile_rule
from moryflow_sdk.targets import UNKNOWN_FOLDER

from moryflow_builtins.permission.policy import CompiledRule, RuleHit, RuleSet

from .facts import CommandFacts, Guard
from .inspect import basename, name_of
from .parser import parse
from .syntax import Arg, NotParsed, Simple, Word, argument, arguments

_NAMED = re.compile(r"[\w@%+=:,./~-]+(?: |\Z)", re.ASCII)
"""A pattern that begins with a whole word."""

_INSIDE = "\ue000"
"""Stands for white space inside a word, so that a rule's blanks are always the ends of words."""

_SAFE = re.compile(r"[\w@%+=:,./^~-]+", re.ASCII)
_SAFE_LINE = re.compile(r"[\w@%+=:,./^ -]*", re.ASCII)
_PROGRAM = re.compile(r"[\w@%+=:,./~\[-]+", re.ASCII)


@dataclass(frozen=True)
class CommandPlace:
    """Where a command runs.

    :param folder: as a rule names it, for example ``vault:/sub``.
    :param lapsed: says which file is not as it was when a rule was stored; empty when all are.
    """

    folder: str
    lapsed: Callable[[Rule], str]

    def is_meant_by(self, rule: Rule) -> bool:
        """Whether `rule` is about this folder; one that forbids is, where the folder is not known."""
        return rule.folder == self.folder or (rule.decision != "allow" and self.folder == UNKNOWN_FOLDER)


class CommandLine:
    """A command: assignments that change something, then its words.

    :ivar words: everything a rule has to cover.
    :ivar plain: the words with quotes removed and one space between them.
    :ivar quoted: the words as a person would type them; two commands that differ never look the same.
    :ivar views: all the ways in which a rule that asks or denies may have meant this command.
    """

    __slots__ = ("_firm", "args", "assigned", "facts", "plain", "quoted", "views", "words")

    def __init__(self, assigned: tuple[Arg, ...], args: tuple[Arg, ...], facts: CommandFacts, raw: str) -> None:
        self.assigned = assigned
        self.args = args
        self.facts = facts
        self.words = (*assigned, *args) if assigned else args
        self.plain = " ".join([word.text for word in self.words])
        one_each = self.plain.count(" ") == len(self.words) - 1 and all(word.text for word in self.words)
        simple = one_each and _SAFE_LINE.fullmatch(self.plain) is not None
        self.quoted = self.plain if simple else " ".join(map(quoted, self.words))
        self._firm = self.plain if simple else " ".join([_joined_inside(word.text) for word in self.words])
        self.views = tuple(dict.fromkeys((self.plain, self.quoted, raw, *self._other_views())))

    def _other_views(self) -> Iterator[str]:
        """Yield the command without assignments, without the folder of its program, and as its facts say."""
        rest = [word.text for word in self.args[1:]]
        name = name_of(self.args)
        if self.assigned and self.args:
            yield " ".join((self.args[0].text, *rest))
        if name and name != self.args[0].text:
            yield " ".join((name, *rest))
        for view in self.facts.views:
            yield " ".join((basename(view[0]), *[word.text for word in view[1:]]))

    @property
    def programs(self) -> set[str]:
        """The first words that a rule about this command may begin with."""
        return {view.partition(" ")[0] for view in (*self.views, self._firm)}

    def probe(self, compiled: CompiledRule, where: CommandPlace) -> RuleHit | None:
        """Return what a rule decides about this command in a folder; an allow that does not cover everything asks."""
        rule, pattern = compiled.rule, compiled.pattern
        if rule.folder is not None and not where.is_meant_by(rule):
            return None
        if rule.decision != "allow":
            matched = any(pattern.matches(f"shell:{view}") for view in self.views)
            return RuleHit(rule, rule.decision) if matched else None
        matched = self._match(pattern)
        if matched is None:
            return None
        why = self.uncovered(pattern, matched)
        if not why and rule.contents and where.lapsed(rule):
            return None
        return RuleHit(rule, "ask", why) if why else RuleHit(rule, "allow")

    def ended(self, compiled: CompiledRule, where: CommandPlace) -> RuleHit | None:
        """Return why a rule that names this command does not allow it here any more, or not here."""
        rule = compiled.rule
        if rule.decision != "allow" or not (rule.folder or rule.contents):
            return None
        matched = self._match(compiled.pattern)
        if matched is None or self.uncovered(compiled.pattern, matched):
            return None
        if rule.folder is not None and not where.is_meant_by(rule):
            return RuleHit(rule, "ask")
        why = where.lapsed(rule)
        return RuleHit(rule, "ask", why) if why else None

    def granted(self, inner: Sequence[Arg], rules: Sequence[Rule | None]) -> CompiledRule | None:
        """Return what a rule that allows this command says of the one at its end: of ``timeout 9 make *`` that is ``make *``.

        It has to name the program, ``timeout *`` says nothing of what is timed, and to be for more than one command: what
        is approved word for word is approved with all that it runs.
        """
        start = len(self.words) - len(inner)
        rule = rules[0] if len(set(rules)) == 1 else None
        if rule is None or rule.decision != "allow" or start < 1 or self.words[start:] != tuple(inner):
            return None
        before = " ".join(quoted(word) for word in self.words[:start])
        rest = rule.pattern.removeprefix(f"{before} ")
        part = rule.replace(pattern=rest)
        compiled = compile_rule(part)
        if rest == rule.pattern or compiled.exact or not _NAMED.match(rest):
            return None
        return CompiledRule(part, compiled)

    def _match(self, pattern: Pattern) -> tuple[str, ...] | None:
        """Return the words as the pattern matched them, or ``None``."""
        if pattern.exact and not pattern.literal.startswith(" "):
            same = words_of_rule(pattern.literal) == tuple(word.text for word in self.words)
            plain = pattern.literal == self.plain and not any(_INSIDE in _joined_inside(w.text) for w in self.words)
            return tuple(word.text for word in self.words) if same or plain else None
        if pattern.matches(f"shell:{self._firm}"):
            return tuple(_joined_inside(word.text) for word in self.words)
        if pattern.matches(f"shell:{self.quoted}"):
            return tuple(quoted(word) for word in self.words)
        return None

    def uncovered(self, pattern: Pattern, matched: Sequence[str]) -> str:
        """Return why an allow whose pattern matched does not cover this command; empty when it does."""
        dynamic = next((word.why for word in self.words if word.why), "")
        if dynamic:
            return dynamic
        for guard in self._guards:
            if guard.unseen:
                return guard.why
            end = len(" ".join(matched[: guard.index + 1]))
            if not pattern.exact and len(pattern.literal) < end:
                return guard.why
        if not pattern.exact and self.args and not _PROGRAM.fullmatch(self.args[0].text):
            return f"{self.args[0].text!r} is an unusual name for a program"
        return ""

    @property
    def _guards(self) -> tuple[Guard, ...]:
        if not self.assigned:
            return tuple(self.facts.guards)
        shift = len(self.assigned)
        own = (Guard(guard.index + shift, guard.why, guard.unseen) for guard in self.facts.guards)
        names = ((index, word.text.partition("=")[0]) for index, word in enumerate(self.assigned))
        return (*(Guard(index, f"{name}=… changes how the command runs") for index, name in names), *own)

    def spelled_out_by(self, rule: Rule) -> bool:
        """Whether `rule` names exactly this command."""
        return compile_rule(rule).exact

    @property
    def storable(self) -> bool:
        """Whether a stored rule could cover this command."""
        one_line = not any("\n" in word.text for word in self.words)
        return one_line and bool(self.words) and not self.uncovered(_EXACT, ())


_EXACT = Pattern(lambda _: True, exact=True)


def quoted(word: Arg) -> str:
    """Return a word as it would be typed."""
    text = word.text
    if word.why or (_SAFE.fullmatch(text) and (not text.startswith("~") or word.tilde)):
        return text
    return text if text in ("[", "[[", "]", "]]", "{}", "!") else "'" + text.replace("'", "'\\''") + "'"


def _joined_inside(text: str) -> str:
    return re.sub(r"\s", _INSIDE, text) or _INSIDE


@lru_cache(maxsize=1024)
def words_of_rule(text: str) -> tuple[str, ...] | None:
    """Return the words of a rule that names one command exactly, or ``None`` when it is not one plain command."""
    try:
        script, _ = parse(text)
    except NotParsed:
        return None
    commands = [command for chain in script.chains for pipe in chain.pipelines for command in pipe.commands]
    if len(commands) != 1 or not isinstance(commands[0], Simple) or commands[0].redirects:
        return None
    assigned = [_assigned(item.raw, argument(item.words[0])) for item in commands[0].assignments if len(item.words) == 1]
    words = (*assigned, *arguments(commands[0].words))
    return tuple(word.text for word in words) if all(word.static for word in words) else None


def _assigned(raw: str, value: Arg) -> Arg:
    head = raw[: raw.index("=") + 1]
    return Arg(head + value.text, value.why)


def denial_of(rules: RuleSet, text: str) -> RuleHit | None:
    """Return the denial that a text would get if it were a command."""

    def probe(compiled: CompiledRule) -> RuleHit | None:
        return RuleHit(compiled.rule, compiled.rule.decision) if compiled.matches(f"shell:{text}") else None

    hit = rules.last_for((text.partition(" ")[0],), probe)
    return hit if hit is not None and hit.decision == "deny" else None


def has_denial(rules: RuleSet) -> bool:
    """Whether any rule denies a command; without one, hidden commands need not be searched."""
    return any(compiled.rule.decision == "deny" for compiled in rules.of("bash"))


def assignments(command: Simple) -> Iterable[Arg]:
    """Yield the assignments in front of a command as words."""
    for item in command.assignments:
        if len(item.words) != 1 or item.words[0].raw == item.raw:
            yield Arg(item.raw, "it assigns an array")
            continue
        value = argument(item.words[0])
        head = item.raw[: len(item.raw) - len(item.words[0].raw)]
        why = value.why or (f"{item.name} is assigned a path of the home folder" if value.tilde else "")
        yield Arg(head + value.text, why)


def fed_in(command: Simple) -> tuple[Word | None, Arg | None]:
    """Return the text, or the file, that is fed into a command by its last redirection of standard input."""
    inputs = [r for r in command.redirects if r.operator.startswith("<") and r.descriptor in ("", "0")]
    if not inputs:
        return None, None
    return next(iter(inputs[-1].body), None), argument(inputs[-1].target) if inputs[-1].operator == "<" else None

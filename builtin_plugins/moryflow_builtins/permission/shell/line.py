"""One command as rules see it, and the commands of a text for gates of other plugins."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from moryflow_sdk import Rule
from moryflow_sdk.calls import UNKNOWN_FOLDER
from moryflow_sdk.support.patterns import Pattern, compile_rule

from moryflow_builtins.permission.policy import CompiledRule, RuleHit

from .guards import ANYTHING, UncoveredWords
from .lexer import NotRead, SimpleCommand, Word, read
from .remember import changed_file
from .tables import UNKNOWN, program
from .words import changing, git_place, inner_texts, inner_words, name_of, quote, rough_commands

# How many levels of commands that run commands are read.
MAX_DEPTH = 8

# How many words of a command are tried as the beginning of a denied command.
MAX_SUFFIXES = 24

# Stands for white space inside a word, so that a blank in a rule only matches between two words.
_INSIDE = "\ue000"


class CommandLine:
    """A command as rules see it."""

    def __init__(self, words: Sequence[Word], assigned: int, guards: Sequence[UncoveredWords], *, known: bool) -> None:
        self.words = words
        self.guards = guards
        self._known = known
        texts = [word.text for word in words]
        self.typed = [quote(word) for word in words]
        for place in range(assigned):
            head, sign, value = texts[place].partition("=")
            self.typed[place] = head + sign + (quote(Word(value)) if value and not words[place].why else value)
        self.plain = " ".join(texts)
        self.quoted = " ".join(self.typed)
        self._firm = " ".join(re.sub(r"\s", _INSIDE, text) or _INSIDE for text in texts)
        views = [self.plain, self.quoted]
        command = words[assigned:]
        if command:
            rest = texts[assigned + 1 :]
            views += [" ".join((texts[assigned], *rest)), " ".join((name_of(command[0]), *rest))]
            if name_of(command[0]) == "git":
                views.append(" ".join(("git", *texts[assigned + git_place(command) :])))
        self.views = tuple(dict.fromkeys(views))
        self.programs = {view.partition(" ")[0] for view in (*self.views, self._firm)}

    def probe(
        self, compiled: CompiledRule, folder: str, vault: str, named: Callable[[str], str], confined: Callable[[], bool]
    ) -> RuleHit | None:
        """Return what a rule decides about this command in a folder; an allow that does not cover all of it asks.

        :param folder: the folder as rules name it; `named` returns that name for a folder that a rule writes in another way.
        :param confined: whether the command will run in a sandbox.
        """
        rule, pattern = compiled.rule, compiled.pattern
        if rule.folder is not None and rule.folder != folder:
            elsewhere = folder != UNKNOWN_FOLDER and named(rule.folder) != folder
            if rule.decision == "allow" or elsewhere:
                return None
        if rule.decision != "allow":
            matched = any(pattern.matches(f"shell:{view}") for view in self.views)
            return RuleHit(rule, rule.decision) if matched else None
        matched_words = self._match(rule, pattern)
        if matched_words is None:
            return None
        why = self._uncovered(pattern, matched_words, confined)
        if why:
            return RuleHit(rule, "ask", why)
        return None if rule.contents and changed_file(rule.contents, vault) else RuleHit(rule, "allow")

    def ended(self, compiled: CompiledRule, folder: str, vault: str) -> RuleHit | None:
        """Return why a stored rule that names this command does not allow it: another folder, or a file has changed."""
        rule = compiled.rule
        if rule.decision != "allow" or not (rule.folder or rule.contents) or self._match(rule, compiled.pattern) is None:
            return None
        if rule.folder is not None and rule.folder != folder:
            return RuleHit(rule, "ask")
        why = changed_file(rule.contents, vault)
        return RuleHit(rule, "ask", why) if why else None

    def _match(self, rule: Rule, pattern: Pattern) -> Sequence[str] | None:
        """Return the words in the spelling that an allow matched; ``None`` when it matches none."""
        if pattern.exact and not pattern.literal.startswith(" "):
            texts = tuple(word.text for word in self.words)
            plain = pattern.literal == self.plain and not any(re.search(r"\s", text) for text in texts)
            return texts if plain or words_of_rule(pattern.literal) == texts else None
        # `git log *` is meant for a bare `git log` too.
        kinds = program(self.plain.partition(" ")[0]).kinds
        bare = rule.pattern.endswith(" *") and not rule.pattern.startswith("regex:") and kinds & {"safe", "verb"}
        ends = ("", " ") if bare else ("",)
        for text, words in ((self._firm, self._firm.split(" ")), (self.quoted, self.typed)):
            if any(pattern.matches(f"shell:{text}{end}") for end in ends):
                return words
        return None

    def _uncovered(self, pattern: Pattern, matched: Sequence[str], confined: Callable[[], bool]) -> str:
        """Return why an allow whose pattern matched does not cover the whole command; empty when it does."""
        names_none = not pattern.literal.strip() and not pattern.exact
        sandboxed = names_none and bool(not self._known or self.guards) and confined()
        for guard in self.guards:
            end = len(" ".join(matched[: guard.place + 1]))
            covered = pattern.exact or len(pattern.literal) >= end or sandboxed
            if guard.place >= ANYTHING or not covered:
                return guard.why
        if names_none and not self._known and not sandboxed:
            return f"{self.plain.partition(' ')[0]!r} is not a program that is known here; a rule that names it can allow it"
        return ""


@lru_cache(maxsize=1024)
def words_of_rule(text: str) -> tuple[str, ...] | None:
    """Return the words of an exact rule, or ``None`` when its text is not one plain command."""
    try:
        commands = read(text)
    except NotRead:
        return None
    if len(commands) != 1 or commands[0].redirects or any(word.why for word in commands[0].words):
        return None
    return tuple(word.text for word in (*commands[0].assigned, *commands[0].words))


def rest_of(rule: Rule, words: Sequence[Word], place: int) -> CompiledRule | None:
    """Return the part of a rule for the command behind a wrapper: ``make *`` from ``timeout 9 make *``."""
    before = " ".join(quote(word) for word in words[:place])
    rest = rule.pattern.removeprefix(f"{before} ")
    if rest == rule.pattern or not re.match(r"[\w@%+=:,./~-]+(?: |\Z)", rest, re.ASCII):
        return None
    part = rule.replace(pattern=rest)
    compiled = compile_rule(part)
    return None if compiled.exact else CompiledRule(part, compiled)


# ---------------------------------------------------------------- the commands of a text, for gates of other plugins


def simple_commands(text: str) -> tuple[str, ...]:
    """Return the commands in `text`, each in every spelling that a rule may use for it."""
    found: dict[str, None] = {}
    _collect(text, 0, found)
    return tuple(found)


def _collect(text: str, depth: int, found: dict[str, None]) -> None:
    try:
        if depth > MAX_DEPTH:
            raise NotRead("commands run commands too deeply")
        commands = read(text)
    except (NotRead, RecursionError):
        found.update(dict.fromkeys(rough_commands(text)))
        return
    for command in commands:
        _collect_command(command, depth, found)


def _collect_command(command: SimpleCommand, depth: int, found: dict[str, None]) -> None:
    if not command.words:
        return
    assigned = changing(command.assigned)
    line = CommandLine((*assigned, *command.words), len(assigned), (), known=True)
    found.update(dict.fromkeys(line.views))
    if program(name_of(command.words[0])) is UNKNOWN or "code" in program(name_of(command.words[0])).kinds:
        texts = [word.text for word in command.words[1:]]
        found.update(dict.fromkeys(" ".join(texts[start:]) for start in range(min(len(texts), MAX_SUFFIXES))))
    for _, _, inner in inner_words(command) if depth < MAX_DEPTH else ():
        _collect_command(SimpleCommand(inner), depth + 1, found)
    for inner in inner_texts(command):
        _collect(inner, depth + 1, found)

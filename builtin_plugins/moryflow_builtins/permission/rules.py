"""Rules in the order they are matched, and the one question asked of them: which is the last that matches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from moryflow_sdk import DOMAINS, Rule
from moryflow_sdk.patterns import Pattern, compile_rule

Strength = Literal["allow", "ask", "deny"]
_VOLUME_FOLDS = sys.platform in ("darwin", "win32")
"""Where upper and lower case name the same file, rules that protect a file ignore case."""

STRENGTH: dict[str, int] = {"allow": 0, "ask": 1, "deny": 2, "stop": 3}


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule and what it matches.

    :param plain: how a target's text is made comparable first; the defaults ignore case and look-alikes.
    """

    rule: Rule
    pattern: Pattern
    plain: Callable[[str], str] | None = None

    def matches(self, text: str) -> bool:
        """Whether the rule's pattern matches a target's text."""
        return self.pattern.matches(self.plain(text) if self.plain else text)


@dataclass(frozen=True, slots=True)
class RuleHit:
    """A rule that matched and what it decides here; `note` says why that differs from what it says."""

    rule: Rule
    decision: Strength
    note: str = ""


Probe = Callable[[CompiledRule], RuleHit | None]


@dataclass(frozen=True)
class RuleSet:
    """Compiled rules by domain, in order. Make one with :func:`compile_rules`."""

    rules: tuple[Rule, ...] = ()
    by_domain: dict[str, tuple[CompiledRule, ...]] = field(default_factory=dict[str, tuple[CompiledRule, ...]])
    by_program: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    broken: tuple[CompiledRule, ...] = ()

    def of(self, domain: str) -> tuple[CompiledRule, ...]:
        """Return the rules of `domain`, in order."""
        return self.by_domain.get(domain, ())

    def last(self, domain: str, probe: Probe) -> RuleHit | None:
        """Return the last rule of `domain` that `probe` takes for a match."""
        return next((hit for compiled in reversed(self.of(domain)) if (hit := probe(compiled))), None)

    def last_for(self, programs: Iterable[str], probe: Probe) -> RuleHit | None:
        """Do the same for commands, looking only at rules that may be about one of `programs`."""
        rules = self.of("bash")
        places = set(self.by_program.get("", ())).union(*(self.by_program.get(name, ()) for name in programs))
        return next((hit for place in sorted(places, reverse=True) if (hit := probe(rules[place]))), None)

    def unusable(self, domain: str) -> Iterator[CompiledRule]:
        """Yield rules that may be about `domain` and can match nothing because something is wrong with them."""
        return (one for one in self.broken if one.rule.domain == domain or one.rule.domain not in DOMAINS)


_newest = [RuleSet()]


def text_probe(text: str) -> Probe:
    """Return the probe for a target that is one piece of text."""
    return lambda compiled: RuleHit(compiled.rule, compiled.rule.decision) if compiled.matches(text) else None


def compile_rules(rules: Iterable[Rule]) -> RuleSet:
    """Return `rules` compiled; equal rules give the same object while it is remembered."""
    wanted, newest = tuple(rules), _newest[0]
    if newest.rules != wanted:  # the same objects are equal at once, while hashing all rules costs more than a judgement
        newest = _newest[0] = _compiled(wanted)
    return newest


@lru_cache(maxsize=64)
def _compiled(rules: tuple[Rule, ...]) -> RuleSet:
    compiled = [_compile(rule) for rule in rules]
    readable = [one for one in compiled if not one.rule.problem]
    by_domain = {domain: tuple(one for one in readable if one.rule.domain == domain) for domain in DOMAINS}
    broken = tuple(one for one in compiled if one.pattern.problem and (one.rule.problem or one.rule.decision != "allow"))
    programs: dict[str, list[int]] = {}
    for place, one in enumerate(by_domain["bash"]):
        programs.setdefault(_program(one.pattern), []).append(place)
    return RuleSet(rules, by_domain, {name: tuple(places) for name, places in programs.items()}, broken)


def _program(pattern: Pattern) -> str:
    """Return the first word of every command that `pattern` matches; empty where that is not one word."""
    first, space, _ = pattern.literal.partition(" ")
    return first if space or pattern.exact else ""


def _compile(rule: Rule) -> CompiledRule:
    from .defaults import guarded_line, plain_text, protects

    if rule.domain not in ("read", "edit"):
        return CompiledRule(rule, compile_rule(rule))
    if protects(rule):
        return CompiledRule(rule, Pattern(lambda text: guarded_line(rule, text) is not None))
    if rule.source == "default":
        return CompiledRule(rule, compile_rule(rule), plain_text)
    if _VOLUME_FOLDS and rule.decision != "allow" and not rule.pattern.startswith("regex:"):
        return CompiledRule(rule, compile_rule(rule.replace(pattern=plain_text(rule.pattern))), plain_text)
    return CompiledRule(rule, compile_rule(rule))


def by_source(rules: Sequence[Rule]) -> tuple[RuleSet, ...]:
    """Split `rules` of agents by their source: each source is judged alone and the most severe counts."""
    sources = dict.fromkeys(rule.source for rule in rules)
    return tuple(compile_rules(rule for rule in rules if rule.source == source) for source in sources)

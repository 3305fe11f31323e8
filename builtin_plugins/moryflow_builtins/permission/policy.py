"""Rules in the order they are matched, and the places that a decision depends on: everything but the call itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePath

from moryflow_sdk import DOMAINS, Rule, Target
from moryflow_sdk.support.patterns import Pattern, compile_rule

from .judgement import Judgement, Strength, place_of, rule_words, stricter

_VOLUME_FOLDS = sys.platform in ("darwin", "win32")
"""Where upper and lower case name the same file, rules that protect a file ignore case."""


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
        newest = _newest[0] = _compile_all(wanted)
    return newest


@lru_cache(maxsize=64)
def _compile_all(rules: tuple[Rule, ...]) -> RuleSet:
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


Resolve = Callable[[str, str, str | None], Target]
"""(path, domain, base or ``None`` for the vault) → target, as the host resolves file arguments."""


def hides_nothing(_: str) -> bool:
    """Say that a command sees every file, as where there is no sandbox."""
    return False


@dataclass(frozen=True)
class Policy:
    """Rules and places of one judgement.

    :param configured: defaults, then the user's, inline and session rules: the last match wins.
    :param narrowing: the rules of the agent and of those that started it, by source; each can only make it stricter.
    :param home: Moryflow's own folder.
    :param vault: the folder the agent works in.
    :param watched: code elsewhere that runs as soon as it is saved.
    :param hides: whether a command that runs here sees nothing of the file at a path, because its sandbox hides it.
    """

    configured: RuleSet
    home: Path
    vault: Path
    resolve: Resolve
    narrowing: tuple[RuleSet, ...] = ()
    watched: tuple[Path, ...] = ()
    hides: Callable[[str], bool] = hides_nothing

    @property
    def layers(self) -> tuple[RuleSet, ...]:
        """The configured rules, then those of agents."""
        return (self.configured, *self.narrowing)

    def by_text(self, domain: str, target: str) -> Judgement:
        """Judge a target that is one piece of text."""
        return self.by_probe(domain, target, text_probe(target))

    def by_probe(self, domain: str, target: str, probe: Probe) -> Judgement:
        """Judge `target` by the last rule that `probe` takes for a match, and by every agent's own rules."""
        return self._combine(domain, target, lambda rules: rules.last(domain, probe))

    def by_command(self, target: str, programs: Iterable[str], probe: Probe) -> Judgement:
        """Judge a command that runs one of `programs`."""
        return self._combine("bash", target, lambda rules: rules.last_for(programs, probe))

    def _combine(self, domain: str, target: str, last: Callable[[RuleSet], RuleHit | None]) -> Judgement:
        answer = _answer(domain, target, last(self.configured))
        for layer in self.narrowing:
            own = last(layer)
            if own is not None:
                answer = _agent_last(answer, _answer(domain, target, own))
        return self._with_floor(answer)

    def _with_floor(self, answer: Judgement) -> Judgement:
        """Ask where a rule cannot be used: what it should have asked about or forbidden is not known."""
        for layer in self.layers:
            for broken in layer.unusable(answer.domain):
                answer = _agent_last(answer, _question_about(answer, broken))
        return answer


def make_policy(
    rules: Iterable[Rule],
    *,
    home: Path,
    vault: Path,
    resolve: Resolve,
    agent: Sequence[Rule] = (),
    watched: tuple[Path, ...] = (),
    hides: Callable[[str], bool] = hides_nothing,
) -> Policy:
    """Return the policy of `rules` (defaults included) and of an agent's own rules."""
    return Policy(compile_rules(rules), home, vault, resolve, by_source(agent), watched, hides)


def _agent_last(first: Judgement, second: Judgement) -> Judgement:
    """Return the more severe of two answers; of two equal questions the second, which no rule of a person answers."""
    return second if second.decision == "ask" and second.severity == first.severity else stricter(first, second)


def _question_about(answer: Judgement, broken: CompiledRule) -> Judgement:
    """Return the question that a rule which cannot be used leaves; no mode lifts it where the rule may have been a deny."""
    rule = broken.rule
    what = f"the rule at {place_of(rule)} cannot be understood" if rule.problem else f"the {rule_words(rule)} cannot be used"
    reason = f"{what}: {broken.pattern.problem}"
    bypass = "never" if rule.decision == "deny" else "mode"
    return Judgement(answer.domain, answer.target, "ask", reason, bypass=bypass, rule=rule)


def _answer(domain: str, target: str, hit: RuleHit | None) -> Judgement:
    if hit is None:
        return Judgement(domain, target, "ask", "no rule covers it")
    if hit.decision == "allow":
        return Judgement(domain, target, "allow", hit.note, rule=hit.rule)
    explicit = hit.decision == "deny" and hit.rule.source != "default"
    reason = hit.note or rule_words(hit.rule)
    return Judgement(domain, target, hit.decision, reason, bypass="never" if explicit else "mode", rule=hit.rule)


def without(probe: Probe, ignored: Callable[[CompiledRule], bool]) -> Probe:
    """Return `probe` blind to the rules that `ignored` picks."""
    return lambda compiled: None if ignored(compiled) else probe(compiled)


@lru_cache(maxsize=64)
def home_spellings(home: Path) -> tuple[tuple[str, ...], ...]:
    """Return the components of Moryflow's folder as given and with links followed, without case."""
    spellings = (os.path.abspath(home), os.path.realpath(home))  # noqa: PTH100
    return tuple(dict.fromkeys(components(spelling) for spelling in spellings))


def components(path: str) -> tuple[str, ...]:
    """Return the names of a path as the most forgiving volume sees them."""
    return tuple(part.rstrip(". ") or part for part in PurePath(path.casefold()).parts)

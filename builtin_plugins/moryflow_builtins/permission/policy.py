"""The rules and folders that a decision depends on: everything but the call itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath

from moryflow_sdk import Rule, Target

from .judgement import Judgement, place_of, rule_words, stricter
from .rules import CompiledRule, Probe, RuleHit, RuleSet, by_source, compile_rules, text_probe

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

    def by_text(self, domain: str, target: str) -> Judgement:
        """Judge a target that is one piece of text."""
        return self.by_probe(domain, target, text_probe(target))

    def by_probe(self, domain: str, target: str, probe: Probe) -> Judgement:
        """Judge `target` by the last rule that `probe` takes for a match, and by every agent's own rules."""
        return self._combined(domain, target, lambda rules: rules.last(domain, probe))

    def by_command(self, target: str, programs: Iterable[str], probe: Probe) -> Judgement:
        """Judge a command that runs one of `programs`."""
        return self._combined("bash", target, lambda rules: rules.last_for(programs, probe))

    def _combined(self, domain: str, target: str, last: Callable[[RuleSet], RuleHit | None]) -> Judgement:
        answer = _answer(domain, target, last(self.configured))
        for layer in self.narrowing:
            own = last(layer)
            if own is not None:
                answer = _agent_last(answer, _answer(domain, target, own))
        return self._with_floor(answer)

    def _with_floor(self, answer: Judgement) -> Judgement:
        """Ask where a rule cannot be used: what it should have asked about or forbidden is not known."""
        for layer in (self.configured, *self.narrowing):
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

"""What was decided about each thing a call touches, and the one verdict they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from moryflow_sdk import Allow, Ask, Deny, FrozenDict, Remember, Rule, Verdict, thaw
from moryflow_sdk.support.patterns import compile_rule
from moryflow_sdk.support.rule_entries import hidden_character
from moryflow_sdk.verdicts import Bypass, Cause

Strength = Literal["allow", "ask", "deny"]
STRENGTH: dict[str, int] = {"allow": 0, "ask": 1, "deny": 2, "stop": 3}
MOST = 8
"""How many reasons are told, and how many patterns one answer may store."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One target and its decision.

    :param target: the canonical text, for example ``vault:/a.md`` or ``shell:git status``.
    :param reason: why, in a few words; for what is allowed it may be empty.
    :param remember: what *always* would store for it; ``None`` when nothing that is stored could answer the question.
    :param contents: the state of the files that a command runs, by name.
    :param lapsed: a stored rule allowed it until a file changed.
    """

    domain: str
    target: str
    decision: Strength
    reason: str = ""
    cause: Cause = "policy"
    bypass: Bypass = "mode"
    rule: Rule | None = None
    remember: Remember | None = None
    next_step: str = ""
    contents: FrozenDict = field(default_factory=FrozenDict)
    lapsed: bool = False

    @property
    def severity(self) -> tuple[int, bool]:
        """Deny over ask over allow; among equals, what no mode lifts."""
        return STRENGTH[self.decision], self.bypass == "never"

    def as_json(self) -> dict[str, object]:
        """Return what ``permission explain`` prints of it."""
        shown = {"target": self.target, "decision": self.decision, "rule": rule_json(self.rule) if self.rule else None}
        extra = {"domain": self.domain, "reason": self.reason, "cause": self.cause, "bypass": self.bypass}
        return {**shown, **(extra if self.decision != "allow" else {"domain": self.domain})}


@dataclass(frozen=True, slots=True)
class Decision:
    """All that a call touches, judged; never empty."""

    parts: tuple[Judgement, ...]

    @property
    def worst(self) -> Judgement:
        """The most severe part, the first of equals."""
        return max(self.parts, key=lambda part: part.severity)

    @property
    def verdict(self) -> Verdict:
        """The parts as one verdict of this gate."""
        worst = self.worst
        if worst.decision == "allow":
            return Allow(reason=worst.reason, rule=worst.rule)
        strong = [part for part in self.parts if part.severity == worst.severity]
        reason = _one_sentence([part.reason for part in strong if part.reason])
        if worst.decision == "deny":
            # A mode that lifts the denial must not lift with it what it may never lift.
            bypass: Bypass = (
                "never" if any(part.bypass == "never" and part.decision != "allow" for part in self.parts) else "mode"
            )
            return Deny(reason=reason, cause=worst.cause, bypass=bypass, next_step=worst.next_step, rule=worst.rule)
        contents = {name: state for part in strong for name, state in part.contents.items()}
        said = {"cause": worst.cause, "bypass": worst.bypass, "rule": worst.rule}
        return Ask(reason=reason, remember=self.remember, contents=contents, **said)

    @property
    def remember(self) -> tuple[Remember, ...]:
        """What *always* would store: a pattern for each question, or nothing when one of them would be asked again."""
        asked = [part for part in self.parts if part.decision == "ask"]
        kept = tuple(dict.fromkeys(part.remember for part in asked if part.remember is not None))
        if len(kept) > MOST or any(part.remember is None for part in asked):
            return ()
        return () if any(hidden_character(one.pattern) for one in kept) else kept  # such a rule would not be taken


def _one_sentence(reasons: Sequence[str]) -> str:
    """Return different reasons as one sentence that can be read."""
    different = list(dict.fromkeys(reasons))
    more = f"; and {len(different) - MOST} more" if len(different) > MOST else ""
    return "; ".join(different[:MOST]) + more


def decision_of(parts: Iterable[Judgement]) -> Decision:
    """Return `parts` as a decision, equal ones once."""
    return Decision(tuple(dict.fromkeys(parts)))


def stricter(first: Judgement, second: Judgement) -> Judgement:
    """Return the more severe of two answers about the same thing."""
    return second if second.severity > first.severity else first


_STORED = ("default", "user", "inline", "session")


def stored_rule_answers(judgement: Judgement) -> bool:
    """Whether a rule that *always* stores would answer the question: not that of an agent's rule, nor of a broken one."""
    rule = judgement.rule
    return judgement.bypass != "never" and (rule is None or (rule.source in _STORED and not compile_rule(rule).problem))


_PLACES = {"session": "granted for this session", "inline": "inline configuration"}


def place_of(rule: Rule) -> str:
    """Return where a rule stands, for people."""
    if rule.source == "default":
        return "built-in default"
    if rule.file and rule.line:
        return f"{rule.file}:{rule.line}"
    return rule.file or _PLACES.get(rule.source, rule.source)


def rule_words(rule: Rule) -> str:
    """Return a rule and its place as a person would say it."""
    if rule.problem:
        return f"rule that cannot be understood ({place_of(rule)})"
    shown = rule.pattern if len(rule.pattern) <= 80 else f"{rule.pattern[:77]}…"
    return f"rule {rule.decision} {shown!r}{f' in {rule.folder}' if rule.folder else ''} ({place_of(rule)})"


def rule_json(rule: Rule) -> dict[str, object]:
    """Return the fields of a rule that are set."""
    fields = ("source", "file", "line", "index", "domain", "pattern", "decision", "folder", "contents", "problem")
    return {name: thaw(value) for name in fields if (value := getattr(rule, name)) not in (None, {}, "")}

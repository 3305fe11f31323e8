"""Commands that run in a working sandbox may go unasked, where a rule says so (S0.36)."""

from __future__ import annotations

from moryflow_sdk import Allow, Ask, Turn, Verdict

from .judged import Decision


def in_sandbox(decision: Decision, domain: str, turn: Turn) -> Verdict:
    """Return the verdict of `decision`; a question that only the defaults ask about a command is left out.

    What a rule of a person or of an agent asks, and what no mode lifts, is asked all the same.
    """
    verdict = decision.verdict
    if domain != "bash" or not isinstance(verdict, Ask) or verdict.bypass == "never":
        return verdict
    asked = (part for part in decision.judged if part.decision == "ask")
    if any(part.rule is not None and part.rule.source != "default" for part in asked):
        return verdict
    from moryflow_sdk.sandbox import confinement, find_sandbox

    if not confinement(turn.rules.all()).unasked or find_sandbox() is None:
        return verdict
    return Allow(reason="in the sandbox, which a rule lets run unasked", rule=verdict.rule)

"""Combine the verdicts of the gates, apply the mode, and decide when nobody can be asked.

Only this module looks at the session's mode to lift a verdict; gates never do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moryflow_sdk import Allow, Ask, Deny, Ruling, Stop, Verdict

_STRENGTH = {"allow": 0, "ask": 1, "deny": 2, "stop": 3}

Given = Sequence[tuple[str, Verdict]]


def default_verdicts(missing_gates: Sequence[str], verdicts: Given) -> list[tuple[str, Verdict]]:
    """Return the asks that stand under every call: for gates that are missing, and when no gate spoke."""
    extra: list[tuple[str, Verdict]] = []
    if missing_gates:
        names = ", ".join(missing_gates)
        reason = f"the gate of plugin {names} is not loaded; `moryflow plugin list` says why"
        extra.append(("moryflow", Ask(reason=reason, cause="gate_missing", bypass="never")))
    if not verdicts and not missing_gates:
        extra.append(("moryflow", Ask(reason="no gate judged this call", cause="no_verdict")))
    return extra


def apply_mode(verdict: Verdict, mode: str) -> Verdict:
    """Return `verdict` as it stands in `mode`: ``full_access`` turns what may be bypassed into allow."""
    liftable = isinstance(verdict, Ask | Deny) and verdict.bypass == "mode"
    if mode != "full_access" or not liftable:
        return verdict
    return Allow(reason=f"full_access; otherwise: {verdict.reason}", rule=verdict.rule)


def combine(verdicts: Given, *, mode: str, gate_us: int = 0) -> Ruling:
    """Return the ruling of all gates: stop > deny > ask > allow; several asks become one question with all reasons.

    :param verdicts: (plugin, verdict) in the order the gates ran; not empty.
    """
    standing = [apply_mode(verdict, mode) for _, verdict in verdicts]
    strongest = max(standing, key=lambda verdict: (_STRENGTH[verdict.decision], verdict.rule is not None))
    by_mode = any(after is not before for after, (_, before) in zip(standing, verdicts, strict=True))
    more: dict[str, Any] = {"reason": strongest.reason}
    match strongest:
        case Deny():
            more["next_step"] = strongest.next_step
        case Stop():
            more["end_reason"] = strongest.end_reason
        case Ask():
            asks = [verdict for verdict in standing if isinstance(verdict, Ask)]
            more["reason"] = "; ".join(dict.fromkeys(ask.reason for ask in asks))
            more["remember"] = tuple(dict.fromkeys(item for ask in asks for item in ask.remember))
        case _:
            more["reason"] = "; ".join(dict.fromkeys(verdict.reason for verdict in standing if verdict.reason))
    return Ruling(
        decision=strongest.decision,
        cause=getattr(strongest, "cause", "policy"),
        rule=strongest.rule,
        verdicts=tuple(verdicts),
        mode=mode,
        by="mode" if by_mode and strongest.decision == "allow" else "rule",
        gate_us=gate_us,
        **more,
    )


def as_refused(ruling: Ruling, *, cause: str, reason: str, by: str, stop: bool = False) -> Ruling:
    """Return `ruling` turned into a refusal, for example because nobody could be asked."""
    if stop:
        return ruling.replace(decision="stop", cause=cause, reason=reason, by=by, end_reason="stopped")
    return ruling.replace(decision="deny", cause=cause, reason=reason, by=by)


def restrict(ruling: Ruling, verdicts: Given, *, mode: str) -> Ruling:
    """Apply what ``tool_decided`` said: only a stricter verdict counts.

    A failing implementation denies in full access and asks otherwise, so that nothing runs unrecorded.
    """
    strict = [(plugin, _gentle(verdict, mode)) for plugin, verdict in verdicts]
    stronger = [item for item in strict if _STRENGTH[item[1].decision] > _STRENGTH[ruling.decision]]
    if not stronger:
        return ruling
    final = combine(stronger, mode=mode, gate_us=ruling.gate_us)
    return final.replace(verdicts=(*ruling.verdicts, *stronger))


def _gentle(verdict: Verdict, mode: str) -> Verdict:
    if isinstance(verdict, Deny) and verdict.cause == "hook_failure" and mode != "full_access":
        return Ask(reason=verdict.reason, cause="hook_failure", bypass="never")
    return verdict


def still_holds(answered: Ruling, again: Ruling) -> bool:
    """Whether a person who agreed to `answered` has agreed to `again` too: no gate asks anything else."""
    return _questions(again) <= _questions(answered)


def _questions(ruling: Ruling) -> set[tuple[str, Ask]]:
    """Return what each gate asks. Where the rule behind it stands does not matter."""
    asks = ((plugin, verdict) for plugin, verdict in ruling.verdicts if isinstance(verdict, Ask))
    return {(plugin, ask.replace(rule=None, opens=())) for plugin, ask in asks}

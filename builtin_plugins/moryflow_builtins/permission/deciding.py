"""From a call to a verdict: every target is judged, the most severe counts. Used by the gate and by every command."""

from __future__ import annotations

from collections.abc import Sequence

from moryflow_sdk import Remember, Rule, Target, ToolCall, Turn
from moryflow_sdk.patterns import escape
from moryflow_sdk.urls import RefusedUrl, parse_url

from .defaults import default_rules, escape_path
from .files import judge_file
from .judged import Decision, Judged, decided
from .policy import Policy, make_policy

INLINE_COMMAND = 2048
"""Commands up to this many characters are judged on the loop; longer ones in a thread."""


def policy_of(turn: Turn, rules: Sequence[Rule] | None = None) -> Policy:
    """Return the policy that holds in `turn` now.

    :param rules: judge by these instead of the configured ones (``permission test``, ``whatif``).
    """
    files = turn.files

    def resolve(path: str, domain: str, base: str | None) -> Target:
        return files.resolve(path, domain=domain, base=base)

    configured = turn.rules.all() if rules is None else rules
    defaults = default_rules(str(turn.home), tuple(getattr(turn.config, "servers", ())))
    places = {"home": turn.home, "vault": turn.vault, "watched": turn.watched}
    return make_policy((*defaults, *configured), **places, resolve=resolve, agent=turn.agent.rules)


def decide(policy: Policy, call: ToolCall) -> Decision:
    """Judge a call."""
    return decided(part for target in call.targets for part in judge_target(policy, target).judged)


def judge_target(policy: Policy, target: Target) -> Decision:
    """Judge one target, which for a shell command means everything it runs, reads and writes."""
    if target.kind == "file":
        return decided([judge_file(policy, target)])
    if target.error is not None or _broken(target.given):
        reason = target.error or "the input holds characters that no tool accepts"
        return decided([Judged(target.domain, target.text, "deny", reason, "invalid_input", "never")])
    if target.kind == "shell":
        from .shell import judge_command

        return judge_command(policy, target.given)
    if target.kind == "url":
        return decided([_judge_url(policy, target)])
    return decided([_asked_once(policy.by_text(target.domain, target.text), escape(target.text))])


def is_long(call: ToolCall) -> bool:
    """Whether judging `call` could hold up the loop."""
    return any(target.kind == "shell" and len(target.given) > INLINE_COMMAND for target in call.targets)


def _broken(text: str) -> bool:
    return "\0" in text or any("\ud800" <= char <= "\udfff" for char in text)


def _judge_url(policy: Policy, target: Target) -> Judged:
    """Judge the canonical form (R16); no rule opens what is not public."""
    try:
        url = parse_url(target.given)
    except RefusedUrl as error:
        cause = "invalid_input" if error.malformed else "hard_limit"
        return Judged(target.domain, target.text, "deny", str(error), cause, "never")
    text = f"url:{url}"
    return _asked_once(policy.by_text(target.domain, text), escape_path(text))


def _asked_once(answer: Judged, pattern: str) -> Judged:
    """Offer to store `pattern`, unless the question is an agent's own rule, which no stored rule lifts."""
    by_agent = answer.rule is not None and answer.rule.source not in ("default", "user", "inline", "session")
    if answer.decision != "ask" or answer.bypass == "never" or by_agent:
        return answer
    remember = Remember(scope="user", domain=answer.domain, pattern=pattern)
    return Judged(answer.domain, answer.target, "ask", _worded(answer), answer.cause, answer.bypass, answer.rule, remember)


def _worded(answer: Judged) -> str:
    if answer.rule is None or answer.rule.source != "default":
        return answer.reason
    subject = answer.target.partition(":")[2]
    if answer.domain == "tool":
        return f"the tool {subject!r} declares no domain, so it is asked about"
    return f"{subject!r} of an MCP server that is not configured" if answer.domain == "mcp" else answer.reason

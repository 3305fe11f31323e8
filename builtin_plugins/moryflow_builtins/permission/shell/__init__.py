"""Shell commands: until they are parsed, every one asks."""

from __future__ import annotations

from moryflow_builtins.permission.judged import Decision, Judged, decided
from moryflow_builtins.permission.policy import Policy


def judge_command(policy: Policy, command: str) -> Decision:
    """Judge a whole command."""
    answer = policy.by_text("bash", f"shell:{command}")
    if answer.decision != "allow":
        return decided([answer])
    return decided([Judged("bash", f"shell:{command}", "ask", "the command was not parsed")])

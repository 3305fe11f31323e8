"""A gate that keeps pushes off the main branch.

What is in a branch can be reviewed first. The gate holds in ``full_access`` too, where no rule asks.

Try it: ``moryflow permission explain bash "git push origin main"`` says what the rules decide, and
``moryflow tool run bash --command "git push origin main"`` what this gate says.
"""

from __future__ import annotations

from pathlib import Path

from moryflow_sdk import Deny, ToolCall, Turn, hookimpl

PROTECTED = {"main", "master"}


def current_branch(vault: Path) -> str:
    """Return the branch that is checked out; empty where there is none."""
    try:
        return (vault / ".git" / "HEAD").read_text(encoding="utf-8").strip().removeprefix("ref: refs/heads/")
    except OSError:
        return ""


@hookimpl
def tool_gate(call: ToolCall, turn: Turn) -> Deny | None:
    """Look at what the shell would be given."""
    for target in call.targets:
        words = target.given.split()
        if target.kind != "shell" or "git" not in words or "push" not in words:
            continue
        named = {word.lstrip("+").rpartition(":")[2].removeprefix("refs/heads/") for word in words}
        if named & PROTECTED or current_branch(turn.vault) in PROTECTED:
            return Deny("nobody pushes to main from here", next_step="git switch -c a-branch, and push that")
    return None

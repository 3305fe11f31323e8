"""A gate that keeps pushes off the main branch.

Work in a branch can be reviewed before it reaches main. The gate also applies in ``full_access``, where no rule asks.

Try it: ``moryflow permission explain bash "git push origin main"`` shows what the rules decide, and
``moryflow tool run bash --command "git push origin main"`` what this gate decides.
"""

from __future__ import annotations

from moryflow_sdk import Deny, ToolCall, Turn, hookimpl

services = ("rules",)
PROTECTED = {"main", "master"}
UNNAMED = {"", "HEAD", "@"}


def may_reach_main(command: str) -> bool:
    """Whether a push names a protected branch, or no branch at all."""
    words = [word for word in command.split()[2:] if not word.startswith("-")]
    branches = {word.lstrip("+").rpartition(":")[2].removeprefix("refs/heads/") for word in words[1:]}
    return not branches or bool(branches & (PROTECTED | UNNAMED)) or any(set("$*…") & set(name) for name in branches)


@hookimpl
def tool_gate(call: ToolCall, turn: Turn) -> Deny | None:
    """Look at every command of the line, also behind ``cd x &&``, in ``sh -c "…"`` and as ``git -C x push``."""
    commands = [one for target in call.targets if target.kind == "shell" for one in turn.rules.commands(target.given)]
    if any(f"{command} ".startswith("git push ") and may_reach_main(command) for command in commands):
        return Deny("nobody pushes to main from here", next_step="name the branch: git push origin a-branch")
    return None

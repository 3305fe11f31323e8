"""Shell commands: a small language is read surely, and every command in it is judged; everything else is asked about.

============  ==========================================================================================
``lexer``     reads the small language: simple commands, and what joins them
``tables``    what is known of programs, as data
``words``     what the words of one command say: options that run or write, commands inside it, paths
``judge``     judges the commands of a text by the rules, and their words as paths
``remember``  what *always* stores
============  ==========================================================================================

What a program does once it runs is not predicted: that is held by the sandbox, where there is one.
"""

from __future__ import annotations

from moryflow_builtins.permission.policy import Decision, Judgement, Policy, decision_of

# The longest command; the kernel would refuse a longer one too.
MAX_BYTES = 128 * 1024


def judge_command(policy: Policy, command: str, base: str | None = None) -> Decision:
    """Judge a whole command.

    :param base: the folder that the command starts in, an absolute path; the vault by default.
    """
    from .judge import Judge

    if len(command.encode("utf-8", "replace")) > MAX_BYTES:
        reason = f"the command is longer than {MAX_BYTES // 1024} KiB"
        return decision_of([Judgement("bash", f"shell:{command[:180]}", "deny", reason, "invalid_input", "never")])
    judge = Judge(policy, command, base or str(policy.vault))
    judge.judge()
    return decision_of(judge.parts or [policy.by_text("bash", "shell:")])

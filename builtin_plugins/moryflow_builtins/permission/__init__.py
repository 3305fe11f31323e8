"""Permission: rules decide whether a call may run; the last rule that matches counts.

:mod:`.verdict` decides, for the gate and for the commands: ``moryflow permission explain`` shows what the gate would do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from moryflow_sdk import Command, Rule, ToolCall, Turn, Verdict, hookimpl
from moryflow_sdk.support.settings import ServersSettings

name = "permission"
services = ("files", "history", "rules")
gate = True
config_path = "mcp"


config_model = ServersSettings


@hookimpl
async def tool_gate(call: ToolCall, turn: Turn) -> Verdict:
    """Judge a call by the user's rules, the session's and the agent's."""
    from .verdict import decide, in_sandbox, is_long, policy_of

    policy = policy_of(turn)
    if not is_long(call):
        return in_sandbox(decide(policy, call), call.tool, turn)
    import asyncio

    return in_sandbox(await asyncio.to_thread(decide, policy, call), call.tool, turn)


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow permission``."""
    return [Command(name="permission", help="Explain, check, test and change what is allowed.", cli=_group)]


def check_rules(rules: Sequence[Rule]) -> Iterator[tuple[Rule, str]]:
    """Yield each rule that is useless or dangerous, with the reason, for ``moryflow config check`` and ``agent check``.

    Invalid rules are left out: they are reported when they are read. An agent's rule is never dangerous, as it only narrows.
    """
    from .cli.lint import remarks, without_repeats

    for remark in without_repeats(remarks(rules)):
        of_agent = remark.rule is not None and remark.rule.source.startswith("agent")
        if remark.rule is not None and remark.kind not in ("invalid", *(("dangerous", "silences") if of_agent else ())):
            yield remark.rule, remark.sentence


def simple_commands(text: str) -> Sequence[str]:
    """Return the commands in a shell text, as rules are matched against them. The service ``rules`` calls this."""
    from moryflow_builtins.permission.shell.line import simple_commands as read

    return read(text)


def explained(turn: Turn, domain: str, given: str, mode: str) -> Any:
    """Return the document of ``moryflow permission explain`` for an input. The server calls this."""
    from .cli import explain_input

    return explain_input(turn, domain, given, mode).document()


def preset_rules(name: str) -> Sequence[Rule]:
    """Return the rules of a preset that a question offers. The host calls this."""
    from .presets import PRESETS

    return PRESETS[name].rules


def _group() -> Any:
    from .cli import permission

    return permission

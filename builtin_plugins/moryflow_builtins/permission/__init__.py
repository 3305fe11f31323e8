"""Permission: what a call may do is decided by rules, the last that matches.

The decision is made in :mod:`.verdict`, which the commands use too, so that what is explained is what happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from moryflow_sdk import Command, Event, Rule, ToolCall, Turn, Verdict, hookimpl
from moryflow_sdk.support.settings import ServersSettings

name = "permission"
services = ("files", "history", "rules", "terminal")
gate = True
config_path = "mcp"


config_model = ServersSettings
PATIENCE = 0.25
"""Seconds until the judge of commands is loaded: a turn whose answer takes longer has nothing else to do."""


@hookimpl(events="turn.start")
def event(event: Event, turn: Turn | None) -> None:
    """Load the judge of commands while the model works; the first command would wait for it."""
    import asyncio

    asyncio.get_running_loop().call_later(PATIENCE, _load_judge)


def _load_judge() -> None:
    import sys
    from importlib import import_module
    from threading import Thread

    judge = f"{__name__}.shell.judge"
    if judge not in sys.modules:
        Thread(target=import_module, args=(judge,), name="moryflow-judge", daemon=True).start()


@hookimpl
async def tool_gate(call: ToolCall, turn: Turn) -> Verdict:
    """Judge a call by the rules of the person, of the session and of the agent."""
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
    """Say for ``moryflow config check`` what is useless or dangerous in `rules`.

    Which rules are invalid the configuration has found itself when it read them.
    """
    from .cli.lint import few, remarks

    for remark in few(remarks(rules)):
        if remark.rule is not None and remark.kind != "invalid":
            yield remark.rule, remark.sentence


def simple_commands(text: str) -> Sequence[str]:
    """For the service ``rules``: return the commands in a shell text, as rules are matched against them."""
    from moryflow_builtins.permission.shell.judge import simple_commands as read

    return read(text)


def _group() -> Any:
    from .cli import permission

    return permission

"""What the commands say: whose it is, once, in the right number, with the command that helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from moryflow.cli.chat.slash import in_chat

TOO_LONG = {"error": {"code": "context", "message": "too long"}}


def test_the_reply_to_a_sub_agent_names_the_session_that_goes_on(cli: Any) -> None:
    """The person's own, not the child's, which nobody resumes (D66)."""
    cli.config(disabledPlugins=["local_model", "litellm_models", "search", "shell"])
    task = {"calls": [{"name": "task", "arguments": {"prompt": "do it", "agent": "general"}}]}
    cli("run", "-m", cli.script(task, cli.calls("danger", what="x"), "x", "x"), "--on-ask", "fail", "hi")
    shown = cli("approval", "list").stdout.split()
    done = cli("approval", "reply", shown[0], "once")
    parent = cli("session", "list").stdout.split()[0]
    assert shown[1] != parent and done.stdout.endswith(f"moryflow run -r {parent}\n")


def test_a_conversation_names_its_slash_commands_as_next_steps(cli: Any) -> None:
    """Where one does the same for the session that is open; else the command of the shell stays (CONTRACT §1)."""
    slips = ["/switch nowhere", "/model nobody/none", "/agent nobody", "/sessions nowhere", "/reply ap_q once", "/undo yes"]
    said = cli("chat", "-m", cli.script(*[TOO_LONG] * 3), stdin="\n".join(["hi", *slips])).stderr
    steps = [step for line in said.splitlines() if (step := line.partition("next: ")[2] or line.partition("Next: ")[2])]
    assert steps == ["/compact, or /new, which begins a new session", "/tree", "/model", "/agent", "/sessions", "/show"]


@pytest.mark.parametrize(
    ("step", "here"),
    [
        ("moryflow session fork 0123456789abcdef", "/branch"),
        ("moryflow session fork fedcba9876543210", "moryflow session fork fedcba9876543210"),
        ("moryflow run -r fedcba9876543210", "/resume fedcba9876543210"),
        ("moryflow run -r 0123456789abcdef", "moryflow run -r 0123456789abcdef"),
        ("moryflow session compact -m MODEL", "moryflow session compact -m MODEL"),
        ("moryflow run -c --max-steps N", "moryflow run -c --max-steps N"),
        ("ask again, or choose another model with -m", "ask again, or choose another model with /model"),
        ("moryflow session records", "moryflow session records"),
    ],
)
def test_a_next_step_becomes_a_slash_command_only_where_that_does_the_same(step: str, here: str) -> None:
    """Another session or an option is beyond the slash command (CONTRACT §1)."""
    assert in_chat(step, "0123456789abcdef") == here


def test_no_command_takes_a_flag_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """click warns a person of it at each start of such a command, those of plugins among them (CONTRACT §1)."""
    from moryflow.cli import cli as group

    monkeypatch.setenv("MORYFLOW_HOME", str(tmp_path))
    twice: list[str] = []
    commands = [("moryflow", click.Context(group, info_name="moryflow"))]
    for name, context in commands:  # which grows meanwhile
        options = [item for item in context.command.params if isinstance(item, click.Option)]
        words = [word for item in options for word in (*item.opts, *item.secondary_opts)]
        twice += [f"{name} {word}" for word in set(words) if words.count(word) > 1]
        if isinstance(context.command, click.Group):
            below = ((each, context.command.get_command(context, each)) for each in context.command.list_commands(context))
            commands += [(f"{name} {each}", click.Context(one, parent=context, info_name=each)) for each, one in below if one]
    assert twice == [] and len(commands) > 60

"""``moryflow memory-bank``: init, check, doctor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from moryflow_sdk import ConfigError

from .check import document, rendering


def _within(context: Any, work: Callable[[Any], Any]) -> Any:
    """Do `work` with a turn of the folder.

    :raises ConfigError: there is no such folder.
    """

    async def at(turn: Any) -> Any:
        if not turn.vault.is_dir():
            raise ConfigError("there is no such folder", where=str(turn.vault), next_step="give one that is there with --vault")
        return work(turn)

    return context.run(at)


@click.group(name="memory-bank")
def memory_bank() -> None:
    """Make and check the memory bank of this folder: what the project knows about itself."""


@memory_bank.command()
@click.option("--skill", is_flag=True, help="Replace the installed skill with the one that ships with Moryflow.")
@click.pass_obj
def init(context: Any, skill: bool) -> None:
    """Create what is missing in memory-bank/ and install its skill. Existing files stay; user blocks are never touched."""
    from .init import init as make
    from .init import install_skill

    done = _within(context, make)
    place, installed = install_skill(context.home, replace=skill)
    lines = [f"{name}: {what}" for name, what in done.items()]
    text = "\n".join([*lines, f"skill {place}: {installed}"])
    context.print(
        {"v": 1, "type": "memory_bank.init", "files": done, "skill": {"path": str(place), "done": installed}}, text=text
    )


@memory_bank.command()
@click.pass_obj
@click.pass_context
def check(ctx: click.Context, context: Any) -> None:
    """Validate structure, schema, links, pointers and sizes. Exit code 3 when something is wrong."""
    from .check import check as look

    found, count = _within(context, look)
    context.print(document("memory_bank.check", found, files=count), text=rendering(found, f"{count} files, nothing is wrong"))
    ctx.exit(3 if found else 0)


@memory_bank.command()
@click.pass_obj
@click.pass_context
def doctor(ctx: click.Context, context: Any) -> None:
    """Check that protocol, skill and bank agree. Exit code 3 if they differ."""
    from .doctor import diagnose, facts

    found, known = _within(context, lambda turn: (diagnose(turn), facts(turn)))
    state = known["bank"] or "none here"
    fine = f"protocol {known['protocol_version']}, guard mode {known['guard_mode']}, bank {state}: no drift"
    context.print(document("memory_bank.doctor", found, **known), text=rendering(found, fine))
    ctx.exit(3 if found else 0)

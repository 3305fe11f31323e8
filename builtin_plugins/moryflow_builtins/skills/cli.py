"""``moryflow skill``."""

from __future__ import annotations

from typing import Any

import click
from moryflow_sdk import Turn

from .finding import Skill, skills_for
from .reading import read_skill


@click.group("skill")
def group() -> None:
    """List and show skills, and report what is wrong with them."""


@group.command("list")
@click.pass_obj
def list_skills(context: Any) -> None:
    """List your skills and those of the vault; for those that cannot be used, say why."""
    found = context.run(_all, vault=context.vault)
    lines = [f"{skill.name:<24}  {skill.source:<5}  {skill.description or f'not used: {skill.problem}'}" for skill in found]
    rows = [_row(skill) for skill in found]
    nothing = "no skills; make a folder with a SKILL.md in ~/.moryflow/skills"
    context.print(rows, text="\n".join(lines) or nothing)


@group.command("show")
@click.argument("name")
@click.pass_obj
def show_skill(context: Any, name: str) -> None:
    """Show what the model reads of a skill."""

    async def work(turn: Turn) -> str:
        return read_skill(name, turn.vault, turn.home, claude=turn.config.claude)

    text = context.run(work, vault=context.vault)
    context.print({"name": name, "text": text}, text=text)


async def _all(turn: Turn) -> list[Skill]:
    return skills_for(turn.vault, turn.home, claude=turn.config.claude)


def _row(skill: Skill) -> dict[str, Any]:
    row = {"name": skill.name, "description": skill.description, "source": skill.source, "file": str(skill.file)}
    return {**row, "tokens": len(skill.body) // 4, "usable": skill.usable, "problem": skill.problem}

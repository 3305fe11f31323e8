"""Skills: folders with a ``SKILL.md``, of the person (``~/.moryflow/skills``) and of the vault.

Name and description stand in the system prompt; the body, and the pages it refers to, are read on demand with the tool
``skill``. A skill is text: scripts that it brings are run through ``bash`` like anything else, and nothing in it sets a
permission.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from moryflow_sdk import Command, SystemBlock, Tool, ToolContext, Turn, hookimpl, tool
from moryflow_sdk.support.settings import Settings

name = "skills"
config_path = "agents.runtime.skills"


class SkillSettings(Settings):
    """Which skills are offered.

    :ivar claude: also those in ``~/.claude/skills``.
    """

    claude: bool = True


config_model = SkillSettings


@hookimpl
def system_blocks(turn: Turn) -> Sequence[SystemBlock]:
    """List the skills that there are, for those who may read them."""
    from .catalog import skills_for

    found = [skill for skill in skills_for(turn.vault, turn.home, claude=turn.config.claude) if skill.usable]
    if not found or not _offered(turn):
        return []
    lines = [f"- {skill.name}: {skill.description}" for skill in found]
    head = "Skills: ways of working that somebody wrote down. When one fits the task, read it first with the tool `skill`."
    return [SystemBlock(id="skills", text="\n".join([head, *lines]))]


def _offered(turn: Turn) -> bool:
    """Whether this agent, with this model, can read a skill."""
    from fnmatch import fnmatchcase

    agent = turn.agent
    allowed = agent.tools is None or any(fnmatchcase("skill", glob) for glob in agent.tools)
    denied = any(fnmatchcase("skill", glob) for glob in agent.deny_tools)
    return allowed and not denied and (turn.model is None or turn.model.tools)


def _there_are_skills(turn: Turn) -> bool:
    from .catalog import skills_for

    return any(found.usable for found in skills_for(turn.vault, turn.home, claude=turn.config.claude))


@tool(domain="read", parallel_safe=True, offered_in=_there_are_skills)
def skill(
    name: Annotated[str, "one of the names listed under Skills"],
    ctx: ToolContext,
    file: Annotated[str, "another file of the skill, as it names it: references/more.md"] = "",
) -> str:
    """Read a skill: how to do something, step by step, as somebody wrote it down."""
    from .catalog import read_page, read_skill

    claude = ctx.config.claude
    if file:
        return read_page(name, file, ctx.vault, ctx.home, claude=claude)
    return read_skill(name, ctx.vault, ctx.home, claude=claude)


@hookimpl
def tools() -> list[Tool]:
    """Offer ``skill``."""
    return [skill]


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow skill``."""
    return [Command("skill", "List and show skills, and report what is wrong with them.", _cli)]


def _cli() -> object:
    from .catalog import group

    return group

"""Agents: a name, a prompt, optionally a model, and the tools and rules that limit what the agent may do."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from ._frozen import Frozen
from .field_types import Between
from .models import Effort
from .verdicts import Rule

EDITORS = ("edit", "multiedit", "write", "apply_patch")
"""The tools that change the text of files. They stand for each other: the model determines which of them it is offered."""


class ModelSettings(Frozen):
    """The model parameters of an agent; ``None`` means the model's default."""

    temperature: Annotated[float, Between(0, 2)] | None = None
    top_p: Annotated[float, Between(0, 1)] | None = None
    max_tokens: Annotated[int, Between(1, 10_000_000)] | None = None
    reasoning_effort: Effort | None = None


class Agent(Frozen):
    """An agent that can work in a session.

    :param mode: ``primary`` agents are chosen by the user, ``subagent`` ones by another agent, ``all`` by both.
    :param prompt: replaces the built-in system prompt if it is not empty.
    :param tools: names or globs of the tools that the agent may use, ``None`` for all; `deny_tools` excludes some of them.
    :param rules: permission rules of its own; they can only narrow a parent's.
    :param internal: made by the host; no file or plugin may use the same id.
    :param source: where the agent was defined, for example the file.
    :param needs: a file or folder of the vault, without which the agent is not offered to other agents.
    """

    id: str
    name: str = ""
    description: str = ""
    mode: Literal["primary", "subagent", "all"] = "primary"
    prompt: str = ""
    model: str | None = None
    settings: ModelSettings = ModelSettings()
    tools: tuple[str, ...] | None = None
    deny_tools: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    hidden: bool = False
    internal: bool = False
    max_steps: int | None = None
    source: str = ""
    needs: str = ""

    def may_use(self, tool: str, domain: str = "") -> bool:
        """Whether `tools` includes the tool of that name and `deny_tools` does not exclude it.

        An agent that may use one of :data:`EDITORS` may use all of them, and a model gets its own. An agent that is denied one
        of them may use no tool of the domain ``edit``.

        :param domain: the domain of the tool; without it, only :data:`EDITORS` are known to edit.
        """
        edits = tool in EDITORS
        if _names(self.deny_tools, tool, *(EDITORS if edits or domain == "edit" else ())):
            return False
        return self.tools is None or _names(self.tools, tool, *(EDITORS if edits else ()))


def _names(patterns: Iterable[str], *tools: str) -> bool:
    return any(fnmatchcase(tool, pattern) for pattern in patterns for tool in tools)

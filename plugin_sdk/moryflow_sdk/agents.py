"""Agents: a name, a prompt, a model if it wants one of its own, and what it may use."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from ._frozen import Frozen
from .field_types import Between
from .verdicts import Rule


class ModelSettings(Frozen):
    """An agent's own parameters; ``None`` means the model's default."""

    temperature: Annotated[float, Between(0, 2)] | None = None
    top_p: Annotated[float, Between(0, 1)] | None = None
    max_tokens: Annotated[int, Between(1, 10_000_000)] | None = None


class Agent(Frozen):
    """Who works in a session.

    :param mode: ``primary`` agents are chosen by a person, ``subagent`` ones by another agent, ``all`` by both.
    :param prompt: replaces the built-in system prompt when not empty.
    :param tools: names or globs the agent may use, ``None`` for all; `deny_tools` takes some away again.
    :param rules: permission rules of its own; they can only narrow a parent's.
    :param internal: made by the host; no file or plugin may take the id.
    :param source: where it was defined, for example the file.
    :param needs: a file or folder of the vault without which other agents are not told of it.
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

    def may_use(self, tool: str) -> bool:
        """Whether `tools` grants the tool of that name and `deny_tools` does not take it away."""
        granted = self.tools is None or _names(tool, self.tools)
        return granted and not _names(tool, self.deny_tools)


def _names(tool: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(tool, pattern) for pattern in patterns)

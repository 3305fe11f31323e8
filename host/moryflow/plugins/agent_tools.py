"""The tools that the user's agents name: those that other systems call differently, and names that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from moryflow_sdk import Agent
from moryflow_sdk.support.foreign_names import is_known, is_of_server, plain_name, same_tools
from moryflow_sdk.support.texts import did_you_mean

from .registration import at

# A sentence, with file and line.
Note = tuple[str, str, int]


def with_tools(agent: Agent, tools: Iterable[str], *, complete: bool) -> tuple[Agent, list[Note]]:
    """Return the agent with the tools that its names mean, and a note on each name that means nothing.

    A name that takes away nothing here takes away all tools: nobody knows what its author wanted to forbid.

    :param complete: whether `tools` are all tools; if not, nothing is said of names that may be those of the others.
    """
    known = sorted(tools)
    denied = [*agent.deny_tools, *(tool for name in agent.deny_tools for tool in same_tools(name, known))]
    if lost := list(_unknown(agent.deny_tools, known)):
        denied.append("*")
    allowed = agent.tools
    if allowed is not None:
        allowed = (*allowed, *(tool for name in allowed if not is_known(name) for tool in same_tools(name, known)))
    notes = [_note(agent, name, " to take away, so the agent gets none", known) for name in lost]
    if complete:
        notes += [_note(agent, name, "", known) for name in _unknown(agent.tools or (), known)]
    unique = None if allowed is None else tuple(dict.fromkeys(allowed))
    return agent.replace(tools=unique, deny_tools=tuple(dict.fromkeys(denied))), notes


def _unknown(names: Iterable[str], known: list[str]) -> Iterator[str]:
    spelled = {plain_name(tool) for tool in known}
    for name in names:
        if not (plain_name(name) in spelled or is_known(name) or is_of_server(name) or same_tools(name, known)):
            yield name


def _note(agent: Agent, name: str, effect: str, known: list[str]) -> Note:
    line = _line_of(agent.source, name)
    hint = did_you_mean(name.lower(), known)
    text = f"{at(agent.source, line)}tools: there is no tool {name!a:.80}{effect}{hint}; next: moryflow agent check"
    return text, agent.source, line


def _line_of(file: str, name: str) -> int:
    try:
        lines = Path(file).read_text("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return 0
    return next((number for number, line in enumerate(lines, 1) if name in line), 0)

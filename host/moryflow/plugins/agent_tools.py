"""Report names in an agent's tool list that no tool has: a typing mistake would silently take a tool away."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

from moryflow_sdk import Agent

from .load_failures import at

_GLOB = frozenset("*?[")


def unknown_tools(agent: Agent, tools: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Yield a sentence, with file and line, for each name that is no tool; a glob may be about tools that will come."""
    known = sorted(tools)
    for name in _written(dict.fromkeys((*(agent.tools or ()), *agent.deny_tools)), known):
        near = get_close_matches(name.lower(), known, n=1)
        line = _line(agent.source, name)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        text = f"{at(agent.source, line)}tools: there is no tool {name!a:.80}{hint}; next: moryflow agent check"
        yield text, agent.source, line


def _written(names: Iterable[str], known: Container[str]) -> Iterator[str]:
    """Yield the names that are no tool, as the file has them: of ``Gerp`` the agent has ``gerp`` too."""
    missing = [name for name in names if name not in known and not _GLOB & set(name)]
    spoken = {name.replace("_", "").casefold() for name in missing if name[:1].isupper()}
    present = {name.replace("_", "").casefold() for name in names if name in known}
    for name in missing:
        same = name.replace("_", "").casefold()
        if same not in present and (name[:1].isupper() or same not in spoken):
            yield name


def _line(file: str, name: str) -> int:
    try:
        lines = Path(file).read_text("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return 0
    return next((number for number, line in enumerate(lines, 1) if name in line), 0)

"""What a truncated result says: to the model, where the rest is and which tool reads it; to people, a mark."""

from __future__ import annotations

from fnmatch import fnmatchcase

from moryflow_sdk import Agent

from .cut import Limits, Preview

ASK_FOR_LESS = "ask for less: a narrower question, a filter, a smaller range"
LINE_NUMBER_BYTES = 10
"""What a reading tool may add to each line; a page it returns should stay within its own limit."""


def notice(shown: Preview, size: int, lines: int | None, rest: str) -> str:
    """Return the text below a preview: how much is shown of `size` bytes and `lines`, then `rest`."""
    end = "first" if not shown.tail else "last" if not shown.head else "first and last"
    total = "" if lines is None else f" of {lines:,}"
    return f"[Output truncated: the {end} {shown.lines:,}{total} lines, {human(shown.bytes)} of {human(size)}.\n{rest}]"


def stored_rest(path: str, shown: Preview, size: int, lines: int | None, reading: Limits, agent: Agent) -> str:
    """Say where the whole output is and how this agent can go on; names only tools it may use."""
    ways: list[str] = []
    page = _page(size, lines, shown, reading)
    if may_use(agent, "read") and page:
        start = shown.head.count("\n") + 1 if shown.head else 1
        ways.append(f"`read` it with offset {start} and limit {page}")
    if may_use(agent, "grep"):
        ways.append("search it with `grep`")
    return f"Full output: {path}\nNext: {', or '.join(ways) or ASK_FOR_LESS}."


def lost_rest(reason: str) -> str:
    """Say that the rest could not be stored."""
    return f"The rest could not be stored and is lost: {reason}.\nNext: {ASK_FOR_LESS}."


def page_rest(path: str) -> str:
    """Say that this was a part of an output that is stored already."""
    return f"This is part of a stored output: {path}\nNext: ask for a smaller part: a smaller limit or a narrower pattern."


def marks(output_id: str | None) -> dict[str, str]:
    """Return the mark that people see, by interface language."""
    if output_id is None:
        return {"en": "truncated; the rest is lost", "zh": "已截断；其余内容已丢失"}
    see = f"moryflow output show {output_id}"
    return {"en": f"truncated; full output: {see}", "zh": f"已截断；查看完整输出：{see}"}


def may_use(agent: Agent, tool: str) -> bool:
    """Whether `agent` is offered `tool`."""
    granted = agent.tools is None or any(fnmatchcase(tool, pattern) for pattern in agent.tools)
    return granted and not any(fnmatchcase(tool, pattern) for pattern in agent.deny_tools)


def human(size: int) -> str:
    """Return a size as people write it."""
    if size < 1024:
        return f"{size} bytes"
    value = size / 1024
    for unit in ("KB", "MB"):
        if value < 1024:
            return f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} GB"


def _page(size: int, lines: int | None, shown: Preview, reading: Limits) -> int:
    """Return how many lines of this output fit into one reading, with room for a heading; 0 when not even one does."""
    average = size / lines if lines else shown.bytes / max(shown.lines, 1)
    return min(max(reading.lines * 9 // 10, 1), int(reading.bytes * 0.8 / (average + LINE_NUMBER_BYTES)))

"""``session show --stats``: the counts of a session for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moryflow.cli.terminal.text import columns


def stats_text(stats: Mapping[str, Any]) -> str:
    """Return the counts for people."""
    usage, below, asked = stats["usage"], stats["sub_agents"], stats["questions"]
    tokens = f"{usage['input']} in ({usage['cached']} cached), {usage['output']} out, cost {stats['cost']:g}"
    rows = [
        ("turns", f"{stats['turns']} ({_listed(stats['ends'])})"),
        ("steps", f"{stats['steps']} of its own"),
        ("tokens", f"{tokens}, sub-agents included"),
        ("sub-agents", f"{below['sessions']} sessions, {below['steps']} steps, {below['share']:.0%} of the tokens"),
        (
            "questions",
            f"{asked['asked']} ({_listed(asked['answers'])}), waited {asked['waited_seconds']:g} s"
            if asked["asked"]
            else "none",
        ),
        ("compactions", _listed(stats["compactions"]) or "none"),
    ]
    rows += share_rows(stats)
    tools = [(f"  {tool}", _listed(counts)) for tool, counts in stats["tools"].items()]
    hooks = [
        (f"  {hook}", f"{count['calls']:g} calls, {count['ms']:g} ms, {count['failed']:g} failed")
        for hook, count in stats["hooks"].items()
    ]
    return "\n".join([columns(rows), "tools", columns(tools) or "  none", "hooks", columns(hooks) or "  none"])


def share_rows(stats: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the counts as rows for people."""
    rules, sums, mcp, found = stats["instructions"], stats["summaries"], stats["mcp"], stats["searches"]
    caught = "; ".join(f"{tool}: {_counted(counts)}" for tool, counts in stats["intercepted"].items())
    rows = [
        ("intercepted", caught or "nothing"),
        ("instructions", f"{rules['files']} files, about {rules['tokens']} tokens sent, {rules['share']:.0%} of the input"),
        ("searches", f"{found['hits']} found something, {found['misses']} nothing"),
        ("outputs", f"{stats['outputs']['shown']}, {stats['outputs']['cut']} cut"),
        ("events", f"{sum(stats['events'].values())} of {len(stats['events'])} types"),
    ]
    if sums["made"]:
        after = f"{sums['completed_after']} of {sums['turns_after']} turns after the first completed"
        rows.append(("summaries", f"{sums['made']} made, {sums['undone']} undone, {after}"))
    if mcp["calls"]:
        rows.append(("MCP", f"{mcp['calls']} calls, {mcp['share']:.0%} of the output's tokens, {mcp['cut']} cut"))
    return rows


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())

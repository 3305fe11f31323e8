"""What gates, instructions, summaries, servers and searches did in a session, and their share of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CHARS_PER_TOKEN = 4
_SEARCHES = {"grep": "matches", "search_in_file": "matches", "glob": "files"}


def intercepted(calls: Iterable[Any], approvals: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Return by tool how many calls a rule refused, and how many a person was asked about."""
    counts: dict[str, Counter[str]] = {}
    for call in calls:
        if call.decision in ("deny", "stop"):
            counts.setdefault(call.tool, Counter()).update(["refused"])
    for row in approvals:
        counts.setdefault(str(row.request.get("tool", row.kind)), Counter()).update(["asked"])
    return {tool: dict(count) for tool, count in sorted(counts.items())}


def instructions(state: Mapping[tuple[str, str], Any], ledger: Iterable[Any], runs: Sequence[Any]) -> dict[str, Any]:
    """Return how many instruction files were read, and which part of all input tokens they were, by estimate."""
    kept = state.get(("instructions", "session")) or {}
    steps = {run.id: run.steps for run in runs}
    sent = [
        sum(block.get("chars", 0) for block in row.delta.get("blocks", ())) * steps.get(row.turn, 0)
        for row in ledger
        if row.plugin == "instructions" and row.hook == "system_blocks" and row.delta
    ]
    whole = sum(run.usage.get("input", 0) for run in runs)
    tokens = sum(sent) // CHARS_PER_TOKEN
    return {
        "files": len(kept.get("files", ())) + len(kept.get("told", ())),
        "tokens": tokens,
        "share": min(1.0, round(tokens / whole, 3)) if whole else 0.0,
    }


def summaries(nodes: Sequence[Any], runs: Iterable[Any]) -> dict[str, int]:
    """Return how many summaries were made and taken back, and how the turns behind the first one ended."""
    made = [node for node in nodes if node.kind == "compaction"]
    undone = sum(node.kind == "marker" and "void" in node.payload for node in nodes)
    after = [run for run in runs if made and run.purpose in ("main", "child") and run.started > made[0].created]
    completed = sum(run.end_reason == "completed" for run in after)
    return {"made": len(made), "undone": undone, "turns_after": len(after), "completed_after": completed}


def servers(nodes: Iterable[Any], events: Iterable[Any]) -> dict[str, Any]:
    """Return how many calls went to MCP servers, their share of all tool output, and how often it was cut."""
    theirs = {event.data.get("call_id") for event in events if event.type == "tool.start" and event.data.get("domain") == "mcp"}
    outputs = [node for node in nodes if node.kind == "tool"]
    own = [node for node in outputs if node.payload.get("call_id") in theirs]
    whole, part = sum(node.tokens for node in outputs), sum(node.tokens for node in own)
    cut = sum(bool(node.payload.get("truncated")) for node in own)
    return {"calls": len(own), "tokens": part, "share": round(part / whole, 3) if whole else 0.0, "cut": cut}


def searches(nodes: Iterable[Any]) -> dict[str, int]:
    """Return how many searches found something, and how many nothing."""
    found = [
        bool((node.payload.get("metadata") or {}).get(_SEARCHES[node.payload["tool"]]))
        for node in nodes
        if node.kind == "tool" and node.payload.get("tool") in _SEARCHES and node.payload.get("status") == "ok"
    ]
    return {"hits": sum(found), "misses": len(found) - sum(found)}


def outputs(nodes: Iterable[Any]) -> dict[str, int]:
    """Return how many tool outputs there are, and how many were too long and cut."""
    told = [node for node in nodes if node.kind == "tool"]
    return {"shown": len(told), "cut": sum(bool(node.payload.get("truncated")) for node in told)}


def events_by_type(events: Iterable[Any]) -> dict[str, int]:
    """Return how many durable events of each type were recorded."""
    return dict(sorted(Counter(event.type for event in events).items()))


def told(stats: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the counts as rows for people."""
    rules, sums, mcp, found = stats["instructions"], stats["summaries"], stats["mcp"], stats["searches"]
    caught = "; ".join(f"{tool}: {_listed(counts)}" for tool, counts in stats["intercepted"].items())
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


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())

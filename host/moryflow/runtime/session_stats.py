"""``session show --stats``: counts from a session's runs, calls, questions and ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from moryflow_sdk import thaw

if TYPE_CHECKING:
    from moryflow_sdk import Event

    from moryflow.store import ApprovalRow, CallRow, HookCallRow, Node, RunRow, SessionRow, Store

CHARS_PER_TOKEN = 4
_SEARCHES = {"grep": "matches", "search_in_file": "matches", "glob": "files"}


def interceptions(calls: Iterable[CallRow], approvals: Iterable[ApprovalRow]) -> dict[str, dict[str, int]]:
    """Return by tool how many calls a rule refused, and how many the user was asked about."""
    counts: dict[str, Counter[str]] = {}
    for call in calls:
        if call.decision in ("deny", "stop"):
            counts.setdefault(call.tool, Counter()).update(["refused"])
    for row in approvals:
        counts.setdefault(str(row.request.get("tool", row.kind)), Counter()).update(["asked"])
    return {tool: dict(count) for tool, count in sorted(counts.items())}


def instructions(state: Mapping[tuple[str, str], Any], ledger: Iterable[HookCallRow], runs: Sequence[RunRow]) -> dict[str, Any]:
    """Return how many instruction files were read, and an estimate of their share of all input tokens."""
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


def summaries(nodes: Sequence[Node], runs: Iterable[RunRow]) -> dict[str, int]:
    """Return how many summaries were made and undone, and how many turns after the first summary completed."""
    made = [node for node in nodes if node.kind == "compaction"]
    undone = sum(node.voids for node in nodes)
    after = [run for run in runs if made and run.purpose in ("main", "child") and run.started > made[0].created]
    completed = sum(run.end_reason == "completed" for run in after)
    return {"made": len(made), "undone": undone, "turns_after": len(after), "completed_after": completed}


def servers(nodes: Iterable[Node], events: Iterable[Event]) -> dict[str, Any]:
    """Return how many calls went to MCP servers, their share of all tool output, and how many of their results were cut."""
    mcp_calls = {
        event.data.get("call_id") for event in events if event.type == "tool.start" and event.data.get("domain") == "mcp"
    }
    outputs = [node for node in nodes if node.kind == "tool"]
    own = [node for node in outputs if node.payload.get("call_id") in mcp_calls]
    whole, part = sum(node.tokens for node in outputs), sum(node.tokens for node in own)
    cut = sum(bool(node.payload.get("truncated")) for node in own)
    return {"calls": len(own), "tokens": part, "share": round(part / whole, 3) if whole else 0.0, "cut": cut}


def searches(nodes: Iterable[Node]) -> dict[str, int]:
    """Return how many searches found something, and how many found nothing."""
    found = [
        bool((node.payload.get("metadata") or {}).get(_SEARCHES[node.payload["tool"]]))
        for node in nodes
        if node.kind == "tool" and node.payload.get("tool") in _SEARCHES and node.payload.get("status") == "ok"
    ]
    return {"hits": sum(found), "misses": len(found) - sum(found)}


def outputs(nodes: Iterable[Node]) -> dict[str, int]:
    """Return how many tool outputs there are, and how many were too long and cut."""
    results = [node for node in nodes if node.kind == "tool"]
    return {"shown": len(results), "cut": sum(bool(node.payload.get("truncated")) for node in results)}


async def collect_stats(store: Store, row: SessionRow) -> dict[str, Any]:
    """Return the counts of a session with its sub-agents, whose turns and steps are counted separately."""
    family = await store.family(row.id)
    own, child_runs = await store.runs(row.id), [run for child in family[1:] for run in await store.runs(child)]
    calls = [call for id in family for call in await store.calls(session=id)]
    approvals = [asked for id in family for asked in await store.approvals(session=id)]
    nodes = [node for id in family for node in await store.nodes(id)]
    ledger = [line for id in family for line in await store.hook_calls(id)]
    events = [event for id in family for event in await store.events(id)]
    whole, lower = _usage_of(own), _usage_of(child_runs)
    turns = [run for run in own if not run.is_compaction]
    return {
        "session": row.id,
        "turns": len(turns),
        "ends": dict(Counter(run.end_reason or run.state for run in turns)),
        **whole,
        "sub_agents": {
            "sessions": len(family) - 1,
            "turns": sum(not run.is_compaction for run in child_runs),
            **lower,
            "share": _share(lower, whole),
        },
        "tools": _tools(calls),
        "intercepted": interceptions(calls, approvals),
        "questions": _questions(approvals),
        "instructions": instructions(await store.plugin_state(row.id), await store.hook_calls(row.id), own),
        "summaries": summaries([node for node in nodes if node.session == row.id], own),
        "searches": searches(nodes),
        "outputs": outputs(nodes),
        "mcp": servers(nodes, events),
        "events": dict(sorted(Counter(event.type for event in events).items())),
        "compactions": dict(Counter(node.kind for node in nodes if node.kind in ("compaction", "prune"))),
        "hooks": _hooks(ledger),
    }


async def collect_outcomes(store: Store, row: SessionRow) -> dict[str, Any]:
    """Return what a session's events know beyond its nodes: duration of calls, tokens after compactions, errors of turns."""
    calls: dict[str, Any] = {}
    compactions: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    for event in await store.events(row.id, types=("tool.result", "compaction", "error")):
        match event.type:
            case "tool.result":
                calls[str(event.data.get("call_id"))] = event.data.get("ms")
            case "error":
                errors[event.turn or ""] = thaw(event.data)
            case _ if event.data.get("state") == "done":
                compactions[str(event.data.get("run"))] = event.data.get("tokens_after")
            case _:
                pass
    return {"calls": calls, "compactions": compactions, "errors": errors}


async def onboarding(store: Store) -> float | None:
    """Return the seconds from the first session to the end of the first turn that was completed; ``None`` before that."""
    rows = sorted(await store.sessions(1000), key=lambda row: row.created)
    for row in rows:
        ended = [run.ended for run in await store.runs(row.id) if run.end_reason == "completed" and run.ended]
        if ended:
            return round(_seconds(rows[0].created, min(ended)), 1)
    return None


def _usage_of(runs: Iterable[RunRow]) -> dict[str, Any]:
    usage: Counter[str] = Counter()
    cost, steps = 0.0, 0
    for run in runs:
        usage.update({key: run.usage.get(key, 0) for key in ("input", "output", "cached")})
        cost += run.cost or 0.0
        steps += run.steps
    return {"steps": steps, "usage": {key: usage[key] for key in ("input", "output", "cached")}, "cost": round(cost, 6)}


def _share(lower: Mapping[str, Any], whole: Mapping[str, Any]) -> float:
    """Return the sub-agents' share of the session's tokens; `whole` includes theirs."""
    total = whole["usage"]["input"] + whole["usage"]["output"]
    return round((lower["usage"]["input"] + lower["usage"]["output"]) / total, 3) if total else 0.0


def _tools(calls: Iterable[CallRow]) -> dict[str, dict[str, int]]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for call in calls:
        refused = call.decision in ("deny", "stop")
        counts[call.tool].update(["refused" if refused else call.state])
    return {tool: dict(count) for tool, count in sorted(counts.items())}


def _questions(approvals: Sequence[ApprovalRow]) -> dict[str, Any]:
    answers = Counter(row.reply or row.state for row in approvals)
    waited = [_seconds(row.created, row.replied_at) for row in approvals if row.replied_at]
    return {"asked": len(approvals), "answers": dict(answers), "waited_seconds": round(sum(waited), 1)}


def _seconds(begun: str, ended: str) -> float:
    return max(0.0, (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds())


def _hooks(ledger: Iterable[HookCallRow]) -> dict[str, dict[str, float]]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in ledger:
        bad = row.count if row.outcome in ("failed", "timeout", "quarantined", "withheld") else 0
        counts[row.hook].update(calls=row.count, us=row.us, failed=bad)
    return {
        hook: {"calls": count["calls"], "ms": round(count["us"] / 1000, 1), "failed": count["failed"]}
        for hook, count in sorted(counts.items())
    }

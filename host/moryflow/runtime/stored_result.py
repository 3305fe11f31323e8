"""The result of a turn as the store knows it, for whoever asks when the process that ran it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Usage

from .turn_result import TurnResult

if TYPE_CHECKING:
    from moryflow.store import RunRow, Store


async def stored_result(store: Store, run: RunRow) -> TurnResult:
    """Return what a turn gave, with what its sub-agents met; one that was never written to its end was interrupted.

    An answer that was held against a schema is not: the schema is not stored.
    """
    below = [child for child in await _children(store, run) if not child.is_compaction]
    until = await _until(store, run)
    nodes = [node for node in await store.nodes(run.session) if node.kind == "assistant"]
    said = [node for node in nodes if run.started <= node.created <= until]
    last = said[-1].payload if said else {}
    denied = [*await _denied(store, run), *[one for child in below for one in await _denied(store, child, placed=True)]]
    reason: Any = run.end_reason or "interrupted"
    return TurnResult(
        session=run.session,
        end_reason=reason,
        text=str(last.get("text") or ""),
        usage=Usage(**run.usage),
        cost=run.cost,
        steps=run.steps + sum(child.steps for child in below),
        denied=tuple(denied),
        unasked=any(one["cause"] == "headless" for one in denied),
        finish=str(last.get("finish") or ""),
    )


async def _children(store: Store, run: RunRow) -> Sequence[RunRow]:
    """Return the turns that sub-agents ran for a turn, at any depth."""
    found: list[RunRow] = []
    until = await _until(store, run)
    for child in await store.sessions(1000, purpose=None, parent=run.session):
        own = [one for one in await store.runs(child.id) if run.started <= one.started <= until]
        for one in own:
            found += [one, *await _children(store, one)]
    return found


async def _until(store: Store, run: RunRow) -> str:
    """Return when the next turn of the session began: one runs at a time, and what a turn says is stored before that."""
    turns = [one for one in await store.runs(run.session) if not one.is_compaction]
    return min((one.started for one in turns if one.started > run.started), default="~")


async def _denied(store: Store, run: RunRow, *, placed: bool = False) -> list[dict[str, Any]]:
    """Return the calls of a turn that were refused, as its result lists them; with `placed`, whose they were."""
    calls = {call.id: call for call in await store.calls(run.session) if call.turn == run.id}
    found: list[dict[str, Any]] = []
    for event in await store.events(run.session, types=("tool.result",)):
        call = calls.get(str(event.data["call_id"]))
        if call is None or event.turn != run.id or "targets" not in event.data:
            continue
        ruling = call.ruling or {}
        about = {name: event.data[name] for name in ("call_id", "tool")} | {"targets": list(event.data["targets"])}
        about["cause"] = call.cause or "user"
        about["reason"] = event.data["output"] if event.data["status"] == "denied" else ruling.get("reason", "")
        kept = [one for one in ruling.get("remember", ()) if one.get("scope") == "user"]
        about["rules"] = [{"domain": one["domain"], "pattern": one["pattern"]} for one in kept]
        found.append(({"session": run.session, "agent": run.agent} if placed else {}) | about)
    return found

"""Processes of calls that a killed host left running: find them by their marks and end them before the session goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from moryflow_sdk.support.processes import end_marked

from moryflow.base.child_processes import call_mark
from moryflow.kernel.limits import LeftoverProcesses
from moryflow.store import Store

POLITE_SECONDS = 1.0
SETTLE_SECONDS = 0.2
_UNKNOWN = "programs that it had started may still run: this system does not tell"


async def end_leftovers(store: Store, home: Path, session: str, spawning: str) -> LeftoverProcesses:
    """End what calls of `session`, and of the sub-agents below it that nobody works for, have left running.

    :param spawning: the tool whose calls answer for what sub-agents left.
    """
    begun = await store.calls(states=("running", "pending"))
    family = set(await store.family(session)) if begun else set()
    rows = [row for row in begun if row.session in family and (row.session == session or not store.seems_held(row.session))]
    if not rows:
        return LeftoverProcesses()
    marks = {call_mark(home, row.session, row.node, row.id): row for row in rows}
    counts = await asyncio.to_thread(end_marked, marks, polite=POLITE_SECONDS, settle=SETTLE_SECONDS)
    own = [row for row in rows if row.session == session and row.state == "running"]
    if counts is None:
        return LeftoverProcesses({row.id: _UNKNOWN for row in own}, _UNKNOWN if own else "", own)
    ended = {row.id: counts[mark] for mark, row in marks.items() if row.session == session and counts.get(mark)}
    below = sum(counts.get(mark, 0) for mark, row in marks.items() if row.session != session)
    by_call = {call: _ended(count, "it") for call, count in ended.items()}
    if below:
        by_call |= {row.id: _ended(below, "its sub-agents") for row in own if row.tool == spawning}
    return LeftoverProcesses(by_call, _notice({row.tool for row in rows}, sum(ended.values()) + below), own)


def _ended(count: int, starter: str) -> str:
    return f"{_processes(count)} that {starter} had started still ran and {_were(count)} ended"


def _notice(tools: set[str], count: int) -> str:
    if not count:
        return ""
    return f"the host was ended while {', '.join(sorted(tools))} ran; {_processes(count)} that still ran {_were(count)} ended"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"

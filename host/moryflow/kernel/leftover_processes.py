"""Processes of calls that a killed host left running: find them by their marks and end them before the session goes on."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from moryflow_sdk.processes import end_marked

from moryflow.store import CallRow, Store

POLITE_SECONDS = 1.0
SETTLE_SECONDS = 0.2
_UNKNOWN = "programs that it had started may still run: this system does not tell"


class LeftoverProcesses(NamedTuple):
    """What was found; nothing, as a rule.

    :ivar by_call: what the result of an interrupted call says of it, by the call's id.
    :ivar notice: what the person is told.
    :ivar calls: the session's own calls that had begun and never ended.
    """

    by_call: Mapping[str, str] = {}
    notice: str = ""
    calls: Sequence[CallRow] = ()


def call_mark(home: Path, session: str, node: str, call: str) -> str:
    """Return what the processes of a call carry. It follows from what is recorded of the call before it runs."""
    return hashlib.sha256("\0".join((str(home.resolve()), session, node, call)).encode()).hexdigest()[:32]


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
    by_call = {
        call: f"{_processes(count)} that it had started still ran and {_were(count)} ended" for call, count in ended.items()
    }
    if below:
        told = f"{_processes(below)} that its sub-agents had started still ran and {_were(below)} ended"
        by_call |= {row.id: told for row in own if row.tool == spawning}
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

"""Forget what deleted sessions changed: their records, and the contents of files that nothing else leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from moryflow_sdk import ToolError, Turn

from .joining import found_for
from .records import Records, Taken
from .shadow import Shadow
from .taking import shadow_of


async def forget(turn: Turn, sessions: Sequence[str], heirs: Mapping[str, Sequence[str]]) -> None:
    """Remove what is recorded of `sessions`, but for the nodes that `heirs` were made with."""
    try:
        await asyncio.to_thread(_forget, shadow_of(turn), sessions, heirs)
    except (ToolError, OSError) as error:
        turn.emit("notice", text=f"recorded contents of files were not removed: {error}")


def _forget(shadow: Shadow, sessions: Sequence[str], heirs: Mapping[str, Sequence[str]]) -> None:
    if not shadow.folder.exists():
        return
    mine = [records for session in sessions if (records := Records(shadow.folder, session)).exist]
    for heir, nodes in heirs.items():
        _hand_over(shadow, heir, nodes, sessions)
    if not mine:
        return
    youngest = max(records.changed for records in mine)
    forgotten = {tree for records in mine for tree in _trees(records)}
    for records in mine:
        records.clear()
    kept = {tree for name in _recorded(shadow) for tree in _trees(Records(shadow.folder, name))}
    shadow.prune(kept, forgotten - kept, youngest)


def _hand_over(shadow: Shadow, heir: str, nodes: Sequence[str], gone: Sequence[str]) -> None:
    """Copy to `heir` what any session recorded of `nodes`, as if its own calls had done what those of sub-agents did."""
    taken = set(gone)
    for name in _recorded(shadow):
        log = Records(shadow.folder, name).log()
        found = {node: found_for(shadow, (name,), (node,)) for node in log.nodes().intersection(nodes) if name != heir}
        for node, of_node in found.items():
            for line in (*of_node.segments, *of_node.gaps):
                Records(shadow.folder, heir).add(replace(line, node=node))
        if found or name in gone:
            taken |= {name, *log.taken}
    for name in sorted(taken):
        Records(shadow.folder, heir).add(Taken(name))


def _recorded(shadow: Shadow) -> Sequence[str]:
    return [file.stem for file in (shadow.folder / "sessions").glob("*.jsonl")]


def _trees(records: Records) -> Sequence[str]:
    segments = records.log().segments.values()
    return [tree for segment in segments for tree in (segment.before, segment.after) if tree]

"""Record what the calls of a step change: a snapshot before and after them, and the names of what they say they write.

The time between two calls, in which a person may be asked and may save files of their own, lies in no segment: a command
that may write what it likes has one of its own, and the names tell the files of the others apart from a person's.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moryflow_sdk import Target, ToolError, Turn

from .journal import Begun, Gap, JournalFiles, JournalLine, Segment, SpawnLink, Taken, found_for
from .shadow import Shadow, VaultTree

_FRESH = 1.0
"""Seconds for which a snapshot counts as the state right before a call."""


def shadow_of(turn: Turn) -> Shadow:
    return Shadow(turn.data_dir, turn.vault, turn.config, home=turn.home)


async def begin(turn: Turn, call: str, tool: str, domain: str) -> None:
    """Note that `call` is about to run; where no snapshot shows the files as they are now, take one."""
    if "off" in turn.session_state:
        _write(turn, Gap(turn.node, turn.id, turn.session_state["off"]))
        return
    command = domain != "edit"
    segment = _open(turn)
    if segment is None or _is_stale(segment, command):
        segment = await _next_segment(turn)
    if segment is None:
        return
    if not segment["used"]:
        segment["used"] = True
        _write(turn, Segment(turn.node, turn.id, segment["tree"], segment["number"]))
    if command:
        segment["running"].append(call)
        segment["commands"] = sorted({*segment["commands"], tool})


def name(turn: Turn, targets: Iterable[Target]) -> None:
    """Note which files a call that has ended said it would write."""
    segment = _open(turn)
    if segment is None:
        return
    for target in targets:
        if target.domain == "edit" and target.path is not None:
            segment["named"] |= dict.fromkeys(_spellings(turn.vault, target), "")


async def end(turn: Turn, call: str) -> None:
    """Note that `call` has ended: how it left the files it named, or, after a command, all of them."""
    segment = _open(turn)
    if segment is None:
        return
    if call not in segment["running"]:
        segment["named"] |= {path: _state_of(turn.vault / path) for path, seen in segment["named"].items() if not seen}
        return
    segment["running"].remove(call)
    if not segment["running"]:
        await _next_segment(turn)


async def finish(turn: Turn) -> None:
    """Record the files as the step left them."""
    segment = _open(turn)
    turn.state.pop("segment", None)
    if segment is not None and segment["used"] and (taken := await _taken(turn)):
        _close(turn, segment, taken)


def mark(turn: Turn) -> JournalFiles:
    """Return the records of the turn's session, which knows from now on that it has some: an export takes that along."""
    kept: list[str] = turn.session_state.setdefault("recorded_as", [])
    records = JournalFiles(shadow_of(turn).folder, turn.session)
    if not records.exist:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        records.add(Begun(turn.node, now, tuple(kept)))
    if turn.session not in kept:  # a fork or an import has what the session it was made from recorded
        kept.append(turn.session)
    return records


def link(turn: Turn, *, over: bool = False) -> None:
    """Note in the session that started this turn that it did, so that its undo takes this turn's changes along."""
    if turn.spawned is not None and turn.parent is not None:
        by = turn.spawned
        line = SpawnLink(by.node, by.turn, turn.session, turn.id, turn.agent.id, os.getpid(), over)
        JournalFiles(shadow_of(turn).folder, turn.parent).add(line)


def switched_off(turn: Turn) -> None:
    """Note that a step may change files while the configuration wants nothing recorded."""
    _write(turn, Gap(turn.node, turn.id, "agents.runtime.snapshots.enabled was false"))


# -------------------------------------------------------------------- inside


def _open(turn: Turn) -> dict[str, Any] | None:
    """Return the segment of this turn that is open; one that a killed host left is not ours."""
    found = turn.state.get("segment")
    return found if found and found["turn"] == turn.id and found["node"] == turn.node else None


def _is_stale(segment: dict[str, Any], command: bool) -> bool:
    """Whether files may have changed since the snapshot that no call of the segment accounts for."""
    if segment["running"]:
        return False
    return (command and segment["used"]) or abs(time.time() - segment["at"]) > _FRESH


async def _next_segment(turn: Turn) -> dict[str, Any] | None:
    """End the open segment, and begin another with the files as they are now."""
    before = _open(turn)
    taken = await _taken(turn)
    if taken is None:
        turn.state.pop("segment", None)
        return None
    if before is not None and before["used"]:
        _close(turn, before, taken)
    turn.state["segment"] = {
        "turn": turn.id, "node": turn.node, "tree": taken.tree, "number": taken.number, "at": time.time(),
        "used": False, "running": [], "commands": [], "named": {},
    }  # fmt: skip
    return turn.state["segment"]


async def _taken(turn: Turn) -> VaultTree | None:
    """Take a snapshot; where that is not possible, say so and leave it for the rest of the session."""
    taking = asyncio.create_task(asyncio.to_thread(shadow_of(turn).snapshot))
    if not (await asyncio.wait((taking,), timeout=1.0))[0]:
        turn.emit("notice", text=f"recording the files of {turn.vault}, so that changes can be undone")
    try:
        return await taking
    except (ToolError, OSError) as error:
        reason = turn.session_state["off"] = str(error)
        turn.emit("notice", text=f"changes to files cannot be undone in this session: {reason}")
        _write(turn, Gap(turn.node, turn.id, reason))
        return None


def _close(turn: Turn, segment: dict[str, Any], taken: VaultTree) -> None:
    named: dict[str, str] = segment["named"]
    mixed = [path for path, seen in named.items() if seen and _state_of(turn.vault / path) != seen]
    _write(
        turn,
        Segment(
            segment["node"], turn.id, segment["tree"], segment["number"], taken.tree, taken.number,
            tuple(sorted(named)), tuple(segment["commands"]), tuple(sorted(mixed)),
        ),
    )  # fmt: skip


def _write(turn: Turn, line: JournalLine) -> None:
    mark(turn).add(line)


def _spellings(vault: Path, target: Target) -> Iterable[str]:
    """Return what `target` may be called in a tree: the file that links lead to, and the name that was given."""
    assert target.path is not None
    path = Path(target.path)
    yield path.relative_to(vault).as_posix() if path.is_relative_to(vault) else str(path)
    if target.lexical and target.lexical.startswith("vault:/"):
        yield target.lexical.removeprefix("vault:/")


def _state_of(path: Path) -> str:
    """Return what changes when somebody writes a file."""
    try:
        found = path.lstat()
    except OSError:
        return "gone"
    return f"{found.st_mtime_ns} {found.st_size} {found.st_ino} {found.st_mode}"


async def forget(turn: Turn, sessions: Sequence[str], heirs: Mapping[str, Sequence[str]]) -> None:
    """Remove what is recorded of `sessions`, but for the nodes that `heirs` were made with."""
    try:
        await asyncio.to_thread(_forget, shadow_of(turn), sessions, heirs)
    except (ToolError, OSError) as error:
        turn.emit("notice", text=f"recorded contents of files were not removed: {error}")


def _forget(shadow: Shadow, sessions: Sequence[str], heirs: Mapping[str, Sequence[str]]) -> None:
    if not shadow.folder.exists():
        return
    mine = [records for session in sessions if (records := JournalFiles(shadow.folder, session)).exist]
    for heir, nodes in heirs.items():
        _hand_over(shadow, heir, nodes, sessions)
    if not mine:
        return
    youngest = max(records.changed for records in mine)
    forgotten = {tree for records in mine for tree in _trees(records)}
    for records in mine:
        records.clear()
    kept = {tree for name in _recorded(shadow) for tree in _trees(JournalFiles(shadow.folder, name))}
    shadow.prune(kept, forgotten - kept, youngest)


def _hand_over(shadow: Shadow, heir: str, nodes: Sequence[str], gone: Sequence[str]) -> None:
    """Copy to `heir` what any session recorded of `nodes`, as if its own calls had done what those of sub-agents did."""
    taken = set(gone)
    for name in _recorded(shadow):
        log = JournalFiles(shadow.folder, name).log()
        found = {node: found_for(shadow, (name,), (node,)) for node in log.nodes().intersection(nodes) if name != heir}
        for node, of_node in found.items():
            for line in (*of_node.segments, *of_node.gaps):
                JournalFiles(shadow.folder, heir).add(line._replace(node=node))
        if found or name in gone:
            taken |= {name, *log.taken}
    for name in sorted(taken):
        JournalFiles(shadow.folder, heir).add(Taken(name))


def _recorded(shadow: Shadow) -> Sequence[str]:
    return [file.stem for file in (shadow.folder / "sessions").glob("*.jsonl")]


def _trees(records: JournalFiles) -> Sequence[str]:
    segments = records.log().segments.values()
    return [tree for segment in segments for tree in (segment.before, segment.after) if tree]

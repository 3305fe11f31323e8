"""Record the changes of a step's calls: a snapshot before and after them, and the files that they declare to write.

Between two calls the user may be asked, and may save files. Such a file must not count as the agent's. So a command, which may
write any file, has a segment of its own; the files of other calls are known by their names.
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

from .journal import Begun, Gap, JournalFiles, JournalLine, Segment, SpawnLink, Taken, find_segments
from .shadow import Shadow, VaultTree

_FRESH = 1.0
"""How many seconds a snapshot counts as the state right before a call."""
_SAID_AFTER, _SAID_AGAIN = 1.0, 5.0
"""After how many seconds a snapshot that is being taken is announced, and after how many more again."""


def shadow_of(turn: Turn) -> Shadow:
    return Shadow(turn.data_dir, turn.vault, turn.config, home=turn.home)


async def begin(turn: Turn, call: str, tool: str, domain: str) -> None:
    """Record that `call` is about to run; take a snapshot unless there is a fresh one."""
    if "off" in turn.session_state:
        _write(turn, Gap(turn.node, turn.id, turn.session_state["off"]))
        return
    command = domain != "edit"
    segment = _open_segment(turn)
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


def note_written(turn: Turn, targets: Iterable[Target]) -> None:
    """Record the files that a call, which has ended, declared to write."""
    segment = _open_segment(turn)
    if segment is None:
        return
    for target in targets:
        if target.domain == "edit" and target.path is not None:
            segment["named"] |= dict.fromkeys(_names_in_tree(turn.vault, target), "")


async def end(turn: Turn, call: str) -> None:
    """Record that `call` has ended, with the state of the files it named; after a command, take a snapshot."""
    segment = _open_segment(turn)
    if segment is None:
        return
    if call not in segment["running"]:
        segment["named"] |= {path: _state_of(turn.vault / path) for path, seen in segment["named"].items() if not seen}
        return
    segment["running"].remove(call)
    if not segment["running"]:
        await _next_segment(turn)


async def finish(turn: Turn) -> None:
    """End the open segment of a step with a snapshot of the files."""
    segment = _open_segment(turn)
    turn.state.pop("segment", None)
    if segment is not None and segment["used"] and (snapshot := await _take_snapshot(turn)):
        _close_segment(turn, segment, snapshot)


def open_records(turn: Turn) -> JournalFiles:
    """Return the file of the turn's records, and mark the session as having records; an export includes that mark."""
    kept: list[str] = turn.session_state.setdefault("recorded_as", [])
    records = JournalFiles(shadow_of(turn).folder, turn.session)
    if not records.exist:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        records.add(Begun(turn.node, now, tuple(kept)))
    if turn.session not in kept:  # a fork or an import inherits the list of the session it was made from
        kept.append(turn.session)
    return records


def link(turn: Turn, *, over: bool = False) -> None:
    """Record in the parent session that it started this turn, so its undo includes this turn's changes."""
    if turn.spawned is not None and turn.parent is not None:
        by = turn.spawned
        line = SpawnLink(by.node, by.turn, turn.session, turn.id, turn.agent.id, os.getpid(), over)
        JournalFiles(shadow_of(turn).folder, turn.parent).add(line)


def switched_off(turn: Turn) -> None:
    """Record that a step may change files while recording is switched off in the configuration."""
    _write(turn, Gap(turn.node, turn.id, "agents.runtime.snapshots.enabled was false"))


# -------------------------------------------------------------------- inside


def _open_segment(turn: Turn) -> dict[str, Any] | None:
    """Return the open segment of this step, but not one that a killed host left."""
    found = turn.state.get("segment")
    return found if found and found["turn"] == turn.id and found["node"] == turn.node else None


def _is_stale(segment: dict[str, Any], command: bool) -> bool:
    """Whether files may have changed since the snapshot by something other than the segment's calls."""
    if segment["running"]:
        return False
    return (command and segment["used"]) or abs(time.time() - segment["at"]) > _FRESH


async def _next_segment(turn: Turn) -> dict[str, Any] | None:
    """End the open segment and begin another, both with a snapshot of the files as they are now."""
    before = _open_segment(turn)
    snapshot = await _take_snapshot(turn)
    if snapshot is None:
        turn.state.pop("segment", None)
        return None
    if before is not None and before["used"]:
        _close_segment(turn, before, snapshot)
    turn.state["segment"] = {
        "turn": turn.id, "node": turn.node, "tree": snapshot.tree, "number": snapshot.number, "at": time.time(),
        "used": False, "running": [], "commands": [], "named": {},
    }  # fmt: skip
    return turn.state["segment"]


async def _take_snapshot(turn: Turn) -> VaultTree | None:
    """Take a snapshot; if that fails, emit a notice and record no more files in this session."""
    shadow, began = shadow_of(turn), time.monotonic()
    taking = asyncio.create_task(asyncio.to_thread(shadow.snapshot))
    wait = _SAID_AFTER
    while not (await asyncio.wait((taking,), timeout=wait))[0]:
        count = f"{shadow.changed:,} files" if shadow.changed > 1 else "the files"
        text = f"recording {count} of {turn.vault}, so that changes can be undone"
        turn.emit("notice", text=text if wait == _SAID_AFTER else f"still {text} ({time.monotonic() - began:.0f} s)")
        wait = _SAID_AGAIN
    try:
        return await taking
    except (ToolError, OSError) as error:
        reason = turn.session_state["off"] = str(error)
        turn.emit("notice", text=f"changes to files cannot be undone in this session: {reason}")
        _write(turn, Gap(turn.node, turn.id, reason))
        return None


def _close_segment(turn: Turn, segment: dict[str, Any], snapshot: VaultTree) -> None:
    named: dict[str, str] = segment["named"]
    mixed = [path for path, seen in named.items() if seen and _state_of(turn.vault / path) != seen]
    _write(
        turn,
        Segment(
            segment["node"], turn.id, segment["tree"], segment["number"], snapshot.tree, snapshot.number,
            tuple(sorted(named)), tuple(segment["commands"]), tuple(sorted(mixed)),
        ),
    )  # fmt: skip


def _write(turn: Turn, line: JournalLine) -> None:
    open_records(turn).add(line)


def _names_in_tree(vault: Path, target: Target) -> Iterable[str]:
    """Yield the names that `target` may have in a tree: the file that its links lead to, and the path as given."""
    assert target.path is not None
    path = Path(target.path)
    yield path.relative_to(vault).as_posix() if path.is_relative_to(vault) else str(path)
    if target.lexical and target.lexical.startswith("vault:/"):
        yield target.lexical.removeprefix("vault:/")


def _state_of(path: Path) -> str:
    """Return a text about a file's status that changes whenever the file is written."""
    try:
        found = path.lstat()
    except OSError:
        return "gone"
    return f"{found.st_mtime_ns} {found.st_size} {found.st_ino} {found.st_mode}"


async def forget(turn: Turn, sessions: Sequence[str], heirs: Mapping[str, Sequence[str]]) -> None:
    """Remove the records of `sessions`; those of nodes that other sessions share are first copied to these (`heirs`)."""
    try:
        await asyncio.to_thread(_forget, shadow_of(turn), sessions, heirs)
    except (ToolError, OSError) as error:
        turn.emit("notice", text=f"recorded contents of files were not removed: {error}")


def _forget(shadow: Shadow, sessions: Sequence[str], heirs: Mapping[str, Sequence[str]]) -> None:
    if not shadow.folder.exists():
        return
    mine = [records for session in sessions if (records := JournalFiles(shadow.folder, session)).exist]
    for heir, nodes in heirs.items():
        _copy_records(shadow, heir, nodes, sessions)
    if not mine:
        return
    youngest = max(records.changed for records in mine)
    forgotten = {tree for records in mine for tree in _trees(records)}
    for records in mine:
        records.clear()
    kept = {tree for name in _recorded_sessions(shadow) for tree in _trees(JournalFiles(shadow.folder, name))}
    shadow.prune(kept, forgotten - kept, youngest)


def _copy_records(shadow: Shadow, heir: str, nodes: Sequence[str], gone: Sequence[str]) -> None:
    """Copy the records of `nodes` from all sessions to `heir`; changes of sub-agents become changes of its own calls."""
    taken = set(gone)
    for name in _recorded_sessions(shadow):
        log = JournalFiles(shadow.folder, name).log()
        found = {node: find_segments(shadow, (name,), (node,)) for node in log.nodes().intersection(nodes) if name != heir}
        for node, of_node in found.items():
            for line in (*of_node.segments, *of_node.gaps):
                JournalFiles(shadow.folder, heir).add(line._replace(node=node))
        if found or name in gone:
            taken |= {name, *log.taken}
    for name in sorted(taken):
        JournalFiles(shadow.folder, heir).add(Taken(name))


def _recorded_sessions(shadow: Shadow) -> Sequence[str]:
    return [file.stem for file in (shadow.folder / "sessions").glob("*.jsonl")]


def _trees(records: JournalFiles) -> Sequence[str]:
    segments = records.log().segments.values()
    return [tree for segment in segments for tree in (segment.before, segment.after) if tree]

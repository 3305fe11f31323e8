"""Record the changes of a step's calls: a snapshot before and after them, and the files that they declare to write.

Between two calls the user may be asked, and may save files. Such a file must not count as the agent's. So a command, which may
write any file, has a change of its own; the files of other calls are known by their names.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from moryflow_sdk import Target, ToolError, Turn

from .journal import Change, add, all_changes, changes_in, file_of, of_answers
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
        _not_recorded(turn, turn.session_state["off"])
        return
    command = domain != "edit"
    change = _open_change(turn)
    if change is None or _is_stale(change, command):
        change = await _next_change(turn)
    if change is None:
        return
    if not change["used"]:
        change["used"] = True
        _write(turn, before=change["tree"], began=change["number"])
    if command:
        change["running"].append(call)
        change["commands"] = sorted({*change["commands"], tool})


def note_written(turn: Turn, targets: Iterable[Target]) -> None:
    """Record the files that a call, which has ended, declared to write."""
    change = _open_change(turn)
    if change is None:
        return
    for target in targets:
        if target.domain == "edit" and target.path is not None:
            change["named"] |= dict.fromkeys(_names_in_tree(turn.vault, target), "")


async def end(turn: Turn, call: str) -> None:
    """Record that `call` has ended, with the state of the files it named; after a command, take a snapshot."""
    change = _open_change(turn)
    if change is None:
        return
    if call not in change["running"]:
        change["named"] |= {path: _state_of(turn.vault / path) for path, seen in change["named"].items() if not seen}
        return
    change["running"].remove(call)
    if not change["running"]:
        await _next_change(turn)


async def finish(turn: Turn) -> None:
    """End the open change of a step with a snapshot of the files."""
    change = _open_change(turn)
    turn.state.pop("change", None)
    if change is not None and change["used"] and (snapshot := await _take_snapshot(turn)):
        _close_change(turn, change, snapshot)


def note_subagent(turn: Turn, *, over: bool) -> None:
    """Record that a sub-agent's turn has begun or ended, so that an undo of its parent waits for it."""
    agent = f"{turn.agent.id} {turn.session}"
    _add(turn, Change(turn.id, "", _above(turn), agent=agent, pid=0 if over else os.getpid()))


def switched_off(turn: Turn) -> None:
    """Record that a step may change files while recording is switched off in the configuration."""
    _not_recorded(turn, "agents.runtime.snapshots.enabled was false")


# -------------------------------------------------------------------- inside


def _open_change(turn: Turn) -> dict[str, Any] | None:
    """Return the open change of this step, but not one that a killed host left."""
    found = turn.state.get("change")
    return found if found and found["turn"] == turn.id and found["node"] == turn.node else None


def _is_stale(change: dict[str, Any], command: bool) -> bool:
    """Whether files may have changed since the snapshot by something other than the change's calls."""
    if change["running"]:
        return False
    return (command and change["used"]) or abs(time.time() - change["at"]) > _FRESH


async def _next_change(turn: Turn) -> dict[str, Any] | None:
    """End the open change and begin another, both with a snapshot of the files as they are now."""
    before = _open_change(turn)
    snapshot = await _take_snapshot(turn)
    if snapshot is None:
        turn.state.pop("change", None)
        return None
    if before is not None and before["used"]:
        _close_change(turn, before, snapshot)
    turn.state["change"] = {
        "turn": turn.id, "node": turn.node, "tree": snapshot.tree, "number": snapshot.number, "at": time.time(),
        "used": False, "running": [], "commands": [], "named": {},
    }  # fmt: skip
    return turn.state["change"]


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
        _not_recorded(turn, reason)
        return None


def _close_change(turn: Turn, change: dict[str, Any], snapshot: VaultTree) -> None:
    named: dict[str, str] = change["named"]
    mixed = [path for path, seen in named.items() if seen and _state_of(turn.vault / path) != seen]
    _write(
        turn, before=change["tree"], began=change["number"], after=snapshot.tree, ended=snapshot.number,
        named=tuple(sorted(named)), commands=tuple(change["commands"]), mixed=tuple(sorted(mixed)),
    )  # fmt: skip


def _write(turn: Turn, **fields: Any) -> None:
    _add(turn, Change(f"{turn.id}:{fields['began']}", turn.node, _above(turn), **fields))


def _not_recorded(turn: Turn, reason: str) -> None:
    _add(turn, Change(f"{turn.id}:{turn.node}", turn.node, _above(turn), reason=reason))


def _add(turn: Turn, change: Change) -> None:
    add(file_of(shadow_of(turn).folder, turn.session), change)


def _above(turn: Turn) -> str:
    return turn.spawned.node if turn.spawned is not None else ""


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
    """Remove the changes of `sessions`; those of answers that other sessions share (`heirs`) are first copied to these."""
    try:
        await asyncio.to_thread(_forget, shadow_of(turn), sessions, heirs)
    except (ToolError, OSError) as error:
        turn.emit("notice", text=f"recorded contents of files were not removed: {error}")


def _forget(shadow: Shadow, sessions: Sequence[str], heirs: Mapping[str, Sequence[str]]) -> None:
    mine = [file for session in sessions if (file := file_of(shadow.folder, session)).exists()]
    gone = {id: change for file in mine for id, change in changes_in(file).items()}
    known = all_changes(shadow)
    for heir, nodes in heirs.items():  # those of a fork are perhaps still in the file of its original, which may go next
        add(file_of(shadow.folder, heir), *of_answers(known, nodes))
    if not mine:
        return
    youngest = max(file.stat().st_mtime for file in mine)
    for file in mine:
        file.unlink()
    kept = _trees(all_changes(shadow).values())
    shadow.prune(kept, _trees(gone.values()) - kept, youngest)


def _trees(changes: Iterable[Change]) -> set[str]:
    return {tree for change in changes for tree in (change.before, change.after) if tree}

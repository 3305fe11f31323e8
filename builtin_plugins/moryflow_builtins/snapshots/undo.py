"""Plan and carry out an undo or a redo, of the conversation and the files together."""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moryflow_sdk import NodeView, ToolError, Turn

from .journal import FoundChanges, Span, find_changes, spans, unrecorded_files
from .recorder import shadow_of
from .shadow import UNRECORDED, Blob, Shadow, blob_of

_FOLDER, _LINK = "040000", "120000"
OUTSIDE = Blob("outside", "")
"""Stands for a file that someone else wrote too, or whose place is taken by something else."""


@dataclass(frozen=True)
class UndoChange:
    """The change of one file; ``None`` stands for no file.

    :ivar then: the file as it will be; `left`: as the agent left it; `now`: as it is.
    :ivar commands: the tools that ran when the file changed, if the user may have changed it instead.
    """

    path: str
    then: Blob | None
    left: Blob | None
    now: Blob | None
    content: bytes = b""
    commands: Sequence[str] = ()

    @property
    def foreign(self) -> bool:
        """Whether someone else has changed the file since."""
        return self.now not in (self.left, self.then)

    @property
    def stuck(self) -> bool:
        """Whether something is in the way of the file or of a folder above it: a folder that is not empty, a link …"""
        return self.now is not None and self.now.mode in (_FOLDER, OUTSIDE.mode)

    def touches(self, path: str) -> bool:
        """Whether this file and `path` exclude each other: one would be a folder of the other."""
        return path.startswith(f"{self.path}/") or self.path.startswith(f"{path}/")


def changes_of(vault: Path, spans: Sequence[Span], *, forward: bool, limit: int) -> list[UndoChange]:
    """Return the change of each span, compared with the disk; a broken span counts as changed by someone else.

    What a turn made and removed again is as it was before the turn: nothing of it is to be undone.
    """
    spans = [span for span in spans if span.before != span.after]
    removed_paths = {span.path for span in spans if (span.after if forward else span.before) is None}
    return [_change(vault, span, forward, limit, removed_paths) for span in spans]


def _change(vault: Path, span: Span, forward: bool, limit: int, removed_paths: Collection[str]) -> UndoChange:
    then, left = (span.after, span.before) if forward else (span.before, span.after)
    blocked = _blocked_by(vault, span.path)
    if blocked:  # below a link or a file there is no recorded file
        in_the_way = then is not None and blocked not in removed_paths
        return UndoChange(span.path, then, left, OUTSIDE if in_the_way else None, commands=span.commands)
    found = blob_of(vault / span.path, limit)
    now, content = found if found else (None, b"")
    if now is not None and now.mode == _FOLDER and _will_be_empty(vault, span.path, removed_paths):
        now = None
    if span.broken and now != then:
        left = OUTSIDE
    return UndoChange(span.path, then, left, now, content, span.commands)


def _blocked_by(vault: Path, path: str) -> str:
    """Return the first folder above `path` that is now a link or a file; empty if none is."""
    for above in reversed([parent.as_posix() for parent in Path(path).parents if parent != Path()]):
        try:
            mode = (vault / above).lstat().st_mode
        except OSError:
            return ""
        if not stat.S_ISDIR(mode):
            return above
    return ""


def _will_be_empty(vault: Path, path: str, removed_paths: Collection[str]) -> bool:
    """Whether a folder holds only folders, and files that will be removed."""
    for folder, links, files in os.walk(vault / path):
        names = [*files, *(name for name in links if Path(folder, name).is_symlink())]
        if any(Path(folder, name).relative_to(vault).as_posix() not in removed_paths for name in names):
            return False
    return True


_ROOM = "move it away, or leave such files as they are with --keep"


@dataclass(frozen=True)
class Plan:
    """An undo or a redo, before it is carried out.

    :ivar target: the node that will be active; ``None``: the place before the first node.
    :ivar source: the node that is active now.
    :ivar title: the prompt that is undone or redone.
    :ivar nodes: the ids of the nodes; `writers`: those of answers whose calls may have changed files.
    :ivar others: files that someone else changed while the calls ran; they stay as they are.
    :ivar missing: files that were changed and cannot be restored, each with the reason.
    :ivar notes: sentences about what else is not included.
    """

    verb: str
    session: str
    target: str | None
    source: str
    title: str
    changes: Sequence[UndoChange]
    nodes: Sequence[str]
    writers: Sequence[str] = ()
    others: Sequence[str] = ()
    missing: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()

    @property
    def foreign(self) -> list[UndoChange]:
        """The files that someone else has changed since."""
        return [change for change in self.changes if change.foreign]

    def without_foreign(self) -> Plan:
        """Return the plan without the files that someone else has changed since."""
        left = {change.path for change in self.foreign}
        left |= {change.path for change in self.changes if any(change.touches(path) for path in left)}
        kept = [change for change in self.changes if change.path not in left]
        return replace(self, changes=kept, others=sorted([*self.others, *left]))


@dataclass(frozen=True)
class UndoResult:
    """The files that were restored, and the commands that show the overwritten contents of someone else."""

    touched: Sequence[str]
    kept: Sequence[str]


async def plan_undo(turn: Turn, *, step: bool = False) -> Plan:
    """Return the plan to undo the last turn, or only its last step with tool calls.

    :raises ToolError: there is nothing to undo.
    """
    path = await turn.history.path()
    first = next((at for at in range(len(path) - 1, -1, -1) if _begins(path[at], step)), None)
    if first is None:
        raise ToolError("there is nothing to undo", code="nothing", next_step="moryflow session show")
    target = path[first - 1].id if first else None
    nodes, writers = [node.id for node in path[first:]], _writers(path[first:])
    return await _plan_files(turn, Plan("undo", turn.session, target, path[-1].id, _title_of(path[first]), (), nodes, writers))


async def plan_redo(turn: Turn) -> Plan:
    """Return the plan to redo what the last undo took back.

    :raises ToolError: nothing was undone, or the conversation has continued since.
    """
    undone: list[dict[str, Any]] = turn.session_state.get("undone", [])
    path = await turn.history.path()
    here = path[-1].id if path else None
    if not undone or undone[-1]["to"] != here:
        raise ToolError("there is nothing to redo", code="nothing", next_step="moryflow session tree")
    last = undone[-1]
    plan = Plan("redo", turn.session, last["from"], here or "", last["title"], (), last["nodes"], last["writers"])
    return await _plan_files(turn, plan)


async def _plan_files(turn: Turn, plan: Plan) -> Plan:
    """Return `plan` with its changes to files.

    :raises ToolError: a sub-agent that the undone answers started is still running.
    """
    return await asyncio.to_thread(_with_files, shadow_of(turn), plan, turn.config.max_file_bytes)


def _with_files(shadow: Shadow, plan: Plan, limit: int) -> Plan:
    found = find_changes(shadow, plan.nodes)
    if found.running:
        names = ", ".join(found.running)
        raise ToolError(f"{names} is still running; nothing was done", code="busy", next_step="/stop in chat, or wait for it")
    joined, others = spans(shadow, found)
    here = [span for span in joined if not span.unrecorded]
    large = f"it is larger than agents.runtime.snapshots.maxFileBytes ({limit}), or cannot be read"
    missing = [(span.path, large) for span in joined if span.unrecorded]
    missing += unrecorded_files(shadow, found, {span.path for span in joined})
    absent = [node for node in plan.writers if node not in found.nodes]
    changes = changes_of(shadow.vault, here, forward=plan.verb == "redo", limit=limit)
    return replace(plan, changes=changes, others=others, missing=missing, notes=_notes(found, absent))


def _notes(found: FoundChanges, absent: Sequence[str]) -> list[str]:
    """Return sentences about changes that an undo leaves out and whose files are unknown."""
    notes = [f"changes to files were not recorded: {reason}" for reason in dict.fromkeys(found.reasons)]
    if absent:
        why = "it ran elsewhere, or what was recorded went when it was deleted here"
        count = "an answer" if len(absent) == 1 else f"{len(absent)} answers"
        notes.append(f"the file changes of {count} are not recorded here ({why}); they stay as they are")
    commands = sorted({tool for change in found.changes for tool in change.commands})
    if commands:
        rest = "outside this folder, to ignored files, inside .git or over a network"
        notes.append(f"what {', '.join(commands)} did {rest} is not undone")
    return notes


_WRITERS = frozenset({"write", "edit", "multiedit", "apply_patch", "move", "delete", "bash", "task"})


def _writers(path: Sequence[NodeView]) -> list[str]:
    """Return the ids of the answers whose calls ran and may have changed files."""
    ran = {
        node.payload.get("call_id")
        for node in path
        if node.kind == "tool" and node.payload.get("status") == "ok" and node.payload.get("tool") in _WRITERS
    }
    return [node.id for node in path if any(call.get("id") in ran for call in node.payload.get("calls") or ())]


async def carry_out(turn: Turn, plan: Plan) -> UndoResult:
    """Restore the files, then move the conversation.

    :raises ToolError: something else is in the place of a file; then nothing is done. Or a file cannot be written; the
        files restored before it stay restored, and the undo can be tried again.
    """
    if stuck := [change.path for change in plan.changes if change.stuck]:
        names = ", ".join(stuck)
        raise ToolError(f"something else is in the place of {names}; nothing was done", code="blocked", next_step=_ROOM)
    shadow = shadow_of(turn)
    kept = await asyncio.to_thread(_record_overwritten, shadow, plan) if plan.foreign else ()
    touched = [change.path for change in plan.changes if change.now != change.then]
    wanted = [change.then.hash for change in plan.changes if change.then is not None] if touched else []
    contents = await asyncio.to_thread(shadow.contents, wanted) if touched else {}
    modes = await asyncio.to_thread(shadow.modes) if touched else {}
    for change in sorted(plan.changes, key=lambda change: change.then is not None):  # removed files make room for others
        if change.now != change.then:
            await asyncio.to_thread(_restore, turn, change, contents, modes)
    await turn.history.switch(plan.target)
    undone: list[dict[str, Any]] = turn.session_state.setdefault("undone", [])
    if plan.verb == "redo":
        undone.pop()
    else:
        where = {"from": plan.source, "to": plan.target}
        undone.append({**where, "title": plan.title, "nodes": list(plan.nodes), "writers": list(plan.writers)})
    return UndoResult(touched, kept)


def _record_overwritten(shadow: Shadow, plan: Plan) -> Sequence[str]:
    """Record the files of someone else that are about to be overwritten; return the commands that show them."""
    tree = shadow.snapshot().tree
    lost = [change for change in plan.foreign if change.now is not None and change.now.mode not in (UNRECORDED, OUTSIDE.mode)]
    return [shlex.join(["git", "-C", str(shadow.folder / "git"), "show", f"{tree}:{change.path}"]) for change in lost]


def _begins(node: NodeView, step: bool) -> bool:
    if step:
        return node.kind == "assistant" and bool(node.payload.get("calls"))
    return node.kind == "user" and not node.payload.get("synthetic")


def _title_of(node: NodeView) -> str:
    """Return the beginning of a node's text; for an answer that only called tools, their names."""
    text = " ".join(str(node.payload.get("text") or "").split())
    text = text or ", ".join(str(call.get("name")) for call in node.payload.get("calls") or ())
    return text if len(text) <= 80 else f"{text[:79]}…"


def _restore(turn: Turn, change: UndoChange, contents: dict[str, bytes], modes: dict[str, int]) -> None:
    """Write or remove one file, without following links."""
    name = Path(change.path).name
    if change.now is not None and change.now.mode == _LINK:
        with turn.files.folder(_parent(turn, change.path)) as folder:  # wherever it leads, also to a device or to itself
            os.unlink(name, dir_fd=folder)
    elif change.now is not None and (change.then is None or change.then.mode == _LINK):
        turn.files.remove(turn.files.resolve(change.path, domain="edit"))
    if change.then is None:
        return
    _remove_empty_folders(turn, change.path)
    target = turn.files.resolve(change.path, domain="edit")
    if change.then.mode == _LINK:
        if _parent(turn, change.path).identity is None:  # only a file that is written makes its folders
            turn.files.remove(turn.files.write(target, b""))
        with turn.files.folder(_parent(turn, change.path)) as folder:
            os.symlink(contents[change.then.hash], name, dir_fd=folder)
        return
    turn.files.write(target, contents[change.then.hash], mode=modes.get(change.path))
    if change.now is None or change.now.mode != change.then.mode:
        _set_executable(turn, change)


def _remove_empty_folders(turn: Turn, path: str) -> None:
    """Remove a folder at `path`, if there is one, with the empty folders in it, to make room for a file.

    :raises ToolError: it holds a file.
    """
    place = turn.vault / path
    if place.is_symlink() or not place.is_dir():
        return
    for folder, _, _ in os.walk(place, topdown=False):
        turn.files.remove(turn.files.resolve(Path(folder).relative_to(turn.vault).as_posix(), domain="edit"))


def _set_executable(turn: Turn, change: UndoChange) -> None:
    with turn.files.folder(_parent(turn, change.path)) as folder:
        descriptor = os.open(Path(change.path).name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            mode = os.fstat(descriptor).st_mode & 0o777
            wanted = mode | (mode & 0o444) >> 2 if change.then and change.then.mode == "100755" else mode & ~0o111
            os.fchmod(descriptor, wanted)
        finally:
            os.close(descriptor)


def _parent(turn: Turn, path: str) -> Any:
    return turn.files.resolve(str(Path(path).parent), domain="edit")

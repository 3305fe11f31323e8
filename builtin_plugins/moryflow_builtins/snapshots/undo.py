"""Plan and carry out an undo or a redo, of the conversation and the files together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moryflow_sdk import NodeView, ToolError, Turn

from .journal import Span, all_changes, of_answers, spans
from .recorder import shadow_of
from .shadow import Blob, Shadow, blob_of

_FOLDER, _LINK = "040000", "120000"
# Stands for something else in the place of a file or of a folder above it.
IN_THE_WAY = Blob("in the way", "")


@dataclass(frozen=True)
class UndoChange:
    """The change of one file; ``None`` stands for no file.

    :ivar then: the file as it will be; `now`: as it is, with its `content`.
    :ivar foreign: whether somebody else has changed the file since, or something else is in its place.
    """

    path: str
    then: Blob | None
    now: Blob | None
    content: bytes = b""
    foreign: bool = False


def changes_of(vault: Path, spans: Sequence[Span], *, forward: bool) -> list[UndoChange]:
    """Return the change of each span, compared with the disk."""
    removed = {span.path for span in spans if (span.after if forward else span.before) is None}
    found: list[UndoChange] = []
    for span in spans:
        then, left = (span.after, span.before) if forward else (span.before, span.after)
        above = next((each for each in reversed(Path(span.path).parents[:-1]) if _is_no_folder(vault / each)), None)
        now, content = (None, b"") if above else blob_of(vault / span.path) or (None, b"")
        if now is not None and now.mode == _FOLDER:
            now = None if _will_be_empty(vault, span.path, removed) else IN_THE_WAY
        elif above and then is not None and above.as_posix() not in removed:
            now = IN_THE_WAY
        foreign = now != then and (now != left or span.broken)
        found.append(UndoChange(span.path, then, now, content, foreign))
    return found


def _is_no_folder(place: Path) -> bool:
    return place.is_symlink() or place.is_file()


def _will_be_empty(vault: Path, path: str, removed: Collection[str]) -> bool:
    """Whether a folder holds only folders, and files that will be removed."""
    for folder, links, files in os.walk(vault / path):
        names = [*files, *(name for name in links if Path(folder, name).is_symlink())]
        if any(Path(folder, name).relative_to(vault).as_posix() not in removed for name in names):
            return False
    return True


@dataclass(frozen=True)
class Plan:
    """An undo or a redo, before it is carried out.

    :ivar target: the node that will be active; ``None``: the place before the first node.
    :ivar source: the node that is active now.
    :ivar title: the prompt that is undone or redone.
    :ivar nodes: the ids of the nodes; `writers`: those of answers whose calls may have changed files.
    :ivar others: files that somebody else changed since, and that stay as they are.
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
    notes: Sequence[str] = ()

    @property
    def foreign(self) -> list[str]:
        """The files that somebody else has changed since."""
        return [change.path for change in self.changes if change.foreign]

    def without_foreign(self) -> Plan:
        """Return the plan without the files that somebody else has changed since."""
        return replace(self, changes=[change for change in self.changes if not change.foreign], others=self.foreign)


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
    """Return `plan` with its changes to files."""
    return await asyncio.to_thread(_with_files, shadow_of(turn), plan)


def _with_files(shadow: Shadow, plan: Plan) -> Plan:
    changes = of_answers(all_changes(shadow), plan.nodes)
    recorded = {node for change in changes if change.after for node in (change.node, change.above)}
    found, notes = spans(shadow, changes), list[str]()
    if absent := sum(node not in recorded for node in plan.writers):
        notes.append(f"the file changes of {absent} of its answers are not recorded here; they stay")
    notes += [f"{span.path} is too large, or cannot be read" for span in found if span.unrecorded]
    planned = changes_of(shadow.vault, [span for span in found if not span.unrecorded], forward=plan.verb == "redo")
    return replace(plan, changes=planned, notes=notes)


_WRITERS = frozenset({"write", "edit", "multiedit", "apply_patch", "move", "delete", "bash", "task"})


def _writers(path: Sequence[NodeView]) -> list[str]:
    """Return the ids of the answers whose calls ran and may have changed files."""
    ran = {
        node.payload.get("call_id")
        for node in path
        if node.kind == "tool" and node.payload.get("status") == "ok" and node.payload.get("tool") in _WRITERS
    }
    return [node.id for node in path if any(call.get("id") in ran for call in node.payload.get("calls") or ())]


async def carry_out(turn: Turn, plan: Plan) -> Sequence[str]:
    """Restore the files, then move the conversation; return the files that were restored.

    :raises ToolError: a file cannot be written; the files restored before it stay restored, and the undo can be tried again.
    """
    shadow = shadow_of(turn)
    changes = [change for change in plan.changes if change.now != change.then]
    wanted = [change.then.hash for change in changes if change.then is not None]
    contents = await asyncio.to_thread(shadow.contents, wanted) if wanted else {}
    modes = await asyncio.to_thread(shadow.modes) if wanted else {}
    for change in sorted(changes, key=lambda change: change.then is not None):  # removed files make room for others
        await asyncio.to_thread(_restore, turn, change, contents, modes)
    await turn.history.switch(plan.target)
    undone: list[dict[str, Any]] = turn.session_state.setdefault("undone", [])
    if plan.verb == "redo":
        undone.pop()
    else:
        where = {"from": plan.source, "to": plan.target}
        undone.append({**where, "title": plan.title, "nodes": list(plan.nodes), "writers": list(plan.writers)})
    return [change.path for change in changes]


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
    place = turn.vault / change.path
    if place.is_dir() and not place.is_symlink():  # it holds only empty folders, which make room
        for folder, _, _ in os.walk(place, topdown=False):
            turn.files.remove(turn.files.resolve(Path(folder).relative_to(turn.vault).as_posix(), domain="edit"))
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

"""What an undo or a redo would change, and doing it: conversation and files together.

A file is only touched when it is as the agent left it; what a person changed since is named, and left alone unless they
say otherwise. What gets overwritten is recorded first, so that nothing is lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moryflow_sdk import NodeView, ToolError, Turn

from .records import Record, Records
from .shadow import Blob, Shadow, blob_of
from .taking import shadow_of

_OUTSIDE = Blob("outside", "")


@dataclass(frozen=True)
class Change:
    """One file: what it becomes, what the agent made of it, and what it is now; ``None`` where there is no file."""

    path: str
    then: Blob | None
    left: Blob | None
    now: Blob | None
    content: bytes = b""

    @property
    def foreign(self) -> bool:
        """Whether someone else has changed the file since."""
        return self.now not in (self.left, self.then)


@dataclass(frozen=True)
class Plan:
    """A step back or forth.

    :ivar target: the node that becomes the active one; ``None`` is the place before the first.
    :ivar source: the node that is active now.
    :ivar title: the prompt that is taken back or done again.
    """

    verb: str
    session: str
    target: str | None
    source: str
    title: str
    changes: Sequence[Change]
    nodes: Sequence[str]

    @property
    def foreign(self) -> list[Change]:
        """The files that someone else has changed since."""
        return [change for change in self.changes if change.foreign]


async def plan_undo(turn: Turn, *, step: bool = False) -> Plan:
    """Return what taking back the last turn, or only its last step with tool calls, would change.

    :raises ToolError: there is nothing to take back.
    """
    path = await turn.history.path()
    first = next((at for at in range(len(path) - 1, -1, -1) if _begins(path[at], step)), None)
    if first is None:
        raise ToolError("there is nothing to undo", code="nothing", next_step="moryflow session show")
    undone = [node.id for node in path[first:]]
    changes = await asyncio.to_thread(_changes, shadow_of(turn), turn.session, undone, forward=False)
    target = path[first - 1].id if first else None
    return Plan("undo", turn.session, target, path[-1].id, _gist(path[first]), changes, undone)


async def plan_redo(turn: Turn) -> Plan:
    """Return what taking back the last undo would change.

    :raises ToolError: nothing was undone, or the conversation has gone on since.
    """
    undone: list[dict[str, Any]] = turn.session_state.get("undone", [])
    path = await turn.history.path()
    here = path[-1].id if path else None
    if not undone or undone[-1]["to"] != here:
        raise ToolError("there is nothing to redo", code="nothing", next_step="moryflow session tree")
    last = undone[-1]
    changes = await asyncio.to_thread(_changes, shadow_of(turn), turn.session, last["nodes"], forward=True)
    return Plan("redo", turn.session, last["from"], here or "", last["title"], changes, last["nodes"])


async def carry_out(turn: Turn, plan: Plan) -> list[str]:
    """Restore the files, then move the conversation; return the paths that were written or removed.

    :raises ToolError: a file cannot be written; what was restored before it stays restored, and it can be tried again.
    """
    shadow = shadow_of(turn)
    if any(change.foreign for change in plan.changes):
        await asyncio.to_thread(shadow.snapshot)
    touched = [change.path for change in plan.changes if change.now != change.then]
    contents = await asyncio.to_thread(_contents, shadow, plan.changes) if touched else {}
    for change in plan.changes:
        if change.now != change.then:
            await asyncio.to_thread(_restore, turn, change, contents)
    await turn.history.switch(plan.target)
    undone: list[dict[str, Any]] = turn.session_state.setdefault("undone", [])
    if plan.verb == "redo":
        undone.pop()
    else:
        undone.append({"from": plan.source, "to": plan.target, "title": plan.title, "nodes": list(plan.nodes)})
    return touched


def _begins(node: NodeView, step: bool) -> bool:
    if step:
        return node.kind == "assistant" and bool(node.payload.get("calls"))
    return node.kind == "user" and not node.payload.get("synthetic")


def _gist(node: NodeView) -> str:
    text = " ".join(str(node.payload.get("text") or "").split())
    return text if len(text) <= 80 else f"{text[:79]}…"


def _changes(shadow: Shadow, session: str, nodes: Iterable[str], *, forward: bool) -> list[Change]:
    """Join the steps of `nodes`: each file from what it was before the first that changed it to what the last one left."""
    wanted = set(nodes)
    spans: dict[str, tuple[Blob | None, Blob | None]] = {}
    broken: set[str] = set()
    for record in _records(shadow, session, wanted):
        for found in shadow.differences(record.before, record.after):
            if found.path not in spans:
                spans[found.path] = (found.before, found.after)
                continue
            first, last = spans[found.path]
            if last != found.before:
                broken.add(found.path)
            spans[found.path] = (first, found.after)
    return [_change(shadow.vault, path, span, forward, path in broken) for path, span in sorted(spans.items())]


def _records(shadow: Shadow, session: str, wanted: set[str]) -> list[Record]:
    return [record for record in Records(shadow.folder, session) if record.node in wanted]


def _change(vault: Path, path: str, span: tuple[Blob | None, Blob | None], forward: bool, broken: bool) -> Change:
    """Compare a file with what is on the disk; one that was changed between two steps counts as someone else's."""
    before, after = span
    then, left = (after, before) if forward else (before, after)
    place = vault / path
    if not place.parent.resolve().is_relative_to(vault):
        return Change(path, then, left, _OUTSIDE)
    found = blob_of(place)
    now, content = found if found else (None, b"")
    if broken and now != then:
        return Change(path, then, _OUTSIDE, now, content)
    return Change(path, then, left, now, content)


def _contents(shadow: Shadow, changes: Iterable[Change]) -> dict[str, bytes]:
    return shadow.contents(change.then.hash for change in changes if change.then is not None)


def _restore(turn: Turn, change: Change, contents: dict[str, bytes]) -> None:
    """Write or remove one file through the walk that follows no links (R12)."""
    target = turn.files.resolve(change.path, domain="edit")
    if change.now is not None and (change.then is None or "120000" in (change.now.mode, change.then.mode)):
        turn.files.remove(target)
        target = turn.files.resolve(change.path, domain="edit")
    if change.then is None:
        return
    if change.then.mode == "120000":
        with turn.files.folder(_parent(turn, change.path)) as folder:
            os.symlink(contents[change.then.hash], Path(change.path).name, dir_fd=folder)
        return
    turn.files.write(target, contents[change.then.hash])
    if change.now is None or change.now.mode != change.then.mode:
        _set_executable(turn, change)


def _set_executable(turn: Turn, change: Change) -> None:
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

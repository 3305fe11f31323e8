"""Read sessions, move between branches, set title and notes, for plugins."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from moryflow_sdk import NodeView, SessionView, StoredCall

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext
    from moryflow.store import CallRow, Node, SessionRow


class HistoryService:
    """A plugin's reading glasses; the only change it can ask for is a switch, made at the turn's next pause."""

    def __init__(self, scope: TurnContext) -> None:
        self._scope = scope
        self._store = scope.around.store

    async def sessions(self, *, limit: int = 50) -> Sequence[SessionView]:
        """Return sessions, the last used first."""
        return [_session(row) for row in await self._store.sessions(limit=limit)]

    async def path(self, session: str | None = None) -> Sequence[NodeView]:
        """Return the active path of `session`, or of the running one."""
        asked = session or self._scope.session
        nodes: Sequence[Node] = self._scope.live.hold.path if asked == self._scope.session else ()
        if not nodes or any(node.kind == "compaction" for node in nodes):  # what a compaction covers is only on the disk
            nodes = await self._store.path(asked)
        return [node_view(node) for node in nodes]

    async def calls(self, *, session: str | None = None, since: str | None = None) -> Sequence[StoredCall]:
        """Return stored calls, oldest first."""
        return [_call(row) for row in await self._store.calls(session=session, since=since)]

    async def switch(self, node: str | None) -> None:
        """Move the active node when the turn pauses next."""
        self._scope.live.inbox.append(lambda journal: journal.switch(node))


def _session(row: SessionRow) -> SessionView:
    fields = ("id", "title", "vault", "agent", "mode", "parent", "created", "updated", "purpose")
    return SessionView(**{name: getattr(row, name) for name in fields})


def node_view(node: Node) -> NodeView:
    """Return a node as plugins see it."""
    fields = ("id", "session", "seq", "parent", "kind", "payload", "created")
    values: dict[str, Any] = {name: getattr(node, name) for name in fields}
    return NodeView(**values)


def _call(row: CallRow) -> StoredCall:
    try:
        args = json.loads(row.args)
    except ValueError:
        args = {}
    fields = ("id", "session", "tool", "state", "decision", "cause", "created")
    values: dict[str, Any] = {name: getattr(row, name) for name in fields}
    return StoredCall(args=args if isinstance(args, dict) else {}, **values)


class Done:
    """What a plain function may drop and an asynchronous one may await: it was done before this was returned."""

    def __await__(self) -> Generator[None]:
        yield from ()


DONE = Done()


class InfoService:
    """What a plugin says about a session waits in the inbox until the turn pauses.

    It is put there at once, on whatever thread: the inbox is a list that everyone adds to at its end.
    """

    def __init__(self, scope: TurnContext) -> None:
        self._scope = scope

    def set_title(self, title: str) -> Done:
        """Set the session's title."""
        self._scope.live.inbox.append(lambda journal: journal.session(title=title[:200]))
        return DONE

    def note(self, text: str, *, title: str = "") -> Done:
        """Append a note that the model reads as a marked user message."""
        self._scope.live.notes.append(lambda journal: journal.node("note", {"text": text, "title": title}))
        return DONE

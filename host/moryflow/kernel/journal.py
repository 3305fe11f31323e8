"""Collect nodes, rows and events, commit them in one transaction, and only then publish the events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from moryflow_sdk import Event, Ruling, ToolCall

from moryflow.base.events import later, now
from moryflow.store import ROOT, ApprovalRow, CallRow, Commit, NewNode, Node, RunRow, StoreError

from .tool_prepare import canonical
from .turn_context import TurnContext

_NOTHING_STORED = ("no_space", "locked", "readonly")
"""After these nothing of a commit is on the disk for sure, and a later one may succeed."""


class TurnJournal:
    """The pen of a turn. What is noted is invisible until :meth:`commit`; a failed commit publishes nothing."""

    def __init__(self, scope: TurnContext) -> None:
        self._scope = scope
        self._next = Commit()
        self._hurry = asyncio.Event()

    def node(self, kind: str, payload: dict[str, Any], node_id: str = "") -> None:
        """Append a node to the active path."""
        self._next.nodes.append(NewNode(kind=kind, payload=payload, id=node_id))

    def call(self, row: CallRow) -> None:
        """Record where a tool call stands."""
        self._next.calls.append(row)

    def approval(self, row: ApprovalRow) -> None:
        """Record a question or its answer."""
        self._next.approvals.append(row)

    def run(self, row: RunRow) -> None:
        """Record where the turn stands."""
        self._next.runs.append(row)

    def session(self, **fields: Any) -> None:
        """Change fields of the session's own row."""
        self._next.session.update(fields)

    def switch(self, node_id: str | None) -> None:
        """Make `node_id` the active node; ``None`` is the place before the first."""
        self._next.active = node_id or ROOT

    def only_after(self, node_id: str) -> None:
        """Let the next commit store nothing unless `node_id` is the active node when it is written."""
        self._next.after = node_id

    def event(self, kind: str, /, **data: Any) -> None:
        """Record a durable event, published after the commit."""
        self._next.events.append(self._scope.event(kind, **data))

    async def commit(self) -> list[Node]:
        """Write everything noted since the last commit and publish its events; return the new nodes.

        A cancelled turn waits for the disk first, so that memory and disk never disagree about what was written.
        """
        writing = asyncio.ensure_future(self._write())
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            self._hurry.set()
            await asyncio.wait((writing,))
            raise

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Write what is noted once the block has lasted so long; after a shorter block it waits for the next commit."""
        writing: list[asyncio.Task[list[Node]]] = []
        timer = asyncio.get_running_loop().call_later(seconds, lambda: writing.append(asyncio.create_task(self.commit())))
        try:
            yield
        finally:
            timer.cancel()
            for begun in writing:
                await begun

    async def settle(self) -> None:
        """Write what observers of the last events left behind: state that they changed, and that they failed."""
        if self._scope.has_unsaved_state or self._scope.notices:
            await self.commit()

    async def _write(self) -> list[Node]:
        scope, commit = self._scope, self._next
        self._next = Commit()
        commit.plugin_state = scope.changed_state()  # first: it may have something to say
        commit.events += scope.notices
        scope.notices = []
        commit.hook_calls = scope.ledger.drain()
        commit.artifacts, scope.artifacts = scope.artifacts, []
        try:
            committed = await scope.live.hold.commit_patiently(commit, self._wait_for_lock)
        except StoreError as error:
            if error.code in _NOTHING_STORED:  # a result must not stand there without its answer
                self._next = commit.joined(self._next)
            raise
        for event in committed.events:
            await self._tell(event)
        return committed.nodes

    async def _wait_for_lock(self, refusal: StoreError, attempt: int, pause: float) -> bool:
        """Say that another program keeps the database locked, and wait; a turn that is stopped does not."""
        if self._hurry.is_set() or self._scope.live.cancelled:
            return False
        waits = {"attempt": attempt, "in": round(pause, 1), "at": later(pause), "reason": refusal.message}
        self.delta("session.status", status="retry", **waits)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), pause)
        return True

    def delta(self, kind: str, /, **data: Any) -> None:
        """Publish an event that is not stored, at once."""
        event = self._scope.event(kind, **data)
        self._scope.around.bus.publish(event)
        self._scope.around.dispatcher.observe_soon(self._scope, event)

    async def _tell(self, event: Event) -> None:
        held_back = self._scope.live.held_back
        if held_back or (event.type, event.data.get("status")) == ("session.status", "idle"):
            held_back.append(event)
        else:
            self._scope.around.bus.publish(event)
        await self._scope.around.dispatcher.observe(self._scope, event)


def call_row(scope: TurnContext, call: ToolCall, state: str, ruling: Ruling | None, args: str | None = None) -> CallRow:
    """Return the record of `call` in `state`; `args` are its arguments as the model wrote them, or as they were judged."""
    stamp = now()
    return CallRow(
        id=call.id,
        session=scope.session,
        turn=scope.turn,
        node=scope.node,
        step=call.step,
        tool=call.tool,
        args=canonical(call.args).decode() if args is None else args,
        hash=call.hash,
        state=state,
        decision=ruling.decision if ruling else None,
        cause=ruling.cause if ruling else None,
        ruling=ruling.model_dump(mode="json", exclude_defaults=True) if ruling else None,
        created=stamp,
        updated=stamp,
    )

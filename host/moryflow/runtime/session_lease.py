"""The lease on a session, and what is read when it is acquired: rights, plugin state, calls that an earlier turn left open.

Code that only judges, explains or reads gets a turn without a lease: :func:`read_only_scope`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ConfigError, Event, Rule, Usage, thaw
from moryflow_sdk.support.processes import end_marked

from moryflow.base.events import now
from moryflow.base.paths import call_mark
from moryflow.kernel.outcome import SessionPermissions
from moryflow.kernel.turn_context import Journal, SessionHandle, TurnContext
from moryflow.store import CallRow, Node, SessionLock, SessionRow, Store, Unfinished, unfinished

from .selection import agent_of
from .turn_task import ends_with_calls

if TYPE_CHECKING:
    from .ports import SessionHost


Record = Callable[[Journal], None]


class SessionLease:
    """Holds a session's lock during overlapping blocks, or from :meth:`acquire` to :meth:`release`.

    :param new_lock: the lock of a session that was just created and is still held.
    :param parent_permissions: the permissions of the turn that started this session, which a child shares.
    :ivar live: the session while it is held, otherwise ``None``.
    :ivar inbox: records to apply at the next pause; `notes` are records that must not come between a call and its result.
    :ivar held_back: events to publish once the session is idle.
    """

    def __init__(
        self,
        store: Store,
        home: Path,
        row: SessionRow,
        new_lock: SessionLock | None = None,
        parent_permissions: SessionPermissions | None = None,
    ) -> None:
        self._store = store
        self._home = home
        self._row = row
        self._new_lock = new_lock
        self._parent_permissions = parent_permissions
        self._users = 0
        self._loading = asyncio.Lock()
        self.live: SessionHandle | None = None
        self.inbox: list[Record] = []
        self.notes: list[Record] = []
        self.held_back: list[Event] = []

    @property
    def row(self) -> SessionRow:
        """The session's own record, as fresh as this process knows it."""
        return self.live.row if self.live else self._row

    @property
    def mode(self) -> str:
        return self.live.mode if self.live else self._row.mode

    async def acquire(self, wait: float = 0) -> None:
        """Hold the session until :meth:`release`; wait up to `wait` seconds for another holder.

        :raises SessionBusy: the other holder did not release it in time.
        """
        async with self._loading:
            if self.live is None:
                self.live = await self._load(wait)
            self.live.pinned = True

    def release(self) -> None:
        """Release the session, so that other processes can hold it."""
        if self.live is not None:
            self._row = self.live.row
            self.live.hold.release()
        if self._new_lock is not None:
            self._new_lock.release()
        self.live = self._new_lock = None

    @asynccontextmanager
    async def block(self, wait: float = 0) -> AsyncIterator[SessionHandle]:
        """Hold the session during a block; wait up to `wait` seconds for another holder.

        :raises SessionBusy: the other holder did not release it in time.
        """
        async with self._loading:
            if self.live is None:
                self.live = await self._load(wait)
            self._users += 1
            live = self.live
        try:
            yield live
        finally:
            self._users -= 1
            if not self._users and self.live is not None and not self.live.pinned:
                self.release()

    async def _load(self, wait: float) -> SessionHandle:
        store = self._store
        hold, self._new_lock = self._new_lock or await store.hold(self._row.id, wait=wait), None
        session = hold.session
        own = SessionPermissions(session.mode, [Rule(**grant) for grant in session.grants])
        rights = self._parent_permissions or own
        live = SessionHandle(hold=hold, permissions=rights, inbox=self.inbox, notes=self.notes, held_back=self.held_back)
        if hold.path or hold.epoch > 1:  # a new session has nothing to load
            live.unfinished_calls, notice = await end_leftovers(store, self._home, session.id)
            live.notices += [notice] if notice else []
            live.state = await states_of(store, session.id, "session")
            live.interrupted_runs = [run for run in await store.runs(session.id) if run.state == "running"]
            answers = (node.payload for node in hold.path if node.kind == "assistant")
            live.call_ids = {call["id"] for payload in answers for call in payload.get("calls") or ()}
            if any(node.kind == "compaction" for node in hold.path):  # the calls that it covers are only in the store
                live.call_ids |= await store.call_ids(session.id)
        return live

    async def last_turn_states(self) -> dict[str, dict[str, Any]]:
        """Return the plugins' state of the last turn, for the turn that continues it."""
        runs = [run for run in await self._store.runs(self._row.id) if run.purpose in ("main", "child")]
        return await states_of(self._store, self._row.id, f"turn:{runs[-1].id}") if runs else {}

    async def take_up(self, scope: TurnContext, turn: str) -> None:
        """Count on from what the `turn` that goes on had used when it was cut off; empty: this is a new one."""
        if turn:
            runs = await self._store.runs(self._row.id)
            for run in (run for run in runs if run.id == turn):
                scope.usage.add(Usage(**run.usage), run.cost)
                scope.budget.spend(cost=run.cost)

    async def leave_failed_prompt(self, scope: TurnContext) -> None:
        """Go back before a prompt at the end of the path that no model has answered, so that it is not sent with the next one.

        It stays in the tree; a turn without a prompt continues from it.
        """
        last = scope.live.hold.path[-1:]
        if not last or last[0].kind != "user" or last[0].payload.get("synthetic"):
            return
        runs = [run for run in await self._store.runs(self._row.id) if not run.is_compaction]
        if runs and runs[-1].end_reason == "model_error":
            journal = Journal(scope)
            journal.switch(last[0].parent)
            await journal.commit()

    async def open_calls(self, live: SessionHandle) -> list[Unfinished]:
        """Return the calls at the end of the path that have no result."""
        if not ends_with_calls(live):
            return []
        calls = await self._store.calls(session=live.row.id)
        live.asked_calls = {row.id for row in calls if row.state == "waiting"}
        return unfinished(live.hold.path, calls)

    async def pop_waiting(self, live: SessionHandle) -> list[Record]:
        """Remove and return the records of the inbox, and the notes too if no call is without a result."""
        settled = not self.notes or not await self.open_calls(live)
        waiting = (self.inbox, self.notes) if settled else (self.inbox,)
        taken: list[Record] = []
        for records in waiting:
            while records:  # one by one: a plugin's thread may add another meanwhile
                taken.append(records.pop(0))
        return taken


async def states_of(store: Store, session: str, place: str) -> dict[str, dict[str, Any]]:
    """Return the state that plugins kept for the session or for one turn: a mutable copy by plugin."""
    states = await store.plugin_state(session)
    return {plugin: thaw(value) for (plugin, kept), value in states.items() if kept == place}


SETTLE_SECONDS = 0.2


async def end_leftovers(store: Store, home: Path, session: str) -> tuple[list[CallRow], str]:
    """End processes that interrupted calls of `session`, and of its sub-agents that no process holds, have left running.

    :returns: the session's own calls that began and never ended, and a notice for the user; as a rule, both are empty.
    """
    begun = await store.calls(states=("running", "pending"))
    family = set(await store.family(session)) if begun else set()
    rows = [row for row in begun if row.session in family and (row.session == session or not store.seems_held(row.session))]
    if not rows:
        return [], ""
    marks = [call_mark(home, row.session, row.node, row.id) for row in rows]
    counts = await asyncio.to_thread(end_marked, marks, settle=SETTLE_SECONDS)
    own = [row for row in rows if row.session == session and row.state == "running"]
    where = f"the host was ended while {', '.join(sorted({row.tool for row in rows}))} ran; "
    if counts is None:
        return own, f"{where}what it had started may still run: this system does not tell" if own else ""
    count = sum(counts.values())
    ended = "1 process that still ran was ended" if count == 1 else f"{count} processes that still ran were ended"
    return own, f"{where}{ended}" if count else ""


class ReadOnlyHold:
    """Takes the place of a :class:`SessionLock` in a turn that writes nothing."""

    def __init__(self, session: SessionRow) -> None:
        self.session = session
        self.path: list[Node] = []


def blank_session(vault: Path | str | None, mode: str | None) -> SessionRow:
    """Return a session that is not stored. The vault need not exist (``permission test``)."""
    stamp = now()
    return SessionRow(
        id="",
        title="",
        vault=str(Path(vault or ".").absolute()),
        agent="",
        model="",
        mode=mode or "agent",
        parent=None,
        purpose="direct",
        active=None,
        created=stamp,
        updated=stamp,
    )


def read_only_scope(host: SessionHost, row: SessionRow, mode: str | None) -> TurnContext:
    """Return the context of a turn in the session `row` that reads and never writes."""
    rights = SessionPermissions(mode or row.mode, [Rule(**grant) for grant in row.grants])
    live = SessionHandle(hold=ReadOnlyHold(row), permissions=rights)  # type: ignore[arg-type]
    agent = host.agent(None)
    with suppress(ConfigError):  # a sub-agent that cannot continue can still be looked at, and deleted
        agent = agent_of(row, host.agents, agent) if row.agent else agent
    return TurnContext(
        around=host.surroundings,
        live=live,
        plugin_set=host.plugin_set,
        turn="",
        agent=agent,
        model=None,
        purpose="direct",
        headless=True,
    )

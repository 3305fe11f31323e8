"""The lease on a session, and what is read when it is acquired: rights, plugin state, calls that an earlier turn left open.

Code that only judges, explains or reads gets a turn without a lease: :func:`read_only_scope`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ConfigError, Event, Rule, thaw
from moryflow_sdk.support.own_files import Doubt, doubt_about
from moryflow_sdk.support.processes import end_marked

from moryflow.base.events import now
from moryflow.base.paths import call_mark
from moryflow.kernel.outcome import SessionPermissions
from moryflow.kernel.turn_context import Journal, SessionHandle, TurnContext
from moryflow.store import DATABASE, CallRow, Node, SessionLock, SessionRow, Store, Unfinished, unfinished

from .selection import agent_of
from .subagents import TOOL
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
        self._own_permissions: SessionPermissions | None = None
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
        return self.live.mode if self.live else (self._own_permissions or self._row).mode

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
        stored = SessionPermissions(session.mode, [Rule(**grant) for grant in session.grants])
        rights = self._parent_permissions or stored
        doubt = None if self._parent_permissions else doubt_about_database(self._home)
        if doubt:  # what this process was told counts, not what is stored
            rights = self._own_permissions = self._own_permissions or SessionPermissions(
                self._row.mode, [Rule(**grant) for grant in self._row.grants]
            )
        live = SessionHandle(hold=hold, permissions=rights, inbox=self.inbox, notes=self.notes, held_back=self.held_back)
        if doubt and (stored.mode != rights.mode or len(stored.grants) > len(rights.grants)):
            why = f"{doubt.reason} ({doubt.step})"
            live.notices.append(f"the mode and the answers that are stored with this session are not used, because {why}")
        if hold.path or hold.epoch > 1:  # a new session has nothing to load
            live.leftovers, live.unfinished_calls, notice = await end_leftovers(store, self._home, session.id)
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
_UNKNOWN = "programs that it had started may still run: this system does not tell"


async def end_leftovers(store: Store, home: Path, session: str) -> tuple[dict[str, str], list[CallRow], str]:
    """End processes that interrupted calls of `session`, and of its sub-agents that no process holds, have left running.

    :returns: a sentence for the result of each interrupted call, by the call's id; the session's own calls that began and
        never ended; a notice for the user. All three are empty, as a rule.
    """
    begun = await store.calls(states=("running", "pending"))
    family = set(await store.family(session)) if begun else set()
    rows = [row for row in begun if row.session in family and (row.session == session or not store.seems_held(row.session))]
    if not rows:
        return {}, [], ""
    marks = {call_mark(home, row.session, row.node, row.id): row for row in rows}
    counts = await asyncio.to_thread(end_marked, marks, settle=SETTLE_SECONDS)
    own = [row for row in rows if row.session == session and row.state == "running"]
    if counts is None:
        return {row.id: _UNKNOWN for row in own}, own, _UNKNOWN if own else ""
    ended = {row.id: counts[mark] for mark, row in marks.items() if row.session == session and counts.get(mark)}
    below = sum(counts.get(mark, 0) for mark, row in marks.items() if row.session != session)
    by_call = {call: _ended_sentence(count, "it") for call, count in ended.items()}
    if below:
        by_call |= {row.id: _ended_sentence(below, "its sub-agents") for row in own if row.tool == TOOL}
    return by_call, own, _notice({row.tool for row in rows}, sum(ended.values()) + below)


def _ended_sentence(count: int, starter: str) -> str:
    return f"{_processes(count)} that {starter} had started still ran and {_were(count)} ended"


def _notice(tools: set[str], count: int) -> str:
    if not count:
        return ""
    return f"the host was ended while {', '.join(sorted(tools))} ran; {_processes(count)} that still ran {_were(count)} ended"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


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


def doubt_about_database(home: Path) -> Doubt | None:
    """Return why somebody else could have given a stored session its mode and grants, as to a configuration file its rules."""
    try:
        return doubt_about(home / DATABASE)
    except OSError:
        return None


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

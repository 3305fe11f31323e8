"""What a session store does, whichever database keeps it: :class:`Store`, :class:`SessionLock`, and their errors.

Sessions, compaction, traces and servers depend on this file alone; :func:`moryflow.store.open_store` chooses the
implementation. Three promises hold for every method:

- What a method has written when it returns survives a crash of the process and of the machine.
- A method that raises has stored nothing, and its error is one of this file, never one of a database's own. A caller that
  is cancelled meanwhile may find it stored or not, but never half of it.
- Values that come out are immutable; no method returns anything that a later commit changes, except
  :attr:`SessionLock.session` and :attr:`SessionLock.path`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from moryflow_sdk import Artifact, Event, MoryflowError

from .records import ApprovalRow, CallRow, Commit, Committed, Hit, HookCallRow, Node, RunRow, SessionRow


class StoreError(MoryflowError):
    """The store could not do what was asked; nothing of it was kept.

    :param code: ``no_space``, ``io``, ``locked``, ``readonly``, ``newer``, ``corrupt``, ``foreign``, ``gone``,
        ``no_locks``, ``many_files``, ``not_found``, ``ambiguous``, ``invalid`` or ``too_large``.
    """

    def __init__(self, message: str, *, code: str, where: str = "", next_step: str = "") -> None:
        super().__init__(message, where=where, next_step=next_step)
        self.code = code


class SessionBusy(MoryflowError):
    """Another process, or another part of this one, holds the session."""

    code = "busy"


class StaleEpoch(MoryflowError):
    """This holder lost its session to another one while it was stopped; it must not write any more."""

    code = "stale"


class Outdated(MoryflowError):
    """What a commit was built on is not the active node any more; nothing was stored."""

    code = "outdated"


def invalid(message: str, *, where: str = "", next_step: str = "") -> StoreError:
    """Return the error for a value that must not be stored."""
    return StoreError(message, code="invalid", where=where, next_step=next_step)


WaitForLock = Callable[[StoreError, int, float], Awaitable[bool]]


class SessionLock(Protocol):
    """The right to append to one session. At most one process has it, until :meth:`release` or its own end.

    :ivar session: the session as it is stored.
    :ivar path: the active path, root first, without what a compaction stands for; never ahead of what is stored. It is one
        list for the life of the lock, which commits extend; do not change it.
    :ivar epoch: the number of this holder, from 1; a commit of an earlier holder is refused.
    """

    session: SessionRow
    path: list[Node]
    epoch: int

    async def commit(self, commit: Commit) -> Committed:
        """Store all of `commit` or nothing; return its nodes, and its events with their numbers.

        `path` and `session` show it afterwards, and only then.

        :raises StaleEpoch: another holder took the session.
        :raises Outdated: another node is active than ``commit.after``.
        :raises StoreError: ``locked``: another program writes; the same commit may be tried again. Or any other code.
        """
        ...

    async def commit_patiently(self, commit: Commit, wait: WaitForLock) -> Committed:
        """Like :meth:`commit`; while another program keeps the database locked, `wait` and try again.

        What has ended is kept aside from the first refusal on, where :meth:`take_up` finds it after a crash.

        :param wait: takes the refusal, the number of the try and the seconds to wait; returns whether to try again.
        :raises StoreError: ``locked`` after ten minutes, or when `wait` said so; else as :meth:`commit`.
        """
        ...

    async def switch(self, node_id: str | None) -> None:
        """Make another node the active one; ``None`` is the place before the first. Nothing is appended.

        :raises StaleEpoch: another holder took the session.
        :raises StoreError: ``invalid``: the session has no such node.
        """
        ...

    async def take_up(self) -> int:
        """Store what this holder or one before it kept aside; return how many nodes that were.

        :raises StoreError: it still cannot be stored, or not be read; it stays where it is.
        """
        ...

    def release(self) -> None:
        """Let others have the session. A commit after this raises :class:`StaleEpoch`."""
        ...


class Store(Protocol):
    """All sessions of one home. Readers never wait for a writer; to append, :meth:`hold` a session.

    A method that takes the id of a session raises :class:`StoreError` with the code ``not_found`` when it must be there
    and is not; a query for the rows of an unknown session returns none.

    :ivar notices: what a person should be told about the store, for example that it was damaged. Whoever tells it removes it.
    """

    @property
    def notices(self) -> list[str]: ...
    def news(self) -> list[str]:
        """Return the notices that no turn has told yet, once."""
        ...

    def close(self) -> None:
        """Finish what was begun and let go of the database."""
        ...

    def damages(self) -> AsyncIterator[str]:
        """Read everything, every hash too, and yield a sentence for whatever is not what was stored."""
        ...

    async def repair(self) -> bool:
        """Keep a damaged database aside and go on with what is sound in it; return whether it was damaged.

        ``notices`` says what was lost.
        """
        ...

    # ---------------------------------------------------------------- sessions

    async def create(
        self,
        *,
        vault: str,
        agent: str,
        mode: str,
        model: str = "",
        parent: str | None = None,
        purpose: str = "main",
        id: str | None = None,
    ) -> SessionRow:
        """Begin an empty session and return it."""
        ...

    async def begin_child(
        self, parent: SessionRow, *, agent: str, mode: str, title: str, origin: Mapping[str, Any]
    ) -> SessionLock:
        """Begin a child session of `parent` and hold it, in one transaction."""
        ...

    async def hold(self, session_id: str, *, wait: float = 0) -> SessionLock:
        """Become the session's one appender.

        :param session_id: its id, or a unique beginning of it.
        :param wait: seconds to wait for another holder to end.
        :raises SessionBusy: someone else holds it.
        :raises StoreError: ``corrupt``: it is damaged, and even the repair did not help.
        """
        ...

    def identity(self) -> object:
        """Return what tells the database from another one in its place; nothing while there is none."""
        ...

    def seems_held(self, session: str) -> bool:
        """Tell whether a living process works in a session. Takes no lock."""
        ...

    async def sessions(
        self, limit: int = 50, *, vault: str | None = None, purpose: str | None = "main", parent: str | None = None
    ) -> list[SessionRow]:
        """Return sessions, the last used first; ``None`` asks for nothing."""
        ...

    async def session(self, name: str) -> SessionRow:
        """Return a session by its id or a unique beginning of it.

        :raises StoreError: ``not_found`` or ``ambiguous``.
        """
        ...

    async def latest(self, vault: str) -> SessionRow | None:
        """Return the main session of `vault` that was used last."""
        ...

    async def family(self, session: str) -> list[str]:
        """Return a session and the child sessions below it, each behind its parent."""
        ...

    async def heirs(self, sessions: Collection[str]) -> list[SessionRow]:
        """Return the sessions that stem from one of `sessions`, by forks or imports, and are none of them."""
        ...

    async def fork(self, session: str, node: str | None = None, *, title: str = "") -> SessionRow:
        """Copy the path to `node` (or to the active node) into a new session; nodes keep their ids."""
        ...

    async def delete(self, session: str) -> None:
        """Remove a session and the child sessions below it, all or none. The files of its outputs are the caller's.

        :raises SessionBusy: someone holds one of them.
        """
        ...

    def export(self, session: str) -> AsyncIterator[str]:
        """Yield a session and those it started as JSON Lines, without their newlines, as they were at one moment."""
        ...

    async def import_(self, lines: Iterable[str | bytes]) -> SessionRow:
        """Store an exported session and those it started; each gets a new id where its own is taken.

        Their mode and grants have no effect here, and their questions and outputs count as expired.

        :raises StoreError: ``invalid``, with the number of the wrong line; nothing was imported.
        """
        ...

    # ---------------------------------------------------------------- the tree

    async def path(self, session: str, node: str | None = None) -> list[Node]:
        """Return the whole path from the root to `node`, or to the active node."""
        ...

    async def nodes(self, session: str) -> list[Node]:
        """Return all nodes of all branches, in the order of their `seq`."""
        ...

    async def labels(self, session: str) -> dict[str, str]:
        """Return label -> node id, of all branches."""
        ...

    async def first_prompt(self, session: str) -> str:
        """Return the text of a session's first prompt; empty when it has none."""
        ...

    async def search(self, text: str, limit: int = 20) -> list[Hit]:
        """Return the nodes of all sessions in which people, models or tools wrote `text`."""
        ...

    # ---------------------------------------------------------------- beside the tree

    async def runs(self, session: str) -> list[RunRow]:
        """Return the turns of a session, oldest first."""
        ...

    async def calls(
        self, session: str | None = None, since: str | None = None, states: Collection[str] | None = None
    ) -> list[CallRow]:
        """Return tool calls, oldest first."""
        ...

    async def call_ids(self, session: str) -> set[str]:
        """Return the ids of all tool calls of a session."""
        ...

    async def events(self, session: str | None, after: int = 0, limit: int = -1, *, types: Collection[str] = ()) -> list[Event]:
        """Return stored events with a larger `seq` than `after`, of one session or, with ``None``, of all; only of `types`.

        Numbers grow over all sessions and never come again, so that a client resumes by the last one it saw.
        """
        ...

    async def event_span(self) -> tuple[int, int]:
        """Return the number of the oldest event that is stored, 0 without one, and of the newest that ever was."""
        ...

    async def hook_calls(
        self, session: str | None, turn: str | None = None, plugin: str | None = None, *, newest: int | None = None
    ) -> list[HookCallRow]:
        """Return the ledger of a session, or of all, oldest first; with `newest` that many of the last rows, newest first."""
        ...

    async def hook_effects(self, session: str) -> list[HookCallRow]:
        """Return the lines of the ledger where a hook did something to a call, or failed at it."""
        ...

    async def quarantined_plugins(self, newest: int) -> list[str]:
        """Return the plugins of which, in that many of the last lines of the ledger, something was skipped."""
        ...

    async def approvals(self, session: str | None = None, state: str | None = None) -> list[ApprovalRow]:
        """Return stored questions, oldest first."""
        ...

    async def approval(self, approval_id: str) -> ApprovalRow:
        """Return a stored question.

        :raises StoreError: ``not_found``.
        """
        ...

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> ApprovalRow:
        """Answer a stored question and return how it stands; the first answer stands. Needs no lock.

        :raises StoreError: ``not_found``, or ``invalid`` for an unknown reply.
        """
        ...

    async def artifacts(self, session: str | None = None, *, state: str | None = None, limit: int = 100) -> list[Artifact]:
        """Return records of stored outputs, newest first."""
        ...

    async def artifact(self, artifact_id: str) -> Artifact | None:
        """Return the record of a stored output."""
        ...

    async def update_artifact(self, artifact_id: str, **changes: Any) -> None:
        """Change a record's `state`, `expires` or `path`; the row itself stays."""
        ...

    async def plugin_state(self, session: str) -> dict[tuple[str, str], Any]:
        """Return ``(plugin, "session" or "turn:<id>") -> JSON`` of a session."""
        ...

"""The interface of a session store, independent of the database: :class:`Store`, :class:`SessionLock`, and their errors.

Sessions, compaction, traces and servers depend on this file alone; :func:`moryflow.store.open_store` chooses the
implementation. Three guarantees hold for every method:

- When a method returns, its writes survive a crash of the process and of the machine.
- A method that raises has stored nothing. Its error is one of this file, never one of the database's own. If the caller is
  cancelled during a write, either all of it is stored or nothing.
- Returned values are immutable; no later commit changes them, except :attr:`SessionLock.session` and
  :attr:`SessionLock.path`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from moryflow_sdk import Artifact, Event, MoryflowError

from .records import ApprovalRow, CallRow, Commit, Committed, Hit, HookCallRow, Node, RunRow, SessionRow


class StoreError(MoryflowError):
    """The store could not do what was asked; nothing was stored.

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
    """Another holder took the session while this one was stopped; this one must not write any more."""

    code = "stale"


class Outdated(MoryflowError):
    """The node that a commit was built on is no longer the active node; nothing was stored."""

    code = "outdated"


def invalid(message: str, *, where: str = "", next_step: str = "") -> StoreError:
    """Return the error for a value that must not be stored."""
    return StoreError(message, code="invalid", where=where, next_step=next_step)


WaitForLock = Callable[[StoreError, int, float], Awaitable[bool]]


class SessionLock(Protocol):
    """The right to append to one session. At most one process has it, until :meth:`release` or its own end.

    :ivar session: the session as it is stored.
    :ivar path: the active path, root first, without the nodes that a compaction covers. All of its nodes are stored. It is
        the same list for the life of the lock, and commits extend it; do not change it.
    :ivar epoch: the number of this holder, counted from 1; a commit of an earlier holder is refused.
    """

    session: SessionRow
    path: list[Node]
    epoch: int

    async def commit(self, commit: Commit) -> Committed:
        """Store all of `commit` or nothing; return its nodes, and its events with their numbers.

        `path` and `session` change only after it is stored.

        :raises StaleEpoch: another holder took the session.
        :raises Outdated: the active node is not ``commit.after``.
        :raises StoreError: ``locked`` if another program writes: the same commit may be tried again. Or any other code.
        """
        ...

    async def commit_patiently(self, commit: Commit, wait: WaitForLock) -> Committed:
        """Like :meth:`commit`; while another program keeps the database locked, call `wait` and try again.

        :param wait: receives the error, the number of the try and the seconds to wait; returns whether to try again.
        :raises StoreError: ``locked`` after ten minutes, or if `wait` returned false; otherwise as :meth:`commit`.
        """
        ...

    async def switch(self, node_id: str | None) -> None:
        """Make another node the active one; ``None`` is the place before the first node. Nothing is appended.

        :raises StaleEpoch: another holder took the session.
        :raises StoreError: ``invalid``: the session has no such node.
        """
        ...

    def release(self) -> None:
        """Release the session for other holders. A commit after this raises :class:`StaleEpoch`."""
        ...


class Store(Protocol):
    """All sessions of one home folder. Readers never wait for a writer; to append, :meth:`hold` a session.

    A method that needs an existing session raises :class:`StoreError` with the code ``not_found`` for an unknown id; a query
    for the rows of an unknown session returns none.

    :ivar notices: sentences for the user about the store, for example that it was damaged. Who shows one removes it.
    """

    @property
    def notices(self) -> list[str]: ...
    def news(self) -> list[str]:
        """Return the notices that no turn has reported yet; each is returned once."""
        ...

    def close(self) -> None:
        """Finish running work and close the database."""
        ...

    def damages(self) -> AsyncIterator[tuple[str, str]]:
        """Read the whole database, check every hash, and yield a sentence and the next command for each damage."""
        ...

    async def repair(self) -> bool:
        """Move a damaged database aside and put the last backup in its place; return whether it was damaged.

        ``notices`` says which backup that is.
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
        """Take the session's lock, which alone allows appending.

        :param session_id: its id, or a unique beginning of it.
        :param wait: seconds to wait for another holder to release it.
        :raises SessionBusy: another holder still has it.
        :raises StoreError: ``corrupt`` if the session is damaged and the repair did not help.
        """
        ...

    def identity(self) -> object:
        """Return a value that changes if another database takes this one's place; ``None`` while there is no database."""
        ...

    def seems_held(self, session: str) -> bool:
        """Return whether a living process seems to hold a session. Takes no lock."""
        ...

    async def sessions(
        self, limit: int = 50, *, vault: str | None = None, purpose: str | None = "main", parent: str | None = None
    ) -> list[SessionRow]:
        """Return sessions, the last used first. A filter that is ``None`` is not applied."""
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
        """Return the ids of a session and of all child sessions below it, each after its parent."""
        ...

    async def heirs(self, sessions: Collection[str]) -> list[SessionRow]:
        """Return the sessions that were forked or imported from one of `sessions`, directly or not, without `sessions`."""
        ...

    async def fork(self, session: str, node: str | None = None, *, title: str = "") -> SessionRow:
        """Copy the path to `node` (or to the active node) into a new session; nodes keep their ids."""
        ...

    async def delete(self, session: str) -> None:
        """Remove a session and the child sessions below it, all or none. The caller removes the files of its outputs.

        :raises SessionBusy: one of the sessions is held.
        """
        ...

    def export(self, session: str) -> AsyncIterator[str]:
        """Yield a session and its child sessions as JSON Lines without the newlines, all from one snapshot."""
        ...

    async def import_(self, lines: Iterable[str | bytes], vault: str | None = None) -> SessionRow:
        """Store an exported session and its child sessions; a session whose id is already in use gets a new one.

        :param vault: the folder that they work in; ``None``: the one in the lines, which somebody else may have chosen.
        The mode and the grants of an import have no effect; its questions and outputs count as expired.

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
        """Return label → node id for the labels of all branches."""
        ...

    async def first_prompt(self, session: str) -> str:
        """Return the text of a session's first prompt, or ``""`` if it has none."""
        ...

    async def search(self, text: str, limit: int = 20) -> list[Hit]:
        """Return the nodes of all sessions in which people, models or tools wrote `text`."""
        ...

    # ---------------------------------------------------------------- records beside the tree

    async def runs(self, session: str) -> list[RunRow]:
        """Return the turns of a session, oldest first."""
        ...

    async def spent(
        self, *, session: str | None = None, agent: str | None = None, folder: str | None = None, since: str = ""
    ) -> float:
        """Return the US dollars of turns that have ended, of those that fit; a turn's cost holds those of its sub-agents.

        :param agent: counts the turns of this agent alone, wherever they ran.
        :param folder: counts the sessions of this folder and of those below it; `since` is UTC, ISO 8601.
        """
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
        """Return stored events with a `seq` above `after`, of one session or, with ``None``, of all; `types` filters them.

        With a `limit`, they may be fewer, at least one, if they are large.
        `seq` grows over all sessions and no number is used twice, so a client can resume from the last one it saw.
        """
        ...

    async def event_span(self) -> tuple[int, int]:
        """Return the `seq` of the oldest stored event, or 0 if there is none, and the highest `seq` ever used."""
        ...

    async def wait_for_events(self, seconds: float) -> None:
        """Wait until another process may have stored events: at most `seconds`, less where the database tells at once."""
        ...

    async def hook_calls(
        self, session: str | None, turn: str | None = None, plugin: str | None = None, *, newest: int | None = None
    ) -> list[HookCallRow]:
        """Return ledger rows of a session or of all, oldest first; with `newest`, only that many, newest first."""
        ...

    async def hook_effects(self, session: str) -> list[HookCallRow]:
        """Return the ledger rows in which a hook changed a call, or failed or timed out on one."""
        ...

    async def approvals(self, session: str | None = None, state: str | None = None) -> list[ApprovalRow]:
        """Return stored questions, oldest first."""
        ...

    async def approval(self, approval_id: str) -> ApprovalRow:
        """Return a stored question.

        :raises StoreError: ``not_found``.
        """
        ...

    async def offered(self, vault: str) -> bool:
        """Whether a question of a session in the folder `vault` offered a preset of rules before."""
        ...

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> ApprovalRow:
        """Answer a stored question and return it; if it was already answered, the first answer stands. Needs no lock.

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
        """Change the `state`, `expires` or `path` of an output's record."""
        ...

    async def keep_output(self, artifact: Artifact) -> None:
        """Keep a copy of an output's file where every machine that has this store can read it, if this one is shared."""
        ...

    async def output(self, artifact: Artifact, offset: int, limit: int) -> bytes | None:
        """Return at most `limit` bytes of that copy from `offset`; ``None`` if there is none."""
        ...

    async def plugin_state(self, session: str) -> dict[tuple[str, str], Any]:
        """Return the plugins' state in a session: ``(plugin, "session" or "turn:<id>")`` → JSON value."""
        ...

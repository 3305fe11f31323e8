"""The lock that allows one process to append to a session, and its spool: a file for results that a locked database refused.

The file exists from the first refusal on, so the results of calls survive the end or a kill of the process. The next holder
of the session stores them.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from moryflow_sdk import Artifact, Event

from moryflow.store.protocol import SessionBusy, StaleEpoch, StoreError, WaitForLock, invalid
from moryflow.store.records import CallRow, Commit, Committed, NewNode, Node, SessionRow
from moryflow.store.sqlite.schema import encode, random_id

from .database import Database
from .locks import FileLock
from .statements import Written, apply, switch

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds between tries while another program keeps the database locked; each try waits for the lock itself too."""
LONGEST_LOCK = 600.0


class SqliteSessionLock:
    """:class:`moryflow.store.SessionLock` for a session in SQLite; the interface documents each method."""

    def __init__(self, database: Database, lock: FileLock, session: SessionRow, path: list[Node]) -> None:
        self.session = session
        self.path = path
        self.epoch = session.epoch
        self._database = database
        self._lock = lock
        self._released = False
        self._spool = database.path.parent / "unstored" / f"{session.id}.json"
        self._spooled = False

    async def commit(self, commit: Commit) -> Committed:
        self._require_held()
        id, known = self.session.id, self.session.active
        written = await self._database.write(lambda to: apply(to, id, self.epoch, commit, known), self._update)
        if self._spooled:
            self._spooled = False
            _remove_spool(self._spool)
        return written.committed

    async def commit_patiently(self, commit: Commit, wait: WaitForLock) -> Committed:
        begun, attempt = time.monotonic(), 1
        while True:
            try:
                return await self.commit(commit)
            except StoreError as error:
                if error.code != "locked":
                    raise
                kept = self._spool_results(commit)
                pause = min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE)
                over = time.monotonic() - begun > LONGEST_LOCK or not await wait(error, attempt, pause)
                if over and kept:
                    raise _error_with_spool(error, kept, self.session.id) from error
                if over:
                    raise
                attempt += 1

    def _spool_results(self, commit: Commit) -> str:
        """Keep the results of `commit` in a file; return its path, or ``""`` if there are none or it cannot be written."""
        if not commit.nodes:
            return ""
        commit.nodes = [node if node.id else replace(node, id=random_id()) for node in commit.nodes]
        try:
            _write_spool(self._spool, commit, self.session.active)
        except OSError:
            return ""
        self._spooled = True
        return str(self._spool)

    async def take_up(self) -> int:
        found = _read_spool(self._spool)
        if found is None:
            return 0
        known = {node.id for node in self.path}
        if any(node.id in known for node in found.commit.nodes):  # the database had stored it after all
            _remove_spool(self._spool)
            return 0
        if found.after != self.session.active:
            self._spool.replace(self._spool.with_suffix(".outdated"))
            return 0
        await self.commit(found.commit)
        _remove_spool(self._spool)
        return len(found.commit.nodes)

    async def switch(self, node_id: str | None) -> None:
        self._require_held()
        await self._database.write(lambda to: switch(to, self.session.id, self.epoch, node_id), self._update)

    def release(self) -> None:
        self._released = True
        self._lock.release()

    def _update(self, written: Written) -> None:
        self.session = written.session
        if written.path is None:
            self.path.extend(written.committed.nodes)
        else:
            self.path[:] = written.path

    def _require_held(self) -> None:
        if self._released:
            message = f"session {self.session.id} was already released"
            raise StaleEpoch(message, next_step=f"moryflow run --resume {self.session.id}")


def _error_with_spool(error: StoreError, place: str, session: str) -> StoreError:
    """Return `error` with the place of the file that keeps the results."""
    message = f"{error.message}; the results are kept in {Path(place).name} and stored when the session goes on"
    next_step = f"close the other program, then moryflow run -r {session}"
    return StoreError(message, code=error.code, where=place, next_step=next_step)


def session_lock(home: Path, session: str) -> FileLock:
    """Return the lock of a session, without acquiring it."""
    return FileLock(home / "locks" / f"{session}.lock")


def busy_error(session: str, lock: FileLock) -> SessionBusy:
    """Return the error for a session that another holder has."""
    next_step = f"wait for it to end (run and chat do with --wait), or work on a copy: moryflow session fork {session}"
    return SessionBusy(f"session {session} is in use by {lock.holder()}", where=str(lock.path), next_step=next_step)


_NODE = ("kind", "payload", "id", "tokens")
_NEVER_RAN = ("running", "pending", "waiting")


class _Spooled(NamedTuple):
    """The content of a spool file: a commit, and the node that was active before it."""

    commit: Commit
    after: str | None


def _write_spool(path: Path, commit: Commit, after: str | None) -> None:
    """Write the results of `commit`: its nodes, finished calls, outputs, events and plugin state; no call that did not end.

    :raises OSError: the file cannot be written.
    """
    ended = [call for call in commit.calls if call.state not in _NEVER_RAN]
    document = {
        "v": 1,
        "after": after,
        "nodes": [{name: getattr(node, name) for name in _NODE} for node in commit.nodes],
        "calls": [call._asdict() for call in ended],
        "artifacts": [artifact.model_dump(mode="json") for artifact in commit.artifacts],
        "events": [event.model_dump(mode="json") for event in commit.events if event.type != "tool.start"],
        "state": [[*key, value] for key, value in commit.plugin_state.items()],
    }
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(encode(document))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _read_spool(path: Path) -> _Spooled | None:
    """Return the content of the spool file at `path`, or ``None`` if there is none.

    :raises StoreError: ``invalid``: the file cannot be read, or :func:`_write_spool` did not write it.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable_error(path, error) from error
    try:
        return _Spooled(_commit(found), found["after"])
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable_error(path, error) from error


def _remove_spool(path: Path) -> None:
    """Remove the spool file at `path`, because its content is stored now."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another session's spool is in the folder
        path.parent.rmdir()


def _commit(found: dict[str, Any]) -> Commit:
    return Commit(
        nodes=[NewNode(**node) for node in found["nodes"]],
        calls=[CallRow(**call) for call in found["calls"]],
        artifacts=[Artifact.model_validate(artifact) for artifact in found["artifacts"]],
        events=[Event.model_validate(event) for event in found["events"]],
        plugin_state={(plugin, scope): value for plugin, scope, value in found["state"]},
    )


def _unreadable_error(path: Path, error: Exception) -> StoreError:
    next_step = f"look at it, then move it away: {path}"
    return invalid(f"the results that wait to be stored cannot be read: {error}", where=str(path), next_step=next_step)

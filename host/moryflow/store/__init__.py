"""The session store: the append-only node tree, the lock that allows one process to append, and the rows beside the tree.

:class:`Store` is the interface; :func:`open_store` opens that of a home folder: a file of
SQLite, or a database of PostgreSQL.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .protocol import Outdated, SessionBusy, SessionLock, StaleEpoch, Store, StoreError
from .records import (
    ROOT,
    ApprovalRow,
    Branch,
    CallRow,
    Commit,
    HookCallRow,
    NewNode,
    Node,
    RunRow,
    SessionRow,
    Unfinished,
    labels,
    path_to,
    tree,
    unfinished,
)

if TYPE_CHECKING:
    from .postgres.inbox import Inbox

__all__ = [
    "DATABASE",
    "ROOT",
    "ApprovalRow",
    "Branch",
    "CallRow",
    "Commit",
    "HookCallRow",
    "NewNode",
    "Node",
    "Outdated",
    "RunRow",
    "SessionBusy",
    "SessionLock",
    "SessionRow",
    "StaleEpoch",
    "Store",
    "StoreError",
    "Unfinished",
    "existing_store",
    "inbox_of",
    "labels",
    "open_store",
    "path_to",
    "tree",
    "unfinished",
]

DATABASE = "sessions.db"


def open_store(home: Path, *, url: str = "", patience: float = 5.0, lease: float = 30.0, outputs: str = "") -> Store:
    """Open the session store of a home folder; create or migrate it if necessary.

    :param url: a PostgreSQL database that holds the sessions; empty: what ``MORYFLOW_STORE`` names, or the file in the folder.
    :param patience: seconds to wait for another process's lock, or for the database, before raising ``locked``.
    :param lease: seconds after which a session in PostgreSQL whose holder says nothing may be taken over.
    :param outputs: the object store for large outputs of a store in PostgreSQL.
    :raises StoreError: the store is of a newer version or of another program, or cannot be used.
    """
    if url := url or os.environ.get("MORYFLOW_STORE", "").strip():
        return _open_postgres(url, patience, lease, outputs)
    from .sqlite.store import SqliteStore

    return SqliteStore.open(home / DATABASE, patience=patience)


def _open_postgres(url: str, patience: float, lease: float, outputs: str) -> Store:
    try:
        from .postgres.store import PostgresStore
    except ImportError as error:
        message = f"a store in PostgreSQL needs psycopg, which is not installed ({error})"
        raise StoreError(message, code="invalid", next_step="python -m pip install 'moryflow[postgres]'") from error
    return PostgresStore.open(url, patience=patience, lease=lease, outputs=outputs)


def inbox_of(store: Store) -> Inbox | None:
    """Return what workers take from a store in PostgreSQL; ``None`` for a file."""
    if type(store).__module__ != "moryflow.store.postgres.store":
        return None
    from .postgres.store import inbox_of as found

    return found(store)


def existing_store(home: Path, url: str = "") -> Store | None:
    """Return the store of a home folder if it has one."""
    return open_store(home, url=url) if url or (home / DATABASE).exists() else None

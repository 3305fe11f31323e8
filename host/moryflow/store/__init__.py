"""The session store: the append-only node tree, the lock that allows one process to append, and the rows beside the tree.

:class:`Store` is the interface; :func:`open_store` opens the SQLite store of a home folder.
"""

from __future__ import annotations

from pathlib import Path

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
    "labels",
    "open_store",
    "path_to",
    "tree",
    "unfinished",
]

DATABASE = "sessions.db"


def open_store(home: Path, *, patience: float = 5.0) -> Store:
    """Open the session store of a home folder; create or migrate it if necessary.

    :param patience: seconds to wait for another process's lock before raising ``locked``.
    :raises StoreError: the file is of a newer version or of another program, or cannot be used.
    """
    from .sqlite.store import SqliteStore

    return SqliteStore.open(home / DATABASE, patience=patience)


def existing_store(home: Path) -> Store | None:
    return open_store(home) if (home / DATABASE).exists() else None

"""The session store: the append-only node tree, who may append to it, and everything recorded beside it.

:class:`Store` says what a store does; :func:`open_store` opens the one of a home, which SQLite keeps.
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

_FILE = "sessions.db"


def open_store(home: Path, *, patience: float = 5.0) -> Store:
    """Open the session store of a home, making or migrating it if need be.

    :param patience: seconds to wait for a lock of another process before ``locked``.
    :raises StoreError: it is of a newer version, of another program, or cannot be used.
    """
    from .sqlite.store import SqliteStore

    return SqliteStore.open(home / _FILE, patience=patience)


def existing_store(home: Path) -> Store | None:
    """Open the session store of a home, if it has one."""
    return open_store(home) if (home / _FILE).exists() else None

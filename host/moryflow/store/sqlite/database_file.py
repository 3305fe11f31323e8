"""Look at a database before it is used: ours, older, newer, another program's, damaged, or not there yet.

Only SQLite opens a database that may be in use. A process that opens and closes such a file by itself loses the locks that
its own SQLite holds on it, and others then remove the log under its feet.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from moryflow.store.protocol import StoreError

from .failures import Damaged, store_error
from .locks import FileLock
from .schema import APPLICATION_ID, MIGRATIONS, migrate, version_of

_LOCK_PATIENCE = 30.0
PARTS = ("", "-wal", "-shm")
SALVAGED = ".salvaged"
_LOG_LIMIT = 64 * 1024 * 1024


class Still(sqlite3.Connection):
    """A connection that takes the file for one that nobody writes: it is used once, and never sees what comes later."""


def connect(path: Path, *, writes: bool = True, patience: float = 5.0) -> sqlite3.Connection:
    """Return a connection to an existing file; a reader cannot write."""
    address = f"{path.as_uri()}?mode={'rw' if writes else 'ro'}"
    connection = sqlite3.connect(address, uri=True, timeout=patience, isolation_level=None, check_same_thread=False)
    if writes:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA recursive_triggers = ON")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT}")
    return connection


def open_reader(path: Path, *, patience: float = 5.0) -> sqlite3.Connection:
    """Return a reading connection that works, also after a crash, in a folder that cannot be written and on a full disk.

    :raises sqlite3.Error: the file cannot be read.
    """
    reader = connect(path, writes=False, patience=patience)
    try:
        reader.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        reader.close()
        if error.sqlite_errorcode == sqlite3.SQLITE_READONLY_ROLLBACK:
            with closing(connect(path, patience=patience)) as writer:
                writer.execute("SELECT 1 FROM sqlite_master").fetchone()
            return connect(path, writes=False, patience=patience)
        has_room = store_error(error, path).code != "no_space"
        if (has_room and _is_writable(path.parent)) or _has_content(path, "-wal"):
            raise
        # Without a log nobody writes, and SQLite need not make the files by which writers and readers meet.
        address = f"{path.as_uri()}?mode=ro&immutable=1"
        return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False, factory=Still)
    return reader


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK)


def ensure_ready(path: Path) -> None:
    """Make the database at `path`, bring an older one up to date, or say why it cannot be used.

    :raises StoreError: ``newer`` or ``foreign``; the file is left as it is.
    :raises sqlite3.Error: it is damaged, locked or unreachable.
    """
    if path.is_dir():
        raise _foreign(path, "this is a folder, and not a session database")
    if _has_content(path) and _is_ready(path):
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with store_lock(path):
        if not _has_content(path):
            _require_nothing_left(path)
            put_in_place(make_database(beside(path, ".new")), path)
        elif not _is_ready(path):
            with closing(connect(path)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                migrate(connection)


def make_database(path: Path) -> Path:
    """Make an empty database of this version at a name that nobody else uses, and return the name.

    It gets its place when it is complete: a process killed here leaves nothing half made.
    """
    remove(path)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection)
    return path


def beside(path: Path, suffix: str) -> Path:
    """Return the file beside `path` whose name has `suffix` added."""
    return path.with_name(path.name + suffix)


def remove(path: Path) -> None:
    """Remove a database that nobody uses, with its log."""
    for part in PARTS:
        beside(path, part).unlink(missing_ok=True)


def put_in_place(new: Path, path: Path) -> None:
    """Give a complete and closed database its name, for good.

    :raises OSError: it is not complete: closing it did not fold its log into the file, and said nothing.
    """
    if _has_content(new, "-wal"):
        raise OSError(errno.EIO, "the log of a new database could not be written into it", str(new))
    new.rename(path)
    with contextlib.suppress(OSError):  # where folders cannot be synced
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _has_content(path: Path, suffix: str = "") -> bool:
    try:
        return beside(path, suffix).stat().st_size > 0
    except FileNotFoundError:
        return False


def _require_nothing_left(path: Path) -> None:
    """Let no new database begin beside the log of one that is gone, or before a repair has ended.

    :raises Damaged: there is such a log or repair.
    """
    if _has_content(path, "-wal") or beside(path, SALVAGED).exists():
        raise Damaged("the file is missing or empty, but its log is there")


@contextmanager
def store_lock(path: Path) -> Iterator[None]:
    """Hold the lock under which the file itself is made, migrated or replaced.

    :raises StoreError: ``locked``, another process does so for too long.
    """
    lock = FileLock(path.parent / "locks" / "store.lock")
    deadline = time.monotonic() + _LOCK_PATIENCE
    while not lock.acquire():
        if time.monotonic() > deadline:
            message = f"{lock.holder()} is preparing the session database and does not finish"
            raise StoreError(message, code="locked", where=str(path), next_step="end that process, then try again")
        time.sleep(0.02)
    try:
        yield
    finally:
        lock.release()


def _is_ready(path: Path) -> bool:
    """Tell whether the database is ours and of this version; ``False`` when it is empty or older."""
    with closing(open_reader(path)) as connection:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = version_of(connection)
        if application != APPLICATION_ID:
            if version or connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise _foreign(path, "this is a database of another program")
            return False
        if version > len(MIGRATIONS):
            raise newer(path, version)
        require_tables(connection)
        is_wal = connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        cannot_be_told = isinstance(connection, Still) or not _is_writable(path.parent)
        return version == len(MIGRATIONS) and (is_wal or cannot_be_told)


def require_tables(connection: sqlite3.Connection) -> None:
    """Read the list of tables, which also finds a file that was cut short.

    :raises sqlite3.DatabaseError: it is damaged.
    """
    statement = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('sessions', 'nodes')"
    if version_of(connection) and connection.execute(statement).fetchone()[0] != 2:
        raise Damaged("the list of tables is damaged")


def newer(path: Path, version: int) -> StoreError:
    """Return the refusal of a database that a newer Moryflow wrote."""
    message = f"this database has version {version}, written by a newer Moryflow; this one knows version {len(MIGRATIONS)}"
    next_step = "`python -m pip install -U moryflow`, or set MORYFLOW_HOME to another folder"
    return StoreError(message, code="newer", where=str(path), next_step=next_step)


def _foreign(path: Path, what: str) -> StoreError:
    next_step = "move it away, or set MORYFLOW_HOME to another folder"
    return StoreError(f"{what}; it is left as it is", code="foreign", where=str(path), next_step=next_step)

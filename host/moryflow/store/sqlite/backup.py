"""Copies the database once a day, and puts the copy in the place of a damaged file, which is kept beside it.

Nothing is saved from the damaged file here: `.recover` of SQLite's own shell does that better.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from .database import (
    BACKUP,
    BACKUP_INTERVAL,
    PARTS,
    RESTORED,
    beside,
    connect,
    make_database,
    newer_error,
    put_in_place,
    remove,
    require_tables,
    store_lock,
)
from .failures import FAILURES, code_of
from .locks import FileLock
from .schema import MIGRATIONS, version_of

_EPOCHS_AHEAD = 1_000_000


def back_up(path: Path) -> None:
    """Copy the database at `path` if the last copy is older than :data:`BACKUP_INTERVAL` seconds.

    A copy that is not sound, or cannot be written, is dropped: the one before it stays, and the next call tries again.
    """
    copy, new = beside(path, BACKUP), beside(path, ".backup-new")
    with contextlib.suppress(FileNotFoundError):
        if 0 <= time.time() - copy.stat().st_mtime < BACKUP_INTERVAL:
            return
    lock = FileLock(path.parent / "locks" / "store.lock")
    with contextlib.suppress(*FAILURES):
        if not lock.acquire():
            return
        try:
            remove(new)
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with closing(connect(path, writes=False)) as source, closing(connect(new)) as target:
                source.backup(target)
                sound = target.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
            if sound:
                put_in_place(new, copy)
        finally:
            remove(new)
            lock.release()


def restore(path: Path) -> str | None:
    """Put the last backup in the place of the database at `path` if that is damaged; return a notice, or ``None``.

    The new file is complete before the old one is moved, so a process killed in between loses nothing: the next goes on.

    :raises StoreError: the database is of a newer version, or another process is restoring it and does not finish.
    :raises OSError: the new file cannot be written.
    """
    restored, copy = beside(path, RESTORED), beside(path, BACKUP)
    with store_lock(path), _locked(path):
        if path.exists() or not restored.exists():
            if _is_sound(path):
                return None
            put_in_place(_copy_of(copy, beside(path, ".restoring")), restored)
        aside = _move_aside(path)
        put_in_place(restored, path)
    began = "a new one begins, because there is no sound backup"
    if _has_sound(copy):
        began = time.strftime("the backup of %Y-%m-%d %H:%M took its place", time.localtime(copy.stat().st_mtime))
    return f"{path} was damaged. It is kept as {aside.name}; {began}; sqlite3 {aside} .recover reads what is left in it"


def _copy_of(copy: Path, new: Path) -> Path:
    """Make the database `new` from the backup, or an empty one if there is none that is sound."""
    if not _has_sound(copy):
        return make_database(new)
    remove(new)
    shutil.copyfile(copy, new)
    new.chmod(0o600)
    with closing(connect(new)) as connection:
        # Whoever held a session of the damaged file must take it again: their epochs are long past.
        connection.execute("UPDATE sessions SET epoch = epoch + ?", (_EPOCHS_AHEAD,))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return new


def _is_sound(path: Path) -> bool:
    """Return whether the file is undamaged; another process may have restored it already."""
    if not path.exists() or path.stat().st_size == 0:
        return not beside(path, "-wal").exists()
    try:
        with closing(connect(path, writes=False)) as connection:
            version = version_of(connection)
            if version > len(MIGRATIONS):
                raise newer_error(path, version)
            require_tables(connection)
            return connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
    except FAILURES as error:
        if code_of(error) != "corrupt":
            raise
        return False


def _has_sound(copy: Path) -> bool:
    return copy.exists() and _is_sound(copy)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from committing to the damaged file while it is replaced, if it can still be locked."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(*FAILURES):
            if path.stat().st_size:
                stack.enter_context(closing(connect(path))).execute("BEGIN IMMEDIATE")
        yield


def _move_aside(path: Path) -> Path:
    """Rename the damaged file and its log to a free name with the current time; return that path."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside, number = beside(path, f".corrupt-{stamp}"), 1
    while aside.exists():
        number += 1
        aside = beside(path, f".corrupt-{stamp}-{number}")
    for part in PARTS:
        with contextlib.suppress(FileNotFoundError):
            beside(path, part).rename(beside(aside, part))
    return aside

"""Turns errors of SQLite and the operating system into sentences: what happened, in which file, what to do next."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from moryflow.store.protocol import StoreError

from .locks import NO_LOCKS


class Damaged(sqlite3.DatabaseError):
    """Damage that SQLite itself did not detect."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


REPAIR = "moryflow doctor --repair (it keeps the file aside, and goes on with the last backup)"

# The errors that a database may raise; `code_of` maps them to our codes.
FAILURES = (sqlite3.Error, OSError, OverflowError, UnicodeDecodeError)

_SYSTEM_CODES = {
    errno.EMFILE: "many_files",
    errno.ENFILE: "many_files",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EROFS: "readonly",
    errno.EACCES: "readonly",
    errno.EPERM: "readonly",
}
_SIGNS_OF_DAMAGE = ("Could not decode to UTF-8", "unsupported file format")
_CODES = {
    sqlite3.SQLITE_FULL: "no_space",
    sqlite3.SQLITE_IOERR: "io",
    sqlite3.SQLITE_CANTOPEN: "io",
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_READONLY: "readonly",
    sqlite3.SQLITE_PERM: "readonly",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
    sqlite3.SQLITE_TOOBIG: "too_large",
}

_SENTENCES = {
    "no_space": (
        "the disk is full; nothing was stored",
        "free some space, then try again; moryflow run -c goes on with a turn",
    ),
    "io": ("the session database cannot be read or written", "check the disk and the folder, then moryflow doctor"),
    "locked": ("another program has kept the session database locked", "close it, then try again"),
    "no_locks": (
        "the file system of Moryflow's folder has no locks, without which two processes would write over each other",
        "set MORYFLOW_HOME to a folder on a disk of this machine",
    ),
    "many_files": ("this process may open no more files", "ulimit -n 1024, then try again"),
    "readonly": ("the session database cannot be written", "make it writable, or set MORYFLOW_HOME to a folder that is"),
    "corrupt": ("the session database is damaged", REPAIR),
    "too_large": ("a value is larger than the session database can hold", "make the output smaller"),
    "invalid": ("the session database refused the change", "moryflow doctor"),
}


def code_of(error: BaseException) -> str:
    """Return our code for an error of SQLite or of the operating system."""
    if isinstance(error, OSError):
        return "no_locks" if error.errno in NO_LOCKS else _SYSTEM_CODES.get(error.errno or 0, "io")
    if isinstance(error, sqlite3.DataError | OverflowError):
        return "too_large"
    # A damaged text, or SQLite's own message about damage, may not be UTF-8.
    if isinstance(error, UnicodeDecodeError) or any(sign in str(error) for sign in _SIGNS_OF_DAMAGE):
        return "corrupt"
    number = getattr(error, "sqlite_errorcode", None)
    return _CODES.get(number & 0xFF, "invalid") if isinstance(number, int) else "invalid"


def store_error(error: BaseException, path: Path) -> StoreError:
    """Return the :class:`StoreError` for `error` about the database at `path`; the caller raises it ``from error``."""
    code, where = code_of(error), path
    if code in ("io", "readonly") and (closed := _not_writable(path)) is not None:
        code, where = "readonly", closed
    elif code == "io" and _is_full(path):  # SQLite reports no more detail
        code = "no_space"
    message, next_step = _SENTENCES[code]
    return StoreError(f"{message} ({error})", code=code, where=str(where), next_step=next_step)


def _not_writable(path: Path) -> Path | None:
    """Return what this process may not write of the database's three files and their folder; SQLite's errors do not name it."""
    files = (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm"), path.parent)
    return next((file for file in files if os.access(file, os.F_OK) and not os.access(file, os.R_OK | os.W_OK)), None)


def _is_full(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < 64 * 1024

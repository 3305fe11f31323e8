"""Replace a damaged database by what can be read of it; the damaged one is kept beside it.

The new file is complete before it takes the old one's place, so that a crash in between costs nothing: the next start
finds the damaged file and begins again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from .opening import Connections, connect, newer, require_tables, store_lock
from .salvage import Saved, salvage
from .schema import MIGRATIONS, migrate, version_of

_PARTS = ("", "-wal", "-shm")
_PAGE = 4096


def recover(path: Path) -> str | None:
    """Repair the database at `path` and return the sentence that says so; ``None`` when it turned out to be sound.

    :raises StoreError: it is of a newer version, or another process repairs it and does not finish.
    :raises OSError: the repaired file cannot be written.
    """
    with store_lock(path):
        if _is_sound(path):
            return None
        new = path.with_name(f"{path.name}.salvaging")
        _remove(new)
        with _others_kept_out(path):
            saved = _rebuild(path, new)
            aside = _aside(path)
            _move(path, aside)
            new.rename(path)
        _sync_folder(path.parent)
    return f"{path} was damaged. It is kept as {aside.name}; {saved.sentence}"


def _is_sound(path: Path) -> bool:
    """Tell whether every page can be read; another process may have repaired the file already."""
    if not path.exists() or path.stat().st_size == 0:
        return not path.with_name(f"{path.name}-wal").exists()
    try:
        with closing(connect(path, writes=False)) as connection:
            version = version_of(connection)
            if version > len(MIGRATIONS):
                raise newer(path, version)
            require_tables(connection)
            return connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
    except sqlite3.Error:
        return False


@contextmanager
def _others_kept_out(path: Path) -> Iterator[None]:
    """Let no other process commit to the damaged file while it is copied, as far as it still takes a lock."""
    pair = Connections(path)
    try:
        with contextlib.suppress(sqlite3.Error):
            pair.writer.execute("BEGIN IMMEDIATE")
        yield
    finally:
        pair.abandon()


def _rebuild(path: Path, new: Path) -> Saved:
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(connect(new, writes=True)) as target:
        target.execute("PRAGMA journal_mode = WAL")
        migrate(target)
        saved = salvage(path, target)
        if not saved.nodes:
            saved = _salvage_without_first_page(path, target)
        target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return saved


def _salvage_without_first_page(path: Path, target: sqlite3.Connection) -> Saved:
    """Read a copy whose first page, with the list of tables, is that of an empty database of ours."""
    copy = path.with_name(f"{path.name}.copy")
    empty = path.with_name(f"{path.name}.empty")
    try:
        _remove(copy)
        _remove(empty)
        _make_empty(empty)
        for part in ("", "-wal"):
            if path.with_name(path.name + part).exists():
                shutil.copyfile(path.with_name(path.name + part), copy.with_name(copy.name + part))
        with copy.open("r+b") as file:
            file.write(empty.read_bytes()[:_PAGE])
        return salvage(copy, target)
    finally:
        _remove(copy)
        _remove(empty)


def _make_empty(path: Path) -> None:
    path.touch(0o600)
    with closing(connect(path, writes=True)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection)


def _aside(path: Path) -> Path:
    """Return a free name that says when the damage was found."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name, number = path.with_name(f"{path.name}.corrupt-{stamp}"), 1
    while name.exists():
        number += 1
        name = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    return name


def _move(path: Path, aside: Path) -> None:
    for part in reversed(_PARTS):
        source = path.with_name(path.name + part)
        if source.exists():
            source.rename(aside.with_name(aside.name + part))


def _remove(path: Path) -> None:
    for part in _PARTS:
        path.with_name(path.name + part).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the renames last; where folders cannot be synced, nothing is done."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

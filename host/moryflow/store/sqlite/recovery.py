"""Replace a damaged database by what can be read of it; the damaged one is kept beside it.

The new file is complete before it takes the old one's place, so that a crash in between costs nothing: the next start
finds the damaged file and begins again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from .database_file import (
    PARTS,
    SALVAGED,
    beside,
    connect,
    make_database,
    newer,
    put_in_place,
    remove,
    require_tables,
    store_lock,
)
from .failures import FAILURES, code_of
from .salvage import Saved, lists_tables, salvage, unsound
from .schema import MIGRATIONS, version_of

_PAGE = 4096
_LENGTH = slice(28, 32)


def recover(path: Path) -> str | None:
    """Repair the database at `path` and return the sentence that says so; ``None`` when it turned out to be sound.

    :raises StoreError: it is of a newer version, or another process repairs it and does not finish.
    :raises OSError: the repaired file cannot be written.
    """
    salvaged, saved = beside(path, SALVAGED), None
    with store_lock(path), _others_kept_out(path):
        if path.exists() or not salvaged.exists():
            if _is_sound(path):
                return None
            saved = _rebuild(path, beside(path, ".salvaging"))
            put_in_place(beside(path, ".salvaging"), salvaged)
        aside = _move_aside(path)
        put_in_place(salvaged, path)
    result = saved.sentence if saved else "what could be read of it was saved."
    return f"{path} was damaged. It is kept as {aside.name}; {result}"


def _is_sound(path: Path) -> bool:
    """Tell whether every page can be read; another process may have repaired the file already."""
    if not path.exists() or path.stat().st_size == 0:
        return not beside(path, "-wal").exists()
    try:
        with closing(connect(path, writes=False)) as connection:
            version = version_of(connection)
            if version > len(MIGRATIONS):
                raise newer(path, version)
            require_tables(connection)
            whole = connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
            return whole and next(unsound(connection), None) is None
    except FAILURES as error:
        if code_of(error) != "corrupt":
            raise
        return False


@contextmanager
def _others_kept_out(path: Path) -> Iterator[None]:
    """Let no other process commit to the damaged file while it is copied, as far as it still takes a lock."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(*FAILURES):
            if path.stat().st_size:
                stack.enter_context(closing(connect(path))).execute("BEGIN IMMEDIATE")
        yield


def _rebuild(path: Path, new: Path) -> Saved:
    """Fill a new database with what can be read of the one at `path`."""
    with closing(connect(make_database(new))) as target, _without_log(path) as readable:
        return salvage(readable, target)


@contextmanager
def _without_log(path: Path) -> Iterator[Path]:
    """The database at `path`, or a copy of it: with the list of tables that it has lost, and with its log written into it.

    The list is that of an empty database of ours: there, each table has the same first page.
    """
    log = beside(path, "-wal")
    listed = path.exists() and path.stat().st_size > 0 and lists_tables(path)
    if listed and not (log.exists() and log.stat().st_size):
        yield path
        return
    copy, empty = beside(path, ".copy"), beside(path, ".empty")
    try:
        remove(copy)
        copy.touch(0o600)
        for part in ("", "-wal"):
            if beside(path, part).exists():
                shutil.copyfile(beside(path, part), beside(copy, part))
        if not listed:
            _transplant_schema(make_database(empty), copy)
        with contextlib.suppress(*FAILURES), closing(connect(copy)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        yield copy
    finally:
        remove(copy)
        remove(empty)


def _transplant_schema(empty: Path, copy: Path) -> None:
    data = bytearray(empty.read_bytes())
    data[_LENGTH] = bytes(4)  # unknown: as long as the file is
    with closing(connect(empty, writes=False)) as connection:
        roots = {row[0] for row in connection.execute("SELECT rootpage FROM sqlite_master WHERE rootpage")}
    with copy.open("r+b") as file:
        length = file.seek(0, os.SEEK_END)
        file.write(data[length:])
        for page in set(range(1, len(data) // _PAGE + 1)) - roots:
            file.seek((page - 1) * _PAGE)
            file.write(data[(page - 1) * _PAGE : page * _PAGE])


def _move_aside(path: Path) -> Path:
    """Rename the damaged file and its log to a free name that says when this was; return the name."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside, number = beside(path, f".corrupt-{stamp}"), 1
    while aside.exists():
        number += 1
        aside = beside(path, f".corrupt-{stamp}-{number}")
    for part in PARTS:
        with contextlib.suppress(FileNotFoundError):
            beside(path, part).rename(beside(aside, part))
    return aside

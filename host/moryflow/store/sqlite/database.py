"""Two connections to one file: a writer, with a thread for slow transactions, and a reader that never takes a lock.

Every write is one ``BEGIN IMMEDIATE`` transaction, synced to the disk before its result is returned. The file is checked
before and after, because SQLite also writes into a database that was removed or replaced meanwhile.

Only SQLite may open a database that is in use. If this process opened and closed the file itself, it would lose the locks
that its own SQLite holds on it, and another process might then remove the log while it is in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from moryflow.store.protocol import StoreError
from moryflow.store.tables import DamagedRow

from .failures import FAILURES, Damaged, code_of, store_error
from .locks import FileLock
from .schema import APPLICATION_ID, MIGRATIONS, migrate, version_of

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

# Seconds that a transaction may block the event loop; after a longer one, the next transactions run in the thread.
QUICK = 0.05
# How many transactions run in the thread after a slow one, before the loop is tried again.
SLOW_FOR = 10

_CHUNK = 50
_BROKEN = frozenset({"io", "corrupt", "readonly"})
LOCK_TIMEOUT = 30.0
BACKUP_INTERVAL = 24 * 60 * 60
PARTS = ("", "-wal", "-shm")
BACKUP = ".backup"
RESTORED = ".restored"
_LOG_LIMIT = 64 * 1024 * 1024


class Lane:
    """One thread and the connection that it uses; both are created when first needed."""

    def __init__(self, path: Path, *, writes: bool, patience: float) -> None:
        self.path = path
        self.writes = writes
        self.patience = patience
        self._connection: sqlite3.Connection | None = None
        self._patient = True
        self._file: os.stat_result | None = None
        self._executor: ThreadPoolExecutor | None = None

    @property
    def executor(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="store-write" if self.writes else "store-read")
        return self._executor

    def connection(self, prepare: Callable[[], None]) -> sqlite3.Connection:
        """Return a connection to the file that is at the path now; `prepare` creates or migrates the file first."""
        if self._connection is None or not self.is_current():
            self.drop()
            prepare()
            self._file = self.path.stat()
            make = connect if self.writes else open_reader
            self._connection, self._patient = make(self.path, patience=self.patience), True
        return self._connection

    def be_patient(self, patient: bool) -> None:
        """Set whether to wait for another process's transaction from now on."""
        if self._connection is not None and patient is not self._patient:
            self._connection.execute(f"PRAGMA busy_timeout = {int(self.patience * 1000) if patient else 0}")
            self._patient = patient

    def is_current(self) -> bool:
        """Return whether the path still leads to the open file and the connection sees what others write there."""
        try:
            return (
                self._file is not None
                and not isinstance(self._connection, Still)
                and os.path.samestat(self._file, self.path.stat())
            )
        except OSError:
            return False

    def drop(self) -> None:
        """Close the connection; the next use makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def close(self) -> None:
        """Wait for running work, then close."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None
        self.drop()


class Database:
    """The session database of one home folder.

    :param restore: replaces a damaged file; returns a notice for the user, or ``None`` if the file is sound.
    :param back_up: copies the file if the last copy is old.
    :param patience: seconds to wait for another process's transaction before raising ``locked``.
    """

    def __init__(
        self,
        path: Path,
        restore: Callable[[Path], str | None],
        back_up: Callable[[Path], None],
        *,
        patience: float = 5.0,
    ) -> None:
        self.path = path.absolute()
        self._restore = restore
        self._back_up = back_up
        self._next_backup = time.monotonic() + BACKUP_INTERVAL
        self.notices: list[str] = []
        self.news: list[str] = []
        self._reader = Lane(self.path, writes=False, patience=patience)
        self._writer = Lane(self.path, writes=True, patience=patience)
        self._pending_jobs: set[Future[Any]] = set()
        self._left_to_thread = 0

    def open(self) -> None:
        """Create or check the file now, so that a problem is reported at once."""
        self._run_repairing(self._reader, lambda connection: None)

    async def read(self, work: Work[T]) -> T:
        """Run `work` in one snapshot of the database, outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._reader.executor, self._run_repairing, self._reader, work)

    async def write(self, work: Work[T], applied: Callable[[T], None] | None = None) -> T:
        """Run `work` in one transaction and return its result once it is on the disk.

        If the caller is cancelled, the transaction still completes, and `applied` is still called with the result, on the loop.

        :raises StoreError: nothing was stored.
        """
        if time.monotonic() > self._next_backup:  # a server may not close for weeks
            self._next_backup = time.monotonic() + BACKUP_INTERVAL
            self._reader.executor.submit(self._back_up, self.path)
        for result in self._write_on_loop(work):
            if applied is not None:
                applied(result)
            return result
        job = self._writer.executor.submit(self._run_repairing, self._writer, work)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._pending_jobs.add(job)

        def settle(job: Future[T]) -> None:
            self._pending_jobs.discard(job)
            try:
                result = job.result()
                if applied is not None:
                    applied(result)
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        job.add_done_callback(lambda job: _call_on_loop(loop, settle, job))
        return await future

    def _write_on_loop(self, work: Work[T]) -> tuple[T] | tuple[()]:
        """Run `work` on the loop and return its result, or an empty tuple if the thread has to run it.

        The thread runs it while another write is pending, if no connection is open yet, if another process has the lock, on a
        slow disk, or if the file must be repaired.
        """
        if self._pending_jobs or self._left_to_thread or not self._writer.is_current():
            self._left_to_thread = max(self._left_to_thread - 1, 0)
            return ()
        began = time.monotonic()
        try:
            result = self._transaction(self._writer, work, patient=False)
        except StoreError as error:
            if error.code not in ("locked", "corrupt"):
                raise
            return ()
        if time.monotonic() - began > QUICK:
            self._left_to_thread = SLOW_FOR
        return (result,)

    async def stream(self, work: Callable[[sqlite3.Connection], Iterator[T]]) -> AsyncIterator[T]:
        """Yield what `work` yields from one snapshot, on a separate connection and outside the event loop."""
        connection = await asyncio.to_thread(self._with_store_errors, self._snapshot)
        try:
            items = work(connection)
            while chunk := await asyncio.to_thread(self._with_store_errors, lambda: list(islice(items, _CHUNK))):
                for item in chunk:
                    yield item
        finally:
            connection.close()

    def _snapshot(self) -> sqlite3.Connection:
        self._prepare()
        connection = open_reader(self.path)
        connection.execute("BEGIN")
        return connection

    def _with_store_errors(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except DamagedRow as error:
            error.where = str(self.path)
            raise
        except FAILURES as error:
            raise store_error(error, self.path) from error

    def close(self) -> None:
        """Finish the last write and close; the writer closes last, so that it writes the log into the file."""
        wrote = self._writer.is_current()
        self._reader.close()
        self._writer.close()
        if wrote:
            self._back_up(self.path)

    def _run_repairing(self, lane: Lane, work: Work[T]) -> T:
        """Run `work`; if the database is damaged, repair it once and run `work` again."""
        try:
            return self._transaction(lane, work)
        except StoreError as error:
            if error.code != "corrupt":
                raise
            lane.drop()
            self.repair()
        return self._transaction(lane, work)

    def _transaction(self, lane: Lane, work: Work[T], *, patient: bool = True) -> T:
        try:
            connection = lane.connection(self._prepare)
            lane.be_patient(patient)
            try:
                result = _in_transaction(connection, work, writes=lane.writes, path=self.path)
            except BaseException:
                if connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise
        except DamagedRow as error:
            error.where = str(self.path)
            raise
        except FAILURES as error:
            if code_of(error) in _BROKEN:
                lane.drop()
            raise store_error(error, self.path) from error
        if lane.writes and not lane.is_current():
            message = "the session database was removed or replaced while Moryflow was running; this step was not stored"
            raise StoreError(message, code="gone", where=str(self.path), next_step="start Moryflow again")
        return result

    def repair(self) -> bool:
        """Replace a damaged file by the last backup; return whether it was damaged."""
        notice = self._with_store_errors(lambda: self._restore(self.path))
        if notice is not None:
            self.notices.append(notice)
            self.news.append(notice)
        return notice is not None

    def _prepare(self) -> None:
        ensure_ready(self.path)


def _call_on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[T], None], value: T) -> None:
    """Call `callback` with `value` on the loop; do nothing if the loop is closed, as nobody waits any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, value)


def _in_transaction(connection: sqlite3.Connection, work: Work[T], *, writes: bool, path: Path) -> T:
    connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    if version_of(connection) > len(MIGRATIONS):
        raise newer_error(path, version_of(connection))
    result = work(connection)
    connection.execute("COMMIT")
    return result


class Still(sqlite3.Connection):
    """A read-only connection that assumes nobody writes the file. It does not see later writes, so it is not used again."""


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
    """Return a reading connection that also works after a crash, in a read-only folder and on a full disk.

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
        # Without a log nobody writes the file, and with immutable=1 SQLite does not try to create -wal and -shm here.
        address = f"{path.as_uri()}?mode=ro&immutable=1"
        return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False, factory=Still)
    return reader


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK)


def ensure_ready(path: Path) -> None:
    """Create the database at `path`, or migrate an older one.

    :raises StoreError: ``newer`` or ``foreign``; the file is left as it is.
    :raises sqlite3.Error: the file is damaged, locked or unreachable.
    """
    if path.is_dir():
        raise _foreign_error(path, "this is a folder, and not a session database")
    try:
        if _has_content(path) and _is_ready(path):
            return
    except sqlite3.OperationalError:
        if path.exists():
            raise  # else another process has just moved a damaged file aside, and is about to put a sound one there
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
    """Create an empty database of this version at `path`, a temporary name, and return `path`.

    :func:`put_in_place` renames it when it is complete, so a process killed here leaves no half-made database.
    """
    remove(path)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection)
    return path


def beside(path: Path, suffix: str) -> Path:
    """Return `path` with `suffix` added to its name."""
    return path.with_name(path.name + suffix)


def remove(path: Path) -> None:
    """Remove a database that is not in use, with its log."""
    for part in PARTS:
        beside(path, part).unlink(missing_ok=True)


def put_in_place(new: Path, path: Path) -> None:
    """Rename a complete, closed database to `path` and sync the folder.

    :raises OSError: it is not complete: closing it did not write its log into the file, and SQLite reported no error.
    """
    if _has_content(new, "-wal"):
        raise OSError(errno.EIO, "the log of a new database could not be written into it", str(new))
    new.rename(path)
    with contextlib.suppress(OSError):  # some file systems cannot sync folders
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
    """Refuse to create a database beside the log of a lost one, or before an interrupted restore is complete."""
    if _has_content(path, "-wal") or beside(path, RESTORED).exists():
        raise Damaged("the file is missing or empty, but its log is there")


@contextmanager
def store_lock(path: Path) -> Iterator[None]:
    """Hold the lock under which the database file is created, migrated or replaced.

    :raises StoreError: ``locked``: another process has held it for 30 seconds.
    """
    lock = FileLock(path.parent / "locks" / "store.lock")
    deadline = time.monotonic() + LOCK_TIMEOUT
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
    """Return whether the database has this version; ``False`` if it is empty or older."""
    with closing(open_reader(path)) as connection:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = version_of(connection)
        if application != APPLICATION_ID:
            if version or connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise _foreign_error(path, "this is a database of another program")
            return False
        if version > len(MIGRATIONS):
            raise newer_error(path, version)
        require_tables(connection)
        is_wal = connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        cannot_be_told = isinstance(connection, Still) or not _is_writable(path.parent)
        return version == len(MIGRATIONS) and (is_wal or cannot_be_told)


def require_tables(connection: sqlite3.Connection) -> None:
    """Check the list of tables; reading it also detects a file that was cut short.

    :raises sqlite3.DatabaseError: the database is damaged.
    """
    statement = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('sessions', 'nodes')"
    if version_of(connection) and connection.execute(statement).fetchone()[0] != 2:
        raise Damaged("the list of tables is damaged")


def newer_error(path: Path, version: int) -> StoreError:
    """Return the error for a database that a newer Moryflow wrote."""
    message = f"this database has version {version}, written by a newer Moryflow; this one knows version {len(MIGRATIONS)}"
    next_step = "`python -m pip install -U moryflow`, or set MORYFLOW_HOME to another folder"
    return StoreError(message, code="newer", where=str(path), next_step=next_step)


def _foreign_error(path: Path, what: str) -> StoreError:
    next_step = "move it away, or set MORYFLOW_HOME to another folder"
    return StoreError(f"{what}; it is left as it is", code="foreign", where=str(path), next_step=next_step)

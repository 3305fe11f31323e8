"""Two connections on one file: a writer with a thread for whatever may take a while, and a reader that never takes a lock.

Every write is one ``BEGIN IMMEDIATE`` transaction, synced to the disk before anyone is told. The file is looked at before
and after it, because SQLite writes happily into a database that was removed or replaced meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from moryflow.store.protocol import StoreError

from .database_file import Still, connect, ensure_ready, newer, open_reader
from .failures import FAILURES, code_of, store_error
from .schema import MIGRATIONS, version_of

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

QUICK = 0.05
"""Seconds that a transaction may keep the loop; where one took longer, the next ones are left to the thread."""
SLOW_FOR = 10
"""Transactions until the disk is given another chance."""

_CHUNK = 50
_BROKEN = frozenset({"io", "corrupt", "readonly"})


class Lane:
    """One thread and the connection it uses; both are made when first needed."""

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
        """The lane's thread."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="store-write" if self.writes else "store-read")
        return self._executor

    def connection(self, prepare: Callable[[], None]) -> sqlite3.Connection:
        """Return a connection to the file that is at the path now; `prepare` makes or repairs it first."""
        if self._connection is None or not self.is_current():
            self.drop()
            prepare()
            self._file = self.path.stat()
            make = connect if self.writes else open_reader
            self._connection, self._patient = make(self.path, patience=self.patience), True
        return self._connection

    def be_patient(self, patient: bool) -> None:
        """Wait for another process's transaction from now on, or do not."""
        if self._connection is not None and patient is not self._patient:
            self._connection.execute(f"PRAGMA busy_timeout = {int(self.patience * 1000) if patient else 0}")
            self._patient = patient

    def is_current(self) -> bool:
        """Tell whether the path still leads to the file that is open, and what is written there would be seen."""
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
        """Wait for what was begun, then close."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None
        self.drop()


class Database:
    """The session database of one home.

    :param patience: seconds to wait for another process's transaction before giving up as ``locked``.
    """

    def __init__(self, path: Path, *, patience: float = 5.0) -> None:
        self.path = path.absolute()
        self.notices: list[str] = []
        self.news: list[str] = []
        self._reader = Lane(self.path, writes=False, patience=patience)
        self._writer = Lane(self.path, writes=True, patience=patience)
        self._unsettled: set[Future[Any]] = set()
        self._left_to_thread = 0

    def open(self) -> None:
        """Make or check the file now, so that a person hears of it at once."""
        self._guarded(self._reader, lambda connection: None)

    async def read(self, work: Work[T]) -> T:
        """Run `work` in one snapshot of the database, off the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._reader.executor, self._guarded, self._reader, work)

    async def write(self, work: Work[T], applied: Callable[[T], None] | None = None) -> T:
        """Run `work` in one transaction and return its result once it is on the disk.

        A cancelled caller does not undo it: `applied` is called on the loop with the result in any case.

        :raises StoreError: nothing was stored.
        """
        for result in self._at_once(work):
            if applied is not None:
                applied(result)
            return result
        job = self._writer.executor.submit(self._guarded, self._writer, work)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._unsettled.add(job)

        def settle(job: Future[T]) -> None:
            self._unsettled.discard(job)
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

        job.add_done_callback(lambda job: _tell(loop, settle, job))
        return await future

    def _at_once(self, work: Work[T]) -> tuple[T] | tuple[()]:
        """Run `work` here and now and return its result, or nothing where the thread has to do it.

        That is: after another write, for the first time, against another process, on a slow disk, or to repair the file.

        :raises StoreError: nothing was stored.
        """
        if self._unsettled or self._left_to_thread or not self._writer.is_current():
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
        """Yield what `work` yields from one snapshot, on a connection of its own and off the loop."""
        connection = await asyncio.to_thread(self._translated, self._snapshot)
        try:
            items = work(connection)
            while chunk := await asyncio.to_thread(self._translated, lambda: list(islice(items, _CHUNK))):
                for item in chunk:
                    yield item
        finally:
            connection.close()

    def _snapshot(self) -> sqlite3.Connection:
        self._prepare()
        connection = open_reader(self.path)
        connection.execute("BEGIN")
        return connection

    def _translated(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except FAILURES as error:
            raise store_error(error, self.path, reading=True) from error

    def close(self) -> None:
        """Finish the last write and close; the writer last, so that it folds the log into the file."""
        self._reader.close()
        self._writer.close()

    def _guarded(self, lane: Lane, work: Work[T]) -> T:
        """Run `work`; a damaged database is repaired once, then the work is tried again."""
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
                _roll_back(connection)
                raise
        except FAILURES as error:
            if code_of(error) in _BROKEN:
                lane.drop()
            raise store_error(error, self.path, reading=not lane.writes) from error
        if lane.writes and not lane.is_current():
            raise _gone(self.path)
        return result

    def repair(self) -> bool:
        """Replace a damaged file by what is sound in it; return whether it was damaged."""
        from .recovery import recover

        notice = self._translated(lambda: recover(self.path))
        if notice is not None:
            self.notices.append(notice)
            self.news.append(notice)
        return notice is not None

    def _prepare(self) -> None:
        ensure_ready(self.path)


def _tell(loop: asyncio.AbstractEventLoop, told: Callable[[T], None], value: T) -> None:
    """Call `told` on the loop; nobody is left to hear it where that has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(told, value)


def _in_transaction(connection: sqlite3.Connection, work: Work[T], *, writes: bool, path: Path) -> T:
    connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    if version_of(connection) > len(MIGRATIONS):
        raise newer(path, version_of(connection))
    result = work(connection)
    connection.execute("COMMIT")
    return result


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _gone(path: Path) -> StoreError:
    message = "the session database was removed or replaced while Moryflow was running; this step was not stored"
    return StoreError(message, code="gone", where=str(path), next_step="start Moryflow again")

"""A few connections to one database, each used by one thread at a time.

Nothing here keeps state in a connection between two transactions, so PgBouncer's transaction mode may stand in between. A
transaction whose connection is lost before it began is tried again on a new one; later only what can be told apart from a
repetition is (see :mod:`.session_lock`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.adapt import Dumper, Loader
from psycopg.conninfo import conninfo_to_dict

from moryflow.store.protocol import StoreError
from moryflow.store.tables import DamagedRow

from .schema import migrate, migrations

_CODES: dict[type[psycopg.Error], str] = {
    errors.DiskFull: "no_space",
    errors.ReadOnlySqlTransaction: "readonly",
    errors.InsufficientPrivilege: "readonly",
    errors.TooManyConnections: "locked",
    errors.LockNotAvailable: "locked",
    errors.SerializationFailure: "locked",
    errors.DeadlockDetected: "locked",
    errors.NumericValueOutOfRange: "too_large",
    errors.ProgramLimitExceeded: "too_large",
    errors.DataCorrupted: "corrupt",
    errors.IndexCorrupted: "corrupt",
    errors.InvalidPassword: "readonly",
    errors.InvalidAuthorizationSpecification: "readonly",
    errors.InvalidCatalogName: "gone",
}
_SENTENCES = {
    "no_space": ("the disk of the database is full; nothing was stored", "free some space there, then moryflow run -c"),
    "readonly": ("the database refuses this user, or any change", "moryflow doctor, and ask whoever runs the database"),
    "locked": ("the database cannot be reached, or is busy", "check that it runs, then moryflow doctor"),
    "gone": ("there is no such database", "createdb NAME, or correct store.url: moryflow config explain store.url"),
    "too_large": ("a value is larger than the database can hold", "make the output smaller"),
    "corrupt": ("the database is damaged", "restore it from a backup: docs/deploy/index.md"),
    "invalid": ("the database refused the change", "moryflow doctor"),
}


def code_of(error: psycopg.Error) -> str:
    """Return our code for an error of PostgreSQL or of the connection to it."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    # Everything else that is operational has to do with the connection: refused, reset, timed out, shut down.
    return "locked" if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else "invalid"


def is_lost(error: psycopg.Error) -> bool:
    """Return whether the connection was lost or refused, so that another one may succeed."""
    return code_of(error) == "locked"


def store_error(error: psycopg.Error, where: str) -> StoreError:
    """Return the :class:`StoreError` for `error`; the caller raises it ``from error``. It never has the password."""
    code = code_of(error)
    message, next_step = _SENTENCES[code]
    said = error.diag.message_primary or str(error).strip().partition("\n")[0]
    return StoreError(f"{message} ({said})", code=code, where=where, next_step=next_step)


T = TypeVar("T")

MAX_CONNECTIONS = 8
_CHUNK = 50
_RESTORED = """UPDATE events SET tx = '0' WHERE tx >= pg_snapshot_xmax(pg_current_snapshot()) AND
    (SELECT tx FROM events ORDER BY seq DESC LIMIT 1) >= pg_snapshot_xmax(pg_current_snapshot())"""
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 1.0
# Begins a text that PostgreSQL cannot hold as it is: with NUL, or with lone surrogates.
_ESCAPED = "\x1b"


def storable(text: str) -> str:
    """Return `text` in a form that PostgreSQL can hold, the same for the same text."""
    if "\x00" not in text and not text.startswith(_ESCAPED):
        try:
            text.encode()
        except UnicodeEncodeError:
            pass
        else:
            return text
    return _ESCAPED + json.dumps(text)


class _TextDumper(Dumper):
    """Sends a text; its type is left to the statement, as in SQLite."""

    def dump(self, obj: str) -> bytes:
        return storable(obj).encode()


class _TextLoader(Loader):
    """Reads what :func:`storable` made."""

    def load(self, data: Any) -> str:
        text = bytes(data).decode()
        return json.loads(text[1:]) if text.startswith(_ESCAPED) else text


@lru_cache(maxsize=512)
def _psycopg_form(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


class PostgresConnection:
    """psycopg's connection in the form that the statements use; see :class:`moryflow.store.tables.SqlConnection`."""

    IntegrityError = psycopg.IntegrityError

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[Any]:
        return self.raw.execute(_psycopg_form(statement), values)  # type: ignore[arg-type]

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        self.raw.cursor().executemany(_psycopg_form(statement), rows)  # type: ignore[arg-type]


class PostgresDatabase:
    """The database that `url` names.

    :param url: ``postgresql://user@host/name?…``; a password comes from the environment or ``.pgpass`` rather.
    :param patience: seconds to try to reach the database before raising ``locked``.
    """

    def __init__(self, url: str, *, patience: float = 5.0) -> None:
        self._url = url
        self._patience = patience
        try:
            parts = conninfo_to_dict(url)
        except psycopg.Error as error:
            next_step = "moryflow config explain store.url, or unset MORYFLOW_STORE"
            raise StoreError(
                f"store.url is not an address of PostgreSQL ({str(error).strip()})", code="invalid", next_step=next_step
            ) from error
        self.where = f"postgresql://{parts.get('host', '')}/{parts.get('dbname', '')}"
        self._free: queue.LifoQueue[PostgresConnection] = queue.LifoQueue()
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, thread_name_prefix="store")
        self.closed = False

    def open(self) -> str:
        """Create or migrate the tables, and return the identity of the database.

        :raises StoreError: it cannot be reached, or a newer Moryflow wrote it.
        """

        def work(connection: PostgresConnection) -> str:
            version, known = migrate(connection.raw), len(migrations())
            if version > known:
                message = f"this database has version {version}, written by a newer Moryflow; this one knows version {known}"
                raise StoreError(message, code="newer", where=self.where, next_step="`python -m pip install -U moryflow`")
            # A dump that was restored into another server has numbers of transactions that are still to come here.
            connection.execute(_RESTORED)
            return str(connection.execute("SELECT id FROM moryflow").fetchone()[0])  # type: ignore[index]

        return self.run(work)

    def connect(self) -> psycopg.Connection[Any]:
        """Return a new connection of psycopg in autocommit mode; whoever wants it closes it."""
        timeout = max(2, int(self._patience))
        raw = psycopg.connect(self._url, autocommit=True, prepare_threshold=None, connect_timeout=timeout)
        raw.adapters.register_dumper(str, _TextDumper)
        raw.adapters.register_loader("text", _TextLoader)
        return raw

    async def read(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run `work` in one snapshot of the database, outside the event loop."""
        return await self._on_thread(lambda: self.run(_in_snapshot(work)))

    async def write(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run `work` in one transaction and return its result once it is stored."""
        return await self._on_thread(lambda: self.run(_in_transaction(work), repeat=False))

    async def statement(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run `work`, a single statement that may be repeated, and return its result once it is stored."""
        return await self._on_thread(lambda: self.run(work))

    async def _on_thread(self, work: Callable[[], T]) -> T:
        job = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            # What has begun is completed, so that the caller's last words do not race with it.
            with contextlib.suppress(Exception):
                await job
            raise

    def run(self, work: Callable[[PostgresConnection], T], *, repeat: bool = True) -> T:
        """Run `work` on a free connection in this thread; one that was lost is replaced.

        :param repeat: whether `work` may be run again after the connection was lost in the middle of it.
        :raises StoreError: the work failed, or the database could not be reached.
        """
        deadline, pause = time.monotonic() + self._patience, _FIRST_PAUSE
        while True:
            began = False
            try:
                with self._connection() as connection:
                    if not repeat:
                        connection.execute("SELECT 1")  # a lost connection shows here, where trying again is safe
                    began = True
                    return work(connection)
            except DamagedRow as error:
                error.where = self.where
                raise
            except psycopg.Error as error:
                again = is_lost(error) and (repeat or not began) and time.monotonic() < deadline and not self.closed
                if not again:
                    raise store_error(error, self.where) from error
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, _MAX_PAUSE)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[PostgresConnection]:
        try:
            connection = self._free.get_nowait()
        except queue.Empty:
            connection = PostgresConnection(self.connect())
        try:
            yield connection
        finally:
            if connection.raw.closed or connection.raw.broken:
                connection.raw.close()
            else:
                self._free.put(connection)

    async def stream(self, work: Callable[[PostgresConnection], Iterator[T]]) -> AsyncIterator[T]:
        """Yield what `work` yields from one snapshot, on a separate connection and outside the event loop."""

        def begin() -> tuple[psycopg.Connection[Any], Iterator[T]]:
            raw = self.connect()
            raw.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return raw, work(PostgresConnection(raw))

        raw, items = await asyncio.to_thread(self._with_store_errors, begin)
        try:
            while chunk := await asyncio.to_thread(self._with_store_errors, lambda: list(islice(items, _CHUNK))):
                for item in chunk:
                    yield item
        finally:
            raw.close()

    def _with_store_errors(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except psycopg.Error as error:
            raise store_error(error, self.where) from error

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` in one of the threads; closing waits for it."""
        return self._threads.submit(work)

    def close(self) -> None:
        """Finish running work and close the connections."""
        self.closed = True
        self._threads.shutdown(wait=True)
        with contextlib.suppress(queue.Empty):
            while True:
                self._free.get_nowait().raw.close()


def _in_transaction(work: Callable[[PostgresConnection], T]) -> Callable[[PostgresConnection], T]:
    def run(connection: PostgresConnection) -> T:
        with connection.raw.transaction():
            return work(connection)

    return run


def _in_snapshot(work: Callable[[PostgresConnection], T]) -> Callable[[PostgresConnection], T]:
    def run(connection: PostgresConnection) -> T:
        raw = connection.raw
        raw.isolation_level, raw.read_only = IsolationLevel.REPEATABLE_READ, True
        try:
            with raw.transaction():
                return work(connection)
        finally:
            if not raw.closed:
                raw.isolation_level, raw.read_only = None, None

    return run

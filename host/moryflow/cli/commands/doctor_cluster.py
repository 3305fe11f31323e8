"""``moryflow doctor --cluster``: one line per thing that workers and servers on one PostgreSQL need.

It reads what is there and makes nothing: no table, no folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from moryflow_sdk import MoryflowError

from moryflow.cli.findings import DoctorFinding

if TYPE_CHECKING:
    from moryflow.store.postgres.database import PostgresConnection
    from moryflow.store.postgres.inbox import WorkerRow

PATIENCE = 2.0
MIN_VERSION = 15
_ABOUT = "SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())::float, to_regclass('moryflow')"
_QUEUE = """SELECT to_regclass('procrastinate_jobs') IS NOT NULL,
    EXISTS (SELECT 1 FROM pg_trigger WHERE tgname = 'asking_enqueues' AND tgrelid = 'sessions'::regclass)"""
_RAN_OUT = "SELECT count(*) FROM sessions WHERE state = 'work' AND until < clock_timestamp()"


async def examine(url: str, outputs: str) -> list[DoctorFinding]:
    """Return what is to be said about the cluster whose store is `url`."""
    if not url:
        text = "this store is a file of this machine; workers and other machines need PostgreSQL"
        step = "moryflow config set store.url postgresql://USER@HOST/NAME, or MORYFLOW_STORE"
        return [DoctorFinding("store", "bad", text, step)]
    if find_spec("psycopg") is None:
        return [DoctorFinding("extras", "bad", "psycopg is not installed", "python -m pip install 'moryflow[postgres]'")]
    from moryflow.store.postgres.database import PostgresDatabase
    from moryflow.store.postgres.inbox import Inbox
    from moryflow.store.postgres.wakes import Wakes

    found = [_extras()]
    try:
        database = PostgresDatabase(url, patience=PATIENCE)
        try:
            found += database.run(lambda db: list(_database(db, database.where)))
            if found[-1].state == "ok":
                inbox = Inbox(database, Wakes(database))
                found += database.run(lambda db: list(_sessions(db)))
                workers, depth = await inbox.workers(), await inbox.depth()
                found += [*_workers(workers), *_waiting(workers, depth)]
        finally:
            database.close()
    except MoryflowError as error:
        place = f"{error.where}: " if error.where else ""
        found.append(DoctorFinding("database", "bad", f"{place}{error.message}", error.next_step))
    return [*found, _outputs(outputs)]


def _extras() -> DoctorFinding:
    if missing := [name for name in ("procrastinate", "obstore") if find_spec(name) is None]:
        text = f"{' and '.join(missing)} not installed; a server needs no more than psycopg, a worker does"
        return DoctorFinding("extras", "warning", text, "python -m pip install 'moryflow[cluster]'")
    return DoctorFinding("extras", "ok", "postgres and cluster are installed")


def _one(db: PostgresConnection, statement: str) -> Any:
    return db.execute(statement).fetchone()


def _database(db: PostgresConnection, where: str) -> Iterator[DoctorFinding]:
    from moryflow.store.postgres.schema import migrations

    begun = time.time()
    version, moment, tables = _one(db, _ABOUT)
    took = time.time() - begun
    good = db.raw.info.server_version >= MIN_VERSION * 10_000
    text = f"{where}, PostgreSQL {version}, answers in {took * 1000:.0f} ms"
    step = f"upgrade it to PostgreSQL {MIN_VERSION} or later, with pg_upgrade"
    yield DoctorFinding("database", "ok" if good else "bad", text, step)
    ahead = begun + took / 2 - moment
    yield DoctorFinding("clock", "ok", f"this machine's is {ahead:+.3f} s from the database's, the only one that counts")
    known, there = len(migrations()), _one(db, "SELECT version FROM moryflow")[0] if tables else 0
    if there > known:
        text = f"version {there}, of a newer Moryflow; this one knows version {known}"
        yield DoctorFinding("tables", "bad", text, "python -m pip install -U moryflow")
    elif there < known:
        text = f"version {there} of {known}; the next command that opens the store migrates them" if there else "not made yet"
        yield DoctorFinding("tables", "warning", text, "moryflow session list")
    else:
        yield DoctorFinding("tables", "ok", f"version {there}")


def _sessions(db: PostgresConnection) -> Iterator[DoctorFinding]:
    if missing := [name for name, there in zip(("tables", "trigger"), _one(db, _QUEUE), strict=True) if not there]:
        text = f"no {' and no '.join(missing)} yet; the first worker makes them"
        yield DoctorFinding("queue", "warning", text, "moryflow worker")
    else:
        yield DoctorFinding("queue", "ok", "its tables and its trigger are there")
    if ran_out := _one(db, _RAN_OUT)[0]:
        text = f"{ran_out} at work whose lease ran out; any worker of the queue goes on there within two seconds"
        yield DoctorFinding("sessions", "warning", text, "moryflow worker")
    else:
        yield DoctorFinding("sessions", "ok", "none at work has lost its worker")


def _workers(workers: list[WorkerRow]) -> Iterator[DoctorFinding]:
    for row in workers:
        text = f"{row.name} takes {', '.join(row.queues)}, {row.running} of {row.concurrency}, {row.seen:.0f} s ago"
        yield DoctorFinding("worker", "ok", f"{text}, drains" if row.drain else text)
    if not workers:
        yield DoctorFinding("worker", "warning", "none has reported within the last minute", "moryflow worker")
    if len({row.plugin_set for row in workers}) > 1:
        text = "they do not have the same plugins; that is right only during an upgrade"
        yield DoctorFinding("worker", "warning", text, "moryflow worker drain NAME, and start it as the others")


def _waiting(workers: list[WorkerRow], depth: Mapping[str, tuple[int, float]]) -> Iterator[DoctorFinding]:
    taken = {queue for row in workers if not row.drain for queue in row.queues}
    for queue, (count, oldest) in sorted(depth.items()):
        text = f"{count} waiting in the queue {queue}, the oldest for {oldest:.0f} s"
        if queue in taken:
            yield DoctorFinding("prompts", "ok", text)
        else:
            yield DoctorFinding("prompts", "bad", f"{text}, and no worker takes it", f"moryflow worker --queue {queue}")
    if not depth:
        yield DoctorFinding("prompts", "ok", "none waits")


def _outputs(url: str) -> DoctorFinding:
    """Look into the object store once; nothing is tried again."""
    if not url:
        text = "store.outputs is not set: those of over 256 KB can be read only where they were made"
        return DoctorFinding("outputs", "ok", text)
    try:
        import obstore
        from obstore.store import from_url

        once: dict[str, Any] = {"client_options": {"timeout": "5s"}, "retry_config": {"max_retries": 0}}
        options: dict[str, Any] = {} if url.startswith("file:") else once
        next(iter(obstore.list(from_url(url, **options), chunk_size=1)), None)
    except Exception as error:  # each object store raises errors of its own
        text = f"{url}: {str(error).strip().partition(chr(10))[0]}"
        step = "moryflow config explain store.outputs; its keys come from the environment"
        return DoctorFinding("outputs", "bad", text, step)
    return DoctorFinding("outputs", "ok", f"{url} answers")

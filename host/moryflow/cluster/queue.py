"""The queue that tells workers in which session there is something to do: Procrastinate, behind three methods.

Another queue needs these methods and a trigger like the one below. Procrastinate's own locks and its retry of stalled jobs are
not used: a lost job costs a second, because workers look for expired leases themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from moryflow.store.protocol import StoreError

TASK = "moryflow.continue"
# Seconds between two tries to reach a database that was away for long.
RECONNECT = 2.0

# Whatever asks something of a session raises `asked`, in its own transaction; so the job is there exactly when that is. One
# waiting job for a session is enough. It may wait beside a running one, so no wake-up is lost.
_TRIGGER = f"""
CREATE OR REPLACE FUNCTION moryflow_enqueue() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    -- Who has many prompts waiting comes after who has few.
    ahead int := (SELECT count(*) FROM prompts WHERE owner = NEW.owner AND ended IS NULL);
BEGIN
    PERFORM procrastinate_defer_jobs_v1(ARRAY[ROW(NEW.queue, '{TASK}', -least(ahead, 1000), NULL, NEW.id,
        jsonb_build_object('session', NEW.id), NULL)::procrastinate_job_to_defer_v1]);
    RETURN NULL;
EXCEPTION WHEN unique_violation THEN
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER asking_enqueues AFTER UPDATE OF asked ON sessions
    FOR EACH ROW WHEN (NEW.state = 'work' AND NEW.asked <> OLD.asked) EXECUTE FUNCTION moryflow_enqueue();
"""
_LEFT_OVER = """DELETE FROM procrastinate_jobs WHERE task_name = %s AND status = 'doing' AND id IN (
    SELECT job_id FROM procrastinate_events WHERE type = 'started' GROUP BY job_id
    HAVING max(at) < clock_timestamp() - make_interval(secs => %s))"""

GoOn = Callable[[str], Awaitable[None]]


class WorkQueue(Protocol):
    """What a worker needs of a queue."""

    async def install(self) -> None:
        """Create the queue's tables and the trigger, if they are missing."""
        ...

    async def work(self, go_on: GoOn, queues: Sequence[str], concurrency: int, stopping: asyncio.Event) -> None:
        """Call `go_on` with a session's id for each job, until `stopping` is set; then wait for what runs."""
        ...

    async def forget_leftovers(self, seconds: float) -> None:
        """Delete jobs that workers which are no more began longer than `seconds` ago."""
        ...


class ProcrastinateQueue:
    """:class:`WorkQueue` in the same database."""

    def __init__(self, url: str) -> None:
        try:
            from procrastinate import App, PsycopgConnector
        except ImportError as error:
            message = f"workers need Procrastinate, which is not installed ({error})"
            raise StoreError(message, code="invalid", next_step="python -m pip install 'moryflow[cluster]'") from error
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        # Nothing is kept in a connection between two transactions; the pool of its own is small.
        settings: dict[str, Any] = {"kwargs": {"prepare_threshold": None}, "min_size": 1, "max_size": 4}
        self._new_app: Callable[[], Any] = lambda: App(connector=PsycopgConnector(conninfo=url, **settings))
        self._app: Any = self._new_app()

    async def install(self) -> None:
        from moryflow.store.postgres.schema import MIGRATION_KEY

        async with self._app.open_async(), self._app.connector.pool.connection() as connection:
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_KEY,))
            there = await (await connection.execute("SELECT to_regclass('procrastinate_jobs')")).fetchone()
            if there[0] is None:
                await connection.execute(self._app.schema_manager.get_schema())
            await connection.execute(_TRIGGER)

    async def work(self, go_on: GoOn, queues: Sequence[str], concurrency: int, stopping: asyncio.Event) -> None:
        from procrastinate.exceptions import ConnectorException

        while not stopping.is_set():
            try:
                await self._work(go_on, queues, concurrency, stopping)
            except (ConnectorException, OSError):  # the database was away for longer than its pool waits
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), RECONNECT)

    async def _work(self, go_on: GoOn, queues: Sequence[str], concurrency: int, stopping: asyncio.Event) -> None:
        self._app = self._new_app()

        @self._app.task(name=TASK)
        async def _continue(session: str) -> None:  # pyright: ignore[reportUnusedFunction]
            await go_on(session)

        async with self._app.open_async():
            options: dict[str, Any] = {
                "queues": list(queues), "concurrency": concurrency, "delete_jobs": "always", "install_signal_handlers": False,
                "fetch_job_polling_interval": 1.0,
            }  # fmt: skip
            working = asyncio.create_task(self._app.run_worker_async(**options))
            ended = asyncio.create_task(stopping.wait())
            try:
                await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                working.cancel()  # the first time: fetch no more, and wait for what runs
                ended.cancel()
                with suppress(asyncio.CancelledError):
                    await working

    async def forget_leftovers(self, seconds: float) -> None:
        async with self._app.connector.pool.connection() as connection:
            await connection.execute(_LEFT_OVER, (TASK, seconds))

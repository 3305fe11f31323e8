"""Workers on a PostgreSQL of this machine, beside SQLite in one process, in one run.

A turn is a prompt, three calls of a tool and an answer: four steps. Everything shares this machine's cores, the database too,
so the figures say what one step costs, not what a cluster can do; ``docs/deploy/scale.md`` counts with them.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster_rig import ClusterRig
from moryflow import RunOptions, open_host
from moryflow.store.postgres.database import PostgresConnection
from postgres import PostgresServer, postgres_server

TURNS, STEPS, PROBES = 120, 4, 100
GROWN_SESSIONS, GROWN_NODES = 10_000, 1_000_000
Row = tuple[str, float, str, float | None]


def figures() -> list[Row]:
    """Throughput, latency, statements of a step, and what a full database costs."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rows: list[Row] = []
    with postgres_server() as server:
        alone = _sqlite_turns()
        rows.append(("cluster: turns a second, SQLite in one process", alone, "/s", None))
        for workers in (1, 2, 4):
            with _rig(server, f"speed{workers}") as rig:
                rows.append((f"cluster: turns a second, {workers} worker(s)", asyncio.run(_speed(rig, workers)), "/s", None))
        with _rig(server, "latency") as rig:
            rows += asyncio.run(_latency(rig))
        with _rig(server, "growth") as rig:
            empty = asyncio.run(_step(rig))
            _grow(rig)
            full = asyncio.run(_step(rig))
        rows.append(("cluster: statements a step", empty[1], "", 8.0))
        rows.append(("cluster: bytes a step to the database", empty[2] / 1024, "KiB", None))
        rows.append(("cluster: a turn, empty database", empty[0], "ms", None))
        rows.append((f"cluster: a turn beside {GROWN_NODES:,} nodes ÷ empty", full[0] / empty[0], "×", 1.3))
    return rows


@contextmanager
def _rig(server: PostgresServer, name: str) -> Iterator[ClusterRig]:
    with tempfile.TemporaryDirectory(prefix="moryflow-bench-") as folder:
        rig = ClusterRig(Path(folder, "home"), Path(folder, "vault"), server.schema_url(name), lease=30.0)
        try:
            yield rig
        finally:
            rig.close()


def _sqlite_turns() -> float:
    async def work(rig: ClusterRig) -> float:
        (rig.home / "config.jsonc").write_text('{"agents": {"runtime": {"permission": {"rules": [{"domain": "bash", '
                                               '"pattern": "*", "decision": "allow"}]}}}}')  # fmt: skip
        async with open_host(rig.home) as host:

            async def turn(number: int) -> None:
                session = await host.new_session(rig.vault, model=f"steps:{STEPS - 1}")
                await session.prompt(f"do m{number}", options=RunOptions())

            await turn(0)
            began = time.perf_counter()
            for number in range(TURNS // 4):
                await asyncio.gather(*(turn(4 * number + place) for place in range(4)))
            return TURNS / (time.perf_counter() - began)

    with postgres_server() as server, _rig(server, "unused") as rig:
        return asyncio.run(work(rig))


async def _speed(rig: ClusterRig, workers: int) -> float:
    for _ in range(workers):
        rig.worker("--concurrency", "4")
    for turn in [(await rig.ask(f"warm m{number}"))[1] for number in range(2 * workers)]:
        await rig.result(turn)
    began = time.perf_counter()
    turns = [(await rig.ask(f"do m{number}", model=f"steps:{STEPS - 1}"))[1] for number in range(TURNS)]
    for turn in turns:
        await rig.result(turn, 300.0)
    return TURNS / (time.perf_counter() - began)


async def _latency(rig: ClusterRig) -> list[Row]:
    rig.worker()
    await rig.result((await rig.ask("warm m"))[1])
    first: list[float] = []
    seen: list[float] = []
    for number in range(PROBES):
        place = (await rig.store.event_span())[1]
        began = time.perf_counter()
        session, turn = await rig.ask(f"do m{number}", model="steps:0")
        while not (events := await rig.store.events(session, place)):
            pass
        first.append(time.perf_counter() - began)
        seen.append(max(0.0, time.time() - _moment(events[0].ts)))
        await rig.result(turn)
    rows: list[Row] = []
    for name, values in (("prompt → first event", first), ("event → reader", seen)):
        ranks = statistics.quantiles(values, n=100)
        rows += [
            (f"cluster: {name}, p50", ranks[49] * 1000, "ms", None),
            (f"cluster: {name}, p99", ranks[98] * 1000, "ms", None),
        ]
    return rows


def _moment(ts: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(ts).timestamp()


async def _step(rig: ClusterRig) -> tuple[float, float, float]:
    """Return the milliseconds of a turn in this process, and the statements and bytes of a step."""
    counts = [0, 0]
    plain = PostgresConnection.execute

    def counted(self, statement, values=(), /):
        counts[0] += 1
        counts[1] += len(statement) + sum(len(str(value)) for value in values)
        return plain(self, statement, values)

    times: list[float] = []
    async with open_host(rig.home) as host:
        session = await host.new_session(rig.vault, model=f"steps:{STEPS - 1}")
        await session.prompt("warm m", options=RunOptions())
        await session.keep()
        PostgresConnection.execute = counted
        try:
            for number in range(15):
                began = time.perf_counter()
                await session.prompt(f"do m{number}", options=RunOptions())
                times.append(time.perf_counter() - began)
        finally:
            PostgresConnection.execute = plain
        session.release()
    steps = 15 * STEPS
    return statistics.median(times) * 1000, counts[0] / steps, counts[1] / steps


def _grow(rig: ClusterRig) -> None:
    """Fill the tables with sessions and nodes, as another program would, in one statement each."""
    with rig.store._database.connect() as raw:  # type: ignore[attr-defined]
        raw.execute(
            """INSERT INTO sessions (id, title, vault, agent, model, mode, purpose, created, updated, grants, epoch, used)
            SELECT 's' || n, '', '/v', 'build', '', 'agent', 'main', '2026', '2026', '[]', 1, n
            FROM generate_series(1, %s) AS n""",
            (GROWN_SESSIONS,),
        )
        raw.execute(
            """INSERT INTO nodes (session, id, seq, kind, payload, tokens, hash, created)
            SELECT 's' || (n %% %s + 1), 'n' || n, n, 'user', '{"text":"one two three"}', 3, repeat('0', 64), '2026'
            FROM generate_series(1, %s) AS n""",
            (GROWN_SESSIONS, GROWN_NODES),
        )
        raw.execute(
            """INSERT INTO node_words SELECT 's' || (n %% %s + 1), 'n' || n,
            array_to_tsvector(ARRAY['one', 'two', 'w' || n %% 5000]) FROM generate_series(1, %s) AS n""",
            (GROWN_SESSIONS, GROWN_NODES),
        )
        raw.execute("ANALYZE")

"""How far one PostgreSQL goes: a model that makes the table of ``docs/deploy/scale.md``.

``python tests/benchmarks/cluster_model.py`` prints it. What a step costs was measured with workers on a PostgreSQL of one
machine (240 turns of four steps, three calls each, a plugin's model that answers at once); the rest are assumptions, which
stand here and on the page. The wait for the disk is simulated: PostgreSQL lets commits that come while it writes share the
next write.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator
from typing import NamedTuple

SESSIONS = (100, 500, 1_000, 2_000, 5_000, 10_000, 20_000)


class Measured(NamedTuple):
    """What one step costs, measured."""

    commits: float = 4.5
    cpu_ms: float = 4.2  # of the database; a worker takes 11.6 ms
    wal_kb: float = 12.5
    stored_kb: float = 7.4
    worker_connections: int = 13
    server_connections: int = 9
    worker_idle_ms: float = 5.0  # of the database's processor each second, for a worker that has nothing to do


class Assumed(NamedTuple):
    """The use, and the machine of the database."""

    seconds_per_step: float = 10.0
    text_kb: float = 8.0  # of a step: 4 KB of a model's and tools' text, kept in a node and in an event
    full_page_kb: float = 4.0  # of a step: whole pages in the WAL, after each checkpoint
    busy_hours: float = 160.0  # a month
    concurrency: int = 32  # of a worker
    streams: int = 500  # of a server
    cores: int = 8
    core_share: float = 0.7
    flush_ms: float = 1.0  # of a disk that is reached over a network
    connections: int = 500
    wal_mb: float = 100.0  # a second
    disk_tb: float = 2.0  # for a month


MEASURED, ASSUMED = Measured(), Assumed()


class Load(NamedTuple):
    """What a number of active sessions asks of the database."""

    sessions: int
    steps: float
    commits: float
    wait_p50: float
    wait_p99: float
    cores: float
    connections: int
    wal_mb: float
    tb_month: float


def load(sessions: int, cost: Measured = MEASURED, given: Assumed = ASSUMED) -> Load:
    """Return what `sessions` that each make a step after the other ask of the database."""
    steps = sessions / given.seconds_per_step
    workers, servers = math.ceil(sessions / given.concurrency), math.ceil(sessions / given.streams)
    waits = flush_waits(steps * cost.commits, given.flush_ms)
    ranks = statistics.quantiles(waits, n=100)
    return Load(
        sessions, steps, steps * cost.commits, ranks[49], ranks[98],
        (steps * cost.cpu_ms + workers * cost.worker_idle_ms) / 1000,
        workers * cost.worker_connections + servers * cost.server_connections,
        steps * (cost.wal_kb + given.text_kb + given.full_page_kb) / 1000,
        steps * (cost.stored_kb + given.text_kb) * given.busy_hours * 3600 / 1e9,
    )  # fmt: skip


def flush_waits(rate: float, flush_ms: float, count: int = 20_000) -> list[float]:
    """Simulate commits that come at random, `rate` a second; return for how many milliseconds each waits for the disk."""
    dice = random.Random(7)
    moment, waits = 0.0, list[float]()
    waiting, flushed_at = list[float](), 0.0
    for _ in range(count):
        moment += dice.expovariate(rate) * 1000
        while waiting and flushed_at <= moment:  # the write has ended: it takes all that wait, in one
            begun = max(flushed_at, waiting[0])
            if begun > moment:
                break
            flushed_at = begun + flush_ms
            waits += [flushed_at - came for came in waiting]
            waiting.clear()
        waiting.append(moment)
    return waits


def ends(cost: Measured = MEASURED, given: Assumed = ASSUMED) -> dict[str, int]:
    """Return by resource at how many active sessions it ends, the first first."""
    one = load(1_000_000, cost, given)
    limits = {
        "connections": given.connections / one.connections,
        "disk for a month": given.disk_tb / one.tb_month,
        "processor": given.cores * given.core_share / one.cores,
        "WAL": given.wal_mb / one.wal_mb,
    }
    found = {name: round(share * 1_000_000, -2) for name, share in limits.items()}
    return {name: int(count) for name, count in sorted(found.items(), key=lambda item: item[1])}


def rows() -> Iterator[str]:
    """The load at each number of sessions, as rows in Markdown."""
    for count in SESSIONS:
        one = load(count)
        wait = f"{one.wait_p50:.1f} / {one.wait_p99:.1f} ms"
        cells = [f"{count:,}", f"{one.steps:,.0f}", f"{one.commits:,.0f}", wait, f"{one.cores:.1f}", f"{one.connections:,}"]
        yield f"| {' | '.join([*cells, f'{one.wal_mb:.1f} MB/s', f'{one.tb_month:.2f} TB'])} |"


if __name__ == "__main__":
    print(*rows(), sep="\n")
    print(ends(), ends(given=Assumed(concurrency=4)), ends(given=Assumed(concurrency=100, connections=2000)), sep="\n")

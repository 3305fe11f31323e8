"""Kill a writer with SIGKILL at random moments, again and again, and look for what it had acknowledged.

    python tests/host/sessions/kill_harness.py --kills 2000

A child opens the store, holds a session, commits, forks, switches, purges and searches, and writes a line to a pipe for
everything the store said was done. Afterwards each of those lines must be true, every hash must fit, and the database must
pass SQLite's own check. Every 25 kills a new home begins, so that making and migrating the database is killed as well.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from moryflow.sessions import Commit, NewNode, Store
from moryflow.sessions.encoding import node_hash
from moryflow.sessions.schema import MIGRATIONS, migrate
from moryflow_sdk import Event

PER_HOME = 25
LONGEST = 0.08


@dataclass
class Acknowledged:
    """What the children of one home were told is on the disk."""

    nodes: dict[str, tuple[str, str]] = field(default_factory=dict)
    forks: set[str] = field(default_factory=set)
    purged: set[str] = field(default_factory=set)

    def read(self, lines: bytes) -> int:
        complete = lines.decode().split("\n")[:-1]
        for kind, *values in map(str.split, complete):
            match kind:
                case "node":
                    self.nodes[values[0]] = (values[1], values[2])
                case "fork":
                    self.forks.add(values[0])
                case "gone":
                    self.purged.add(values[0])
        return len(complete)


def writer(home: Path, pipe: int, seed: int) -> None:
    """Work in the store until killed."""

    def say(*words: str) -> None:
        os.write(pipe, (" ".join(words) + "\n").encode())

    async def work() -> None:
        chance = random.Random(seed)
        store = Store.open(home / "sessions.db")
        row = await store.latest("/v") or await store.create(vault="/v", agent="a", mode="agent")
        hold = await store.hold(row.id)
        while True:
            match chance.choices(["commit", "switch", "fork", "purge", "search"], [80, 5, 5, 5, 5])[0]:
                case "commit":
                    nodes = [
                        NewNode("tool", {"output": "x" * chance.choice([10, 500, 9000])}) for _ in range(chance.randint(1, 4))
                    ]
                    event = Event(type="tool.result", session=row.id, data={"n": len(nodes)})
                    done = await hold.commit(Commit(nodes=nodes, events=[event], plugin_state={("p", "session"): seed}))
                    for node in done.nodes:
                        say("node", node.id, row.id, node.hash)
                case "switch" if hold.path:
                    await hold.switch(chance.choice(hold.path[-5:]).id)
                case "fork":
                    fork = await store.create(vault="/v", agent="a", mode="agent", purpose="child", parent=row.id)
                    say("fork", fork.id)
                case "purge":
                    for child in await store.sessions(1, purpose="child", parent=row.id):
                        await store.delete(child.id)
                        say("gone", child.id)
                case _:
                    await store.search("xylophone")

    asyncio.run(work())


def kill_once(body: Callable[[int], None], after: float) -> bytes:
    """Run `body(pipe)` in a child, kill it after a while, and return what it wrote."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            body(writing)
        except BaseException as error:
            sys.stderr.write(f"child failed: {error!r} {getattr(error.__cause__, 'sqlite_errorname', None)}\n")
            os._exit(3)
        os._exit(0)
    os.close(writing)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 3:
        raise SystemExit("the writer failed instead of being killed")
    return lines


def lost(home: Path, told: Acknowledged) -> list[str]:
    """Return what was acknowledged and is not there, or does not fit."""
    problems: list[str] = []
    if not (home / "sessions.db").exists():
        return ["the database"] if told.nodes else []
    store = Store.open(home / "sessions.db")
    problems += store.notices
    store.close()
    with closing(sqlite3.connect(home / "sessions.db")) as connection:
        check = connection.execute("PRAGMA integrity_check").fetchone()[0]
        problems += [] if check == "ok" else [check]
        there = {row[1]: row for row in connection.execute("SELECT session, id, parent, kind, payload, hash, seq FROM nodes")}
        problems += [
            f"node {n}"
            for n, (session, h) in told.nodes.items()
            if n not in there or there[n][5] != h or there[n][0] != session
        ]
        for _, node, parent, kind, payload, stored, _ in there.values():
            if node_hash(there[parent][5] if parent else "", kind, payload) != stored:
                problems.append(f"hash of {node}")
        sessions = {row[0]: row[1] for row in connection.execute("SELECT id, active FROM sessions")}
        problems += [f"active of {id}" for id, active in sessions.items() if active is not None and active not in there]
        problems += [f"child {id}" for id in told.forks - told.purged if id not in sessions and not _purged(connection, id)]
        problems += [f"purge of {id}" for id in told.purged if id in sessions]
    return problems


def _purged(connection: sqlite3.Connection, session: str) -> bool:
    """Tell whether a purge was committed although nobody was told."""
    return connection.execute("SELECT 1 FROM purges WHERE session = ?", (session,)).fetchone() is not None


def kill_writers(kills: int, seed: int, folder: Path) -> tuple[int, list[str]]:
    """Kill `kills` writers; return how many things were acknowledged, and what is wrong."""
    chance, total, problems = random.Random(seed), 0, list[str]()
    for first in range(0, kills, PER_HOME):
        home, told = folder / f"home{first}", Acknowledged()
        for number in range(first, min(first + PER_HOME, kills)):
            after = chance.uniform(0, LONGEST)
            total += told.read(kill_once(lambda pipe, home=home, n=number: writer(home, pipe, seed + n), after))
        problems += [f"{home.name}: {problem}" for problem in lost(home, told)]
    return total, problems


def kill_migrations(kills: int, seed: int, folder: Path) -> tuple[int, list[str]]:
    """Kill upgrades to an invented version; return how many were cut short, and what is wrong."""
    chance, cut, problems = random.Random(seed), 0, list[str]()
    before = len(MIGRATIONS)

    def more(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE later (id INTEGER PRIMARY KEY, text TEXT)")
        for number in range(2000):
            connection.execute("INSERT INTO later VALUES (?, ?)", (number, "x" * 400))
        connection.execute("ALTER TABLE sessions ADD COLUMN later TEXT")

    def upgrade(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            migrate(connection, [*MIGRATIONS, more])

    for number in range(kills):
        path = folder / f"old{number}" / "sessions.db"
        Store.open(path).close()
        kill_once(lambda pipe, path=path: upgrade(path), chance.uniform(0, 0.03))
        with closing(sqlite3.connect(path)) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
            whole = version == before + 1 and connection.execute("SELECT count(*) FROM later").fetchone()[0] == 2000
            if not whole and not (version == before and "later" not in tables):
                problems.append(f"upgrade {number}: version {version} is half done")
            cut += version == before
        upgrade(path)
    return cut, problems


def main() -> None:
    """Print the figures; exit 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="moryflow-kill-") as folder:
        told, problems = kill_writers(options.kills, options.seed, Path(folder))
        cut, more = kill_migrations(max(5, options.kills // 20), options.seed, Path(folder))
    print(f"seed {options.seed}: {options.kills} kills, {told} acknowledgements, {cut} upgrades cut short", end=", ")
    print(f"{len(problems + more)} problems, {time.monotonic() - start:.0f} s")
    for problem in problems + more:
        print(problem)
    raise SystemExit(1 if problems + more else 0)


if __name__ == "__main__":
    main()

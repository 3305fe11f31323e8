"""Kill a writer with SIGKILL at random moments, again and again, and look for what it had acknowledged.

    python tests/host/store/sqlite/kill_harness.py --kills 10000

A child opens the store, holds a session as the host does, commits, forks, switches, purges, searches and runs calls whose
programs sleep, and writes a line to a pipe for everything that it was told was done. Afterwards each of those lines must be
true, every hash must fit, and the database must pass SQLite's own check. No program of a killed call may be alive once its
session is held again, and the model and the person must have been told. Every 25 kills a new home begins, so that making and
migrating the database is killed as well. One kill in 100 is that of a whole host with a model, the tool ``bash`` and a
command, whose session then goes on in another host.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import multiprocessing
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from moryflow import open_host
from moryflow.base.paths import call_mark
from moryflow.kernel.turn_context import SessionHandle
from moryflow.runtime.session_lease import SessionLease
from moryflow.store import CallRow, Commit, NewNode, SessionLock
from moryflow.store.sqlite.schema import MIGRATIONS, migrate
from moryflow.store.sqlite.store import SqliteStore
from moryflow.store.tables import node_hash
from moryflow_sdk import Event
from moryflow_sdk.support.processes import CALL_MARK, end_marked, marked_environment

Say = Callable[..., object]

PER_HOME = 25
PER_HOST = 100
CALL_FIRST = 0.3
LONGEST = 0.12
AT_WORK = 0.8
"""Which part of the kills comes once the writer has begun; the others hit the making of the database and the start too."""
ASLEEP = "sleep 600"
WAYS = (["sleep", "600"], ["setsid", "sleep", "600"], ["sh", "-c", f"{ASLEEP} & setsid {ASLEEP} & wait"])


@dataclass
class Acknowledged:
    """What the children of one home were told is on the disk.

    :ivar asleep: calls whose programs sleep and that were never ended, and how often their session was taken up since.
    """

    nodes: dict[str, tuple[str, str]] = field(default_factory=dict)
    forks: set[str] = field(default_factory=set)
    purged: set[str] = field(default_factory=set)
    asleep: dict[str, int] = field(default_factory=dict)
    killed_asleep: int = 0
    problems: list[str] = field(default_factory=list)

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
                case "asleep":
                    self.asleep[values[0]] = 0
                case "ends":
                    del self.asleep[values[0]]
                case "take":
                    self.killed_asleep += sum(not takes for takes in self.asleep.values())
                    self.asleep = {call: takes + 1 for call, takes in self.asleep.items()}
                case "alive":
                    self.problems.append(f"process {values[0]} of a killed call was alive when its session went on")
                case "told" if self.asleep.pop(values[0], 0) == 1 and values[1:] == ["nothing"]:
                    self.problems.append(f"nobody was told of what call {values[0]} had left")
        return len(complete)


def writer(home: Path, pipe: int, seed: int) -> None:
    """Work in the store until killed."""

    def say(*words: str) -> None:
        os.write(pipe, (" ".join(words) + "\n").encode())

    async def work() -> None:
        chance = random.Random(seed)
        store = SqliteStore.open(home / "sessions.db")
        row = await store.latest("/v") or await store.create(vault="/v", agent="a", mode="agent")
        say("take")
        async with SessionLease(store, home, row).block() as live:
            hold = live.hold
            await settle(home, live, say)
            if chance.random() < CALL_FIRST:
                await act("call", store, home, hold, chance, say)
            while True:
                await act(chance.choices(list(ACTS), list(ACTS.values()))[0], store, home, hold, chance, say)

    asyncio.run(work())


async def settle(home: Path, live: SessionHandle, say: Say) -> None:
    """Write down what became of the calls that were killed, as a turn does."""
    for pid in marked_processes(home, live.unfinished_calls):
        say("alive", str(pid))
    calls = live.unfinished_calls
    if not calls:
        return
    nodes = [NewNode("tool", {"call_id": call.id, "output": "interrupted"}) for call in calls]
    ended = [call._replace(state="interrupted") for call in calls]
    notice = Event(type="session.notice", session=live.row.id, data={"text": " ".join(live.notices)})
    await live.hold.commit(Commit(nodes=nodes, calls=ended, events=[notice]))
    for call in calls:
        say("told", call.id, "all" if "still ran" in " ".join(live.notices) else "nothing")


def marked_processes(home: Path, calls: Iterable[CallRow]) -> list[int]:
    """Return the processes that carry the mark of one of `calls`."""
    marks = {f"{CALL_MARK}={call_mark(home, call.session, call.node, call.id)}".encode() for call in calls}
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*/environ") if marks else ():
        with contextlib.suppress(OSError):
            if not marks.isdisjoint(place.read_bytes().split(b"\0")):
                found.append(int(place.parent.name))
    return found


def asleep(command: Sequence[str], mark: str) -> subprocess.Popen[bytes]:
    """Start a program of a call."""
    return subprocess.Popen(command, env=marked_environment(mark), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


async def call_asleep(home: Path, hold: SessionLock, chance: random.Random, say: Say) -> None:
    """Run a call whose program sleeps, and end it after a while, if there is a while."""
    id = f"call_{chance.getrandbits(60):x}"
    row = CallRow(id, hold.session.id, "t", hold.session.active or "", 1, "bash", "{}", "", "running")
    await hold.commit(Commit(calls=[row]))
    mark = call_mark(home, row.session, row.node, id)
    process = asleep(chance.choice(WAYS), mark)
    say("asleep", id)
    await asyncio.sleep(chance.uniform(0, LONGEST))
    say("ends", id)
    end_marked([mark])
    process.wait()
    await hold.commit(Commit(nodes=[NewNode("tool", {"call_id": id})], calls=[row._replace(state="completed")]))


ACTS = {"commit": 65, "call": 15, "switch": 5, "fork": 5, "purge": 5, "search": 5}


async def act(what: str, store: SqliteStore, home: Path, hold: SessionLock, chance: random.Random, say: Say) -> None:
    """Do one of the things that a session does, and say so once it is true."""
    row = hold.session
    match what:
        case "commit":
            nodes = [NewNode("tool", {"output": "x" * chance.choice([10, 500, 9000])}) for _ in range(chance.randint(1, 4))]
            event = Event(type="tool.result", session=row.id, data={"n": len(nodes)})
            done = await hold.commit(Commit(nodes=nodes, events=[event], plugin_state={("p", "session"): chance.random()}))
            for node in done.nodes:
                say("node", node.id, row.id, node.hash)
        case "call":
            await call_asleep(home, hold, chance, say)
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


def kill_once(body: Callable[[int], None], after: float, *, at_work: bool = False) -> bytes:
    """Run `body(pipe)` in a child, kill it after a while, and return what it wrote.

    :param at_work: count the while from the child's first word, and not from its start.
    """
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
    if at_work:
        select.select([reading], [], [], 30)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 3:
        raise RuntimeError("the writer failed instead of being killed")
    return lines


async def take_up(home: Path, told: Acknowledged) -> list[str]:
    """Hold the session for the last time; return what is wrong with its calls then."""
    store, said = SqliteStore.open(home / "sessions.db"), list[str]()
    problems = list(store.notices)
    row = await store.latest("/v")
    if row is not None:
        said.append("take\n")
        async with SessionLease(store, home, row).block() as live:
            await settle(home, live, lambda *words: said.append(" ".join(words) + "\n"))
        calls = await store.calls(session=row.id)
        problems += [f"call {call.id} is said to run" for call in calls if call.state == "running"]
        for pid in marked_processes(home, calls):
            problems.append(f"process {pid} is left")
            os.kill(pid, signal.SIGKILL)
    store.close()
    told.read("".join(said).encode())
    return problems + told.problems


def lost(home: Path, told: Acknowledged) -> list[str]:
    """Return what was acknowledged and is not there, or does not fit."""
    problems: list[str] = []
    if not (home / "sessions.db").exists():
        return ["the database"] if told.nodes else []
    problems += asyncio.run(take_up(home, told))
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


@dataclass(frozen=True)
class Home:
    """The kills of one home."""

    folder: Path
    kills: int
    seed: int


def kill_writers(home: Home) -> tuple[int, int, list[str]]:
    """Kill the writers of a home; return how many things were acknowledged, how many calls slept, and what is wrong."""
    chance, told, total = random.Random(home.seed), Acknowledged(), 0
    for number in range(home.kills):
        after, at_work = chance.uniform(0, LONGEST), chance.random() < AT_WORK
        body = partial(writer, home.folder, seed=home.seed + number)
        total += told.read(kill_once(body, after, at_work=at_work))
        reap()
    problems = lost(home.folder, told)
    reap()
    return total, told.killed_asleep, [f"{home.folder.name}: {problem}" for problem in problems]


def become_parent() -> None:
    """Be the one to whom the orphans of killed processes come, so that they can be reaped."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1)


def reap() -> None:
    """Reap what has ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


RULES = [
    {"domain": "bash", "pattern": "*", "decision": "allow"},
    # with the sandbox, all of a command ends with the host
    {"domain": "bash", "pattern": "sandbox:commands", "decision": "deny"},
]


def vault_of(home: Path) -> Path:
    """Return the folder in which the host of `home` works."""
    return home.with_name(f"{home.name}-vault")


def kill_host(home: Home) -> tuple[int, int, list[str]]:
    """Kill a host while its model's command sleeps, and let another go on; return as :func:`kill_writers`."""
    chance, vault = random.Random(home.seed), vault_of(home.folder)
    vault.mkdir(parents=True)
    home.folder.mkdir(mode=0o700)
    config, script, ready = home.folder / "config.jsonc", home.folder / "script.json", vault / "ready"
    config.write_text(json.dumps({"agents": {"runtime": {"permission": {"rules": RULES}}}}))
    config.chmod(0o600)
    command = f"setsid {ASLEEP} & {ASLEEP} & touch ready; wait"
    script.write_text(json.dumps([{"calls": [{"name": "bash", "arguments": {"command": command}}]}]))
    child = os.fork()
    if child == 0:
        asyncio.run(one_turn(home.folder, f"script:{script}", ""))
        os._exit(0)
    until = time.monotonic() + 60
    while not ready.exists() and time.monotonic() < until and os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(0.01)
    time.sleep(chance.uniform(0, LONGEST))
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not ready.exists():
        return 0, 0, [f"{home.folder.name}: the command did not begin"]
    script.write_text(json.dumps(["goes on"]))
    problems = asyncio.run(one_turn(home.folder, f"script:{script}", "still ran"))
    reap()
    return 1, 1, [f"{home.folder.name}: {problem}" for problem in problems]


async def one_turn(home: Path, model: str, wanted: str) -> list[str]:
    """Run a turn in the only session of a home; return what is missing of what the user is `wanted` to know."""
    vault, heard, left = vault_of(home), list[str](), list[int]()
    async with await open_host(home, environ={**os.environ, "HOME": str(home)}) as host:
        session = await host.resume(vault, model=model) if wanted else await host.new_session(vault, model=model)

        def hear(event: Event) -> None:
            heard.extend([event.data["text"]] if event.type == "session.notice" else [])

        session.subscribe(hear)
        before = await host.store.calls(session=session.id)
        result = await session.prompt("go")
        left = marked_processes(home, before)
    told = " ".join(heard)
    problems = [] if wanted in told else [f"the user was not told: {told!r}"]
    problems += [f"process {pid} is left" for pid in left]
    return problems + ([] if result.text == "goes on" else [f"the session did not go on: {result.end_reason}"])


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
        SqliteStore.open(path).close()
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


async def warm_up(home: Path) -> None:
    """Do everything once, so that what the children need is imported before they are forked."""
    store, chance = SqliteStore.open(home / "sessions.db"), random.Random(0)
    row = await store.create(vault="/v", agent="a", mode="agent")
    async with SessionLease(store, home, row).block() as live:
        for what in ACTS:
            await act(what, store, home, live.hold, chance, lambda *words: None)
    async with SessionLease(store, home, row).block():
        pass
    store.close()


def main() -> None:
    """Print the figures; exit 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="homes at a time")
    # A killed process loses nothing that it had given to the system: a disk would show no more than memory does.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    parser.add_argument("--folder", default=memory, help="where the homes are made")
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="moryflow-kill-", dir=options.folder) as name:
        folder, hosts = Path(name), max(1, options.kills // PER_HOST)
        homes = [
            Home(folder / f"home{first}", min(PER_HOME, options.kills - hosts - first), options.seed + first)
            for first in range(0, options.kills - hosts, PER_HOME)
        ]
        with_host = [Home(folder / f"host{number}", 1, options.seed + number) for number in range(hosts)]
        asyncio.run(warm_up(folder / "warm"))
        with multiprocessing.get_context("fork").Pool(options.jobs, become_parent) as pool:
            hosted = pool.imap_unordered(kill_host, with_host)
            done = [*pool.imap_unordered(kill_writers, homes), *hosted]
        cut, problems = kill_migrations(max(5, options.kills // 20), options.seed, folder)
    told, asleep = sum(one[0] for one in done), sum(one[1] for one in done)
    problems += [problem for one in done for problem in one[2]]
    print(f"seed {options.seed}: {options.kills} kills ({hosts} of whole hosts), {told} acknowledgements", end=", ")
    print(f"{asleep} calls killed asleep, {cut} upgrades cut short, {len(problems)} problems", end=", ")
    print(f"{time.monotonic() - start:.0f} s")
    print("\n".join(problems))
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()

"""Let the n-th read, write, sync or truncation of the database fail, for n = 1, 2, 3 … until none is left to fail.

Run with ``LD_PRELOAD`` set to the compiled ``io_faults.c`` and the path to it as first argument; the second is the largest n.
Each round runs in a child: it must meet nothing but a :class:`StoreError`, keep its memory with the disk, and what it was
told is stored must be there afterwards. Prints one line of figures; exits 1 when something is wrong.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import sqlite3
import sys
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

from moryflow.store import Commit, NewNode, SessionLock, StoreError
from moryflow.store.sqlite.store import SqliteStore

KINDS = {"read": "r", "write": "w", "sync": "s", "truncate": "t"}
ALLOWED = {"io", "no_space", "gone"}


async def scenario(path: Path, say) -> None:
    """Open, make, hold, commit, switch, purge, search and close; go on after every refusal."""
    store = SqliteStore.open(path)
    row = await store.create(vault="/v", agent="a", mode="agent")
    hold = await store.hold(row.id)
    for number in range(4):
        before = list(hold.path)
        try:
            done = await hold.commit(
                Commit(nodes=[NewNode("tool", {"output": "x" * 5000}), NewNode("note", {"text": str(number)})])
            )
            say(*(node.id for node in done.nodes))
        except StoreError as error:
            say(f"!{error.code}")
            assert hold.path == before, "memory ran ahead of the disk"
    await agree(store, hold, say)
    await store.search("xylophone")
    child = await store.create(vault="/v", agent="a", mode="agent")
    await store.delete(child.id)
    hold.release()
    store.close()


async def agree(store: SqliteStore, hold: SessionLock, say) -> None:
    """The holder's memory is what the disk has, or may still get from a commit whose end was not seen."""
    try:
        stored = await store.path(hold.session.id)
    except StoreError as error:
        say(f"!{error.code}")
        return
    assert stored == hold.path, "memory and disk differ"


def body(path: Path, pipe: int) -> int:
    """Run the scenario; return the exit code."""

    def say(*words: str) -> None:
        os.write(pipe, ("".join(f"{word}\n" for word in words)).encode())

    try:
        asyncio.run(scenario(path, say))
    except StoreError as error:
        say(f"!{error.code}")
    except BaseException as error:
        say(f"#{type(error).__name__}: {error}")
    return 0


def one_round(shim: ctypes.CDLL, path: Path, kind: str, n: int, error: int, lasting: bool) -> tuple[list[str], int]:
    """Return what a child with an armed fault said, and how often the fault struck."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        shim.arm(ctypes.c_char(KINDS[kind].encode()), n, error, int(lasting))
        body(path, writing)
        os._exit(min(shim.fired(), 100))
    os.close(writing)
    with os.fdopen(reading) as pipe:
        words = pipe.read().split("\n")[:-1]
    return words, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def problems_after(path: Path, words: list[str]) -> list[str]:
    """Return what is wrong with a database after a fault."""
    problems = [word for word in words if word.startswith("#")]
    problems += [f"code {word[1:]}" for word in words if word.startswith("!") and word[1:] not in ALLOWED]
    problems += [f"moved aside {file.name}" for file in path.parent.glob("*.corrupt-*")]
    store = SqliteStore.open(path)
    problems += store.notices
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        there = {row[0] for row in connection.execute("SELECT id FROM nodes")}
        check = connection.execute("PRAGMA integrity_check").fetchone()[0]
    problems += [] if check == "ok" else [check]
    return problems + [f"lost {word}" for word in words if word[0] not in "#!" and word not in there]


def main() -> None:
    """Try every kind of fault at every place."""
    shim, largest = ctypes.CDLL(sys.argv[1]), int(sys.argv[2])
    struck, codes, wrong = 0, Counter[str](), list[str]()
    cases = [
        (k, e, s) for k in KINDS for e in (errno.EIO, errno.ENOSPC) for s in (False, True) if k == "write" or e == errno.EIO
    ]
    with tempfile.TemporaryDirectory() as folder:
        for kind, error, lasting in cases:
            for n in range(1, largest + 1):
                path = Path(folder) / f"{kind}-{error}-{lasting}-{n}" / "sessions.db"
                words, fired = one_round(shim, path, kind, n, error, lasting)
                if not fired:
                    break
                struck += 1
                codes.update(word for word in words if word.startswith("!"))
                wrong += [
                    f"{kind} {n} {errno.errorcode[error]} {'lasting' if lasting else 'once'}: {p}"
                    for p in problems_after(path, words)
                ]
    print(f"{struck} faults, {dict(codes)}, {len(wrong)} problems")
    print("\n".join(wrong))
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()

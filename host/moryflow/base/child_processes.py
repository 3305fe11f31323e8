"""End the processes that a tool started when its call ends, including those in the background.

They cannot be marked, because a library that starts a program does not know for which call. So the children of this process
before and after the call are compared. If calls overlap, the last one to end also ends the children of the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from moryflow_sdk.support.processes import CALL_MARK, adopt_orphans, children

END_TIMEOUT = 1.0
_STEP = 0.02


def call_mark(home: Path, session: str, node: str, call: str) -> str:
    """Return the mark that the processes of a call carry in their environment, a hash of ids recorded before the call runs."""
    return hashlib.sha256("\0".join((str(home.resolve()), session, node, call)).encode()).hexdigest()[:32]


class Offspring:
    """Tracks the child processes that third-party tools start, while any call of such a tool runs."""

    def __init__(self) -> None:
        self._calls = 0
        self._ending = False
        self._before: set[int] = set()
        self._threads: set[str] = set()

    @asynccontextmanager
    async def of_call(self, plugin: str) -> AsyncIterator[None]:
        """End the processes that a tool body of `plugin` started and left running, however the body ends."""
        for _ in range(int(2 * END_TIMEOUT / _STEP)):
            if not self._ending:
                break
            await asyncio.sleep(_STEP)  # a process started now would be taken for one left over
        if not self._calls:
            adopt_orphans()
            self._before = set(_children(_every_thread()))
        self._calls += 1
        self._threads |= {"MainThread", f"moryflow-{plugin}"}
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                await asyncio.shield(self._end())

    async def _end(self) -> None:
        before, threads = self._before, self._threads
        self._threads = set()
        if not _left(before, threads):
            adopt_orphans(adopt=False)
            return
        self._ending = True
        try:
            await asyncio.to_thread(_end, lambda: _left(before, threads))
        finally:
            adopt_orphans(adopt=False)
            self._ending = False


OFFSPRING = Offspring()


def _left(before: set[int], threads: set[str]) -> set[int]:
    """Return the new children of `threads`, except those with a mark. Orphans belong to the main thread."""
    tasks = [os.getpid(), *(each.native_id or 0 for each in threading.enumerate() if each.name in threads)]
    return {pid for pid in _children(tasks) if pid not in before and not _is_marked(pid)}


def _every_thread() -> list[int]:
    with suppress(OSError):
        return [int(task) for task in os.listdir("/proc/self/task")]  # noqa: PTH208
    return []


def _children(threads: Iterable[int]) -> list[int]:
    """Return the children that `threads` of this process have started or adopted."""
    return [child for thread in threads for child in children(os.getpid(), thread)]


def _is_marked(pid: int) -> bool:
    """Whether a process carries a call's mark. Shell commands do, and their tool ends them by it."""
    with suppress(OSError):
        return f"\0{CALL_MARK}=".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    return False


def _parents() -> dict[int, int]:
    """Return the parent of every process, including processes that have ended but were not reaped."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parents[int(place.parent.name)] = int(place.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return parents


def _below(roots: set[int], parents: dict[int, int]) -> set[int]:
    """Return the existing processes of `roots` and all their descendants."""
    found = {pid for pid in roots if pid in parents}
    while new := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= new
    return found


def _end(left: Callable[[], set[int]]) -> None:
    """Kill the processes in `left` and their descendants, and reap those nobody waits for. Blocks until all have gone.

    It gives up after :data:`END_TIMEOUT`.
    """
    begun = time.monotonic()
    killed: set[int] = set()
    while (passed := time.monotonic() - begun) < END_TIMEOUT:
        parents = _parents()
        alive = _below(left() | (killed & parents.keys()), parents)
        if not alive:
            return
        killed |= alive
        for pid in alive:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if passed > END_TIMEOUT / 5:  # asyncio reaps its own, and warns if someone else did
            for pid in alive:
                with suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
        time.sleep(_STEP)

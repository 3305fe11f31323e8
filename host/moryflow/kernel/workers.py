"""Threads for plain functions of plugins: daemons with queues of their own, so that exit never waits for them.

A third-party plugin has one thread and its calls are serial. A thread past its deadline cannot be stopped: it is
abandoned, what it returns later is thrown away, and its plugin is *broken* for this process.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any


class Overrun(Exception):
    """A call was abandoned because it took longer than its deadline."""


class Broken(Exception):
    """The plugin's thread was abandoned earlier; it is not called any more."""


@dataclass(eq=False)
class _Job:
    function: Callable[..., Any]
    arguments: Sequence[Any]
    timeout: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    context: contextvars.Context
    worker: Worker
    timer: asyncio.TimerHandle | None = None
    started: float = 0.0
    finished: bool = False


class Worker:
    """One daemon thread that runs functions one after another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.abandoned = False
        self.pending = 0
        """Calls that have not ended, also those that nobody waits for any more."""

    async def run(self, function: Callable[..., Any], arguments: Sequence[Any], timeout: float) -> Any:
        """Return what `function` returns; its deadline counts from when it begins.

        :raises Overrun: it did not finish in `timeout` seconds; the thread is given up.
        :raises Broken: the thread was given up, before or while this call waited for its turn.
        """
        if self.abandoned:
            raise Broken
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._queue,), name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        job = _Job(function, arguments, timeout, loop, loop.create_future(), contextvars.copy_context(), self)
        job.timer = loop.call_later(timeout, self._check, job)
        self.pending += 1
        self._queue.put(job)
        return await job.future

    def stop(self) -> None:
        """Let the thread end after the call it is in."""
        self._queue.put(None)

    def _check(self, job: _Job) -> None:
        """Look at `job` when its time is up. Runs even when nobody waits for it any more (a cancelled turn)."""
        if job.finished or self.abandoned:
            return
        left = job.timeout if not job.started else job.started + job.timeout - time.monotonic()
        if left > 0:
            job.timer = job.loop.call_later(left, self._check, job)
            return
        self._abandon(job)

    def _abandon(self, job: _Job) -> None:
        self.abandoned = True
        _settle(job.future, None, Overrun())
        while True:
            try:
                waiting = self._queue.get_nowait()
            except Empty:
                break
            if waiting is not None:
                _hand_over(waiting, None, Broken())
        self.stop()


@dataclass(eq=False)
class Life:
    """What changes about a plugin while it is loaded; shared by the generations that use it.

    :param serial: one thread, given up for good when it overruns (third-party plugins). Otherwise threads are made as
        needed and an overrun costs only its own thread (built-ins).
    :param broken: why the plugin is not called any more; empty while it is well.
    """

    plugin: str
    serial: bool = True
    broken: str = ""
    started: bool = False
    disposer: Callable[[], Any] | None = None
    generations: set[int] = field(default_factory=set)
    forget: Callable[[], None] | None = None
    stray: asyncio.Task[Any] | None = None
    _workers: list[Worker] = field(default_factory=list)

    async def run(self, function: Callable[..., Any], arguments: Sequence[Any], timeout: float) -> Any:
        """Run a plain function on a thread of this plugin; see :meth:`Worker.run`."""
        if self.broken:
            raise Broken
        try:
            return await self._worker().run(function, arguments, timeout)
        except (Overrun, Broken):
            if self.serial:
                self.broken = self.broken or "a call did not end in time and its thread was given up"
            raise

    def stop(self) -> None:
        """End the threads that are idle; one that is stuck ends when its call does."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def _worker(self) -> Worker:
        """Return the plugin's one thread, or for built-ins any that is free."""
        if not self.serial:
            self._workers = [worker for worker in self._workers if not worker.abandoned]
        for worker in self._workers:
            if self.serial or not worker.pending:
                return worker
        self._workers.append(Worker(f"moryflow-{self.plugin}"))
        return self._workers[-1]


def _serve(queue: SimpleQueue[_Job | None]) -> None:
    """The thread's own loop. It holds nothing of a job while it waits for the next, so that plugins can be freed."""
    while True:
        job = queue.get()
        if job is None:
            return
        _work(job)
        del job


def _work(job: _Job) -> None:
    value, error = None, None
    try:
        if not job.future.cancelled():
            job.started = time.monotonic()
            value = job.context.run(job.function, *job.arguments)
    except BaseException as caught:  # the isolation boundary of the thread: whatever a plugin raises goes to its caller
        error = caught
    job.finished = True
    _hand_over(job, value, error)


def _hand_over(job: _Job, value: Any, error: BaseException | None) -> None:
    try:
        job.loop.call_soon_threadsafe(_finish, job, value, error)
    except RuntimeError:
        return  # the loop is closed: nobody waits any more


def _finish(job: _Job, value: Any, error: BaseException | None) -> None:
    job.worker.pending -= 1
    if job.timer is not None:
        job.timer.cancel()
    _settle(job.future, value, error)


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):
        error = RuntimeError("StopIteration raised")
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)

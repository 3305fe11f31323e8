"""Threads for plugins' plain functions: daemon threads with queues of their own, so that exit never waits for them.

A third-party plugin has one thread, and its calls run one after another. A thread past its deadline cannot be stopped:
it is abandoned, its late result is thrown away, and its plugin is *broken* for this process. If the thread hangs in the
body of a tool, it is replaced, up to a few times, so that the plugin's hooks and gates keep working.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from moryflow.base.foreign_errors import contain_exit

# Seconds the event loop blocks for a function before it does something else. Most functions end sooner: with this wait a
# plain function of a plugin costs 30 µs, without it 50.
SPIN_TIME = 0.0002
# The least seconds between two checks of a call whose time is nearly up.
SHORTEST_LOOK = 0.01
# Threads of one plugin that may hang in a tool's body before the plugin is broken. Each may keep using the processor.
MAX_REPLACED = 3
# Seconds that stand for "no deadline": a day.
NEVER = 86400.0

_lifted = False


def lift_deadlines() -> None:
    """Make every deadline that begins from now on :data:`NEVER`, until the process ends (``--debug``)."""
    global _lifted
    _lifted = True


def deadlines_lifted() -> bool:
    """Whether :func:`lift_deadlines` was called: someone debugs a plugin in this process."""
    return _lifted


def limit(seconds: float) -> float:
    """Return `seconds`, or :data:`NEVER` if deadlines are lifted."""
    return NEVER if _lifted else seconds


class CallTimeout(Exception):
    """A call was abandoned because it took longer than its deadline."""


class PluginUnresponsive(Exception):
    """The plugin's thread was abandoned earlier; the plugin is not called any more."""


@dataclass(eq=False, slots=True)
class _Job:
    """One call: the loop waits for it, a worker thread makes it. `body`: it runs the body of a tool.

    :param work: the function with its arguments, in the context of the caller.
    """

    work: Callable[[], Any]
    timeout: float
    loop: asyncio.AbstractEventLoop
    body: bool = False
    done: threading.Lock = field(default_factory=threading.Lock)
    future: asyncio.Future[Any] | None = None
    started: float = 0.0
    finished: bool = False
    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class Worker:
    """One daemon thread that runs functions one after another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._jobs: list[_Job] = []
        self.abandoned = False
        self.hangs_in_body = False

    @property
    def busy(self) -> bool:
        """Whether a call has not ended, even if nobody waits for it any more."""
        return any(not job.finished for job in self._jobs)

    async def run(self, function: Callable[..., Any], arguments: Sequence[Any], timeout: float, body: bool = False) -> Any:
        """Return what `function` returns. The deadline counts from when the function begins.

        :param body: `function` is the body of a tool.
        :raises CallTimeout: `function` did not finish in `timeout` seconds; the thread is abandoned.
        :raises PluginUnresponsive: the thread was abandoned before this call, or while it waited in the queue.
        """
        if self.abandoned:
            raise PluginUnresponsive
        work = partial(contextvars.copy_context().run, function, *arguments)
        job = _Job(work, timeout, asyncio.get_running_loop(), body)
        job.done.acquire()
        spin = 0 if self.busy else SPIN_TIME
        self._queue.put(job)
        if self._thread is None:
            self._begin()
        if spin and job.done.acquire(timeout=spin):
            return job.result()
        return await self._wait_in_loop(job)

    def stop(self) -> None:
        """Let the thread end after its current call."""
        self._queue.put(None)

    def _begin(self) -> None:
        """Start the thread. Its first call is queued already, and has mostly ended by the time ``start`` returns."""
        thread = threading.Thread(target=_serve, args=(self._queue,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads; the failed call must not run later
            self._queue = SimpleQueue()
            raise
        self._thread = thread

    async def _wait_in_loop(self, job: _Job) -> Any:
        self._jobs.append(job)
        future = job.future = job.loop.create_future()
        if job.finished:  # it ended just now: the thread may not have seen the future
            self._jobs.remove(job)
            return job.result()
        timer = job.loop.call_later(limit(job.timeout), self._check, job)
        try:
            await future
        finally:
            if job.finished:
                timer.cancel()
                self._jobs.remove(job)  # its result may be large
        if self.abandoned and not job.finished:
            raise CallTimeout if job.started else PluginUnresponsive
        return job.result()

    def _check(self, job: _Job) -> None:
        """Abandon the thread if the time of `job` is up. Runs even if nobody waits for the job (a cancelled turn)."""
        if job.finished:  # something of the plugin's in the thread, such as a tracer, may have prevented the wake-up
            _wake(job)
        if job.finished or self.abandoned:
            return
        left = self._seconds_left(job)
        if left > 0:
            job.loop.call_later(max(left, SHORTEST_LOOK), self._check, job)
            return
        self.abandoned, self.hangs_in_body = True, job.body
        self._drop_waiting()
        for each in self._jobs:
            _wake(each)

    def _seconds_left(self, job: _Job) -> float:
        if self._thread is not None and not self._thread.is_alive():
            return 0.0
        timeout = limit(job.timeout)
        return timeout - (time.monotonic() - job.started) if job.started else timeout

    def _drop_waiting(self) -> None:
        """Take the calls that have not begun off the queue, and let the thread end if its current call ever returns."""
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        self.stop()


@dataclass(eq=False)
class PluginThreads:
    """The threads and mutable state of a loaded plugin, shared by the generations that use it.

    :param serial: for third-party plugins: one thread; an overrun in a hook breaks the plugin, an overrun in a tool's body
        replaces the thread, a few times. Built-ins get threads as needed, and an overrun costs only its own thread.
    :param stray: an asynchronous call that overran and was cancelled.
    :param contributed: what its contribute hooks returned last, by function.
    :param broken: why the plugin is not called any more; empty while it may be called.
    """

    plugin: str
    serial: bool = True
    broken: str = ""
    started: bool = False
    disposer: Callable[[], Any] | None = None
    generations: set[int] = field(default_factory=set)
    contributed: dict[Any, Any] = field(default_factory=dict)
    forget: Callable[[], None] | None = None
    stray: asyncio.Task[Any] | None = None
    _workers: list[Worker] = field(default_factory=list)
    _replaced: int = 0

    @property
    def busy(self) -> bool:
        """Whether a plain function of the plugin runs, so that on its one thread another would have to wait."""
        return self.serial and any(worker.busy for worker in self._workers)

    @property
    def lingers(self) -> bool:
        """Whether an asynchronous call of the plugin still runs although it was cancelled."""
        return self.stray is not None and not self.stray.done()

    async def run(self, function: Callable[..., Any], arguments: Sequence[Any], timeout: float, *, body: bool = False) -> Any:
        """Run a plain function on a thread of this plugin; see :meth:`Worker.run`."""
        left = MAX_REPLACED
        while True:
            worker = self._worker()
            if self.broken:
                raise PluginUnresponsive
            try:
                return await worker.run(function, arguments, timeout, body)
            except PluginUnresponsive:  # the call was queued behind one that never ended
                if not left:
                    raise
                left -= 1
            finally:
                self._give_up_stuck()

    def stop(self) -> None:
        """End the threads: an idle one now, a busy one after its call."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def _worker(self) -> Worker:
        """Return the plugin's one thread; for built-ins, any thread that is free."""
        self._give_up_stuck()
        for worker in self._workers:
            if self.serial or not worker.busy:
                return worker
        self._workers.append(Worker(f"moryflow-{self.plugin}"))
        return self._workers[-1]

    def _give_up_stuck(self) -> None:
        """Forget abandoned threads, and mark the plugin broken if it may have no further thread; see `serial`."""
        for worker in [worker for worker in self._workers if worker.abandoned]:
            self._workers.remove(worker)
            self._replaced += 1
            if self.serial and not (worker.hangs_in_body and self._replaced <= MAX_REPLACED):
                self.broken = self.broken or "a call did not end in time and its thread was given up"


def _serve(queue: SimpleQueue[_Job | None]) -> None:
    """Run the jobs of `queue`. While it waits it keeps no reference to the last job, so that plugins can be freed."""
    while True:
        job = queue.get()
        if job is None:
            return
        _work(job)
        del job


def _work(job: _Job) -> None:
    if job.future is None or not job.future.cancelled():
        job.started = time.monotonic()
        try:
            job.value = job.work()
        except BaseException as error:  # the isolation boundary of the thread: the caller gets whatever a plugin raises
            job.error = contain_exit(error)
    job.finished = True
    job.done.release()
    if job.future is not None:
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            job.loop.call_soon_threadsafe(_wake, job)


def _wake(job: _Job) -> None:
    if job.future is not None and not job.future.done():
        job.future.set_result(None)

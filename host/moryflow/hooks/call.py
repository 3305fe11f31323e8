"""One call of one implementation: isolated, timed, with a deadline, wherever its code has to run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from types import CoroutineType, coroutine
from typing import Any

from moryflow.base.foreign_errors import contain_exit

from .checks import copy_for_plugin
from .plugin_set import Implementation
from .threads import CallTimeout, PluginUnresponsive, WorkMeter, limit, longest, worked_until


@dataclass(slots=True)
class CallOutcome:
    """What a call gave: `status` is ``ok``, ``failed``, ``timeout`` or ``skipped`` (broken, not called)."""

    value: Any
    ns: int
    status: str = "ok"
    error: BaseException | None = None


async def call(implementation: Implementation, context: Mapping[str, Any]) -> CallOutcome:
    """Call `implementation` with those of `context` that it takes. Raises nothing but cancellation and Ctrl-C."""
    arguments = [context[name] for name in implementation.arguments]
    started = perf_counter_ns()
    built_in = not implementation.life.serial
    since = worked_until(started, implementation.timeout) if built_in else 0
    meter: WorkMeter | None = None
    try:
        if implementation.tier != "builtin":
            arguments = [copy_for_plugin(value) for value in arguments]
        if implementation.inline:
            value = implementation.function(*arguments)
        elif not implementation.is_async:
            value = await implementation.life.run(implementation.function, arguments, implementation.timeout)
        elif implementation.life.lingers:
            raise PluginUnresponsive
        else:
            value = implementation.function(*arguments)
        if value is not None and inspect.isawaitable(value):
            if built_in:
                meter = WorkMeter(implementation.timeout, since)
                value = await _run_metered(implementation, value, meter)
            else:
                value = await _run_in_task(implementation, value)
    except BaseException as error:
        return _failure_of(implementation, error, perf_counter_ns() - started)
    ns = perf_counter_ns() - started
    late = ns > limit(implementation.timeout) * 1e9
    if late and (not built_in or _overspent(implementation, meter or WorkMeter(implementation.timeout, since))):
        return CallOutcome(None, ns, "timeout", TimeoutError())
    return CallOutcome(value, ns)


def _overspent(implementation: Implementation, meter: WorkMeter) -> bool:
    """Whether a built-in that has ended worked too long here; the thread of a plain one has counted for itself."""
    if implementation.is_async or implementation.inline:
        meter.pause()
        return meter.passed
    return False


async def _run_metered(implementation: Implementation, work: Awaitable[Any], meter: WorkMeter) -> Any:
    """Await `work` of a built-in, in this task: its deadline counts what it works itself.

    :raises CallTimeout: it worked longer, or is stuck.
    """
    if isinstance(work, CoroutineType):  # most end without having waited, and need no clock
        try:
            waits_for = work.send(None)
        except StopIteration as ended:
            return ended.value
        work = _rest(work, waits_for, meter)
    timer = asyncio.timeout(limit(longest(implementation.timeout)))
    try:
        async with timer:
            return await work
    except TimeoutError as error:
        if timer.expired():
            raise CallTimeout from error
        raise


@coroutine
def _rest(work: CoroutineType[Any, Any, Any], waits_for: Any, meter: WorkMeter) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that has begun and waits for something; what others do meanwhile is not its work."""
    while True:
        meter.pause()
        if meter.passed:
            work.close()
            meter.resume()
            raise CallTimeout
        try:
            given = yield waits_for
        except BaseException as error:
            step = partial(work.throw, error)
        else:
            step = partial(work.send, given)
        meter.resume()
        try:
            waits_for = step()
        except StopIteration as ended:
            return ended.value


async def _run_in_task(implementation: Implementation, work: Awaitable[Any]) -> Any:
    """Await `work` in a task of its own, so that one that ignores its cancellation holds up nobody."""
    task = asyncio.ensure_future(contained(work))
    try:
        done, _ = await asyncio.wait((task,), timeout=limit(implementation.timeout))
    except asyncio.CancelledError:
        abandon(task)
        raise
    if done:
        return task.result()
    implementation.life.stray = task
    abandon(task)
    raise CallTimeout


def abandon(task: asyncio.Future[Any]) -> None:
    """Cancel `task` without waiting for it. What it raises later is ignored, and exit does not wait for it.

    ``asyncio.run()`` waits for every task that is registered, so one that ignores its cancellation would hold up the exit for
    ever. "Extending asyncio" in Python's documentation names the function that takes a task out of that register.
    """
    task.cancel()
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    if isinstance(task, asyncio.Task):
        asyncio._unregister_task(task)


async def contained(work: Awaitable[Any]) -> Any:
    """Keep what is no :class:`Exception` inside: raised from a task, it would end the turn or the host's loop.

    A person's Ctrl-C is not lost: at the first one asyncio or the command has stopped the turn already. A cancellation
    goes on when it is ours.
    """
    try:
        return await work
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise contain_exit(error) from error


def _failure_of(implementation: Implementation, error: BaseException, ns: int) -> CallOutcome:
    """Turn what was raised into an outcome. Cancellation of ours and Ctrl-C go on; SystemExit of a plugin does not."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error
    if isinstance(error, PluginUnresponsive):
        return CallOutcome(None, 0, "skipped", error)
    foreign_late = implementation.life.serial and isinstance(error, TimeoutError) and ns >= implementation.timeout * 1e9
    if isinstance(error, CallTimeout) or foreign_late:
        return CallOutcome(None, ns, "timeout", TimeoutError())
    return CallOutcome(None, ns, "failed", error)

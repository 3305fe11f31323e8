"""Signals that stop a turn, a wait or a command, whatever keeps the loop from running."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from types import FrameType
from typing import Any, TypeVar

from . import debugger


def stop_on_signals(stop: Callable[[], object]) -> None:
    """Stop the turn on the first SIGINT, SIGTERM or SIGHUP, and leave at once on the second."""
    catch_signals(("SIGINT", "SIGTERM", "SIGHUP"), lambda _: stop(), leave_at=2)


def catch_signals(names: Sequence[str], act: Callable[[int], object], *, leave_at: int) -> Callable[[], None]:
    """Call `act` on the loop for each of these signals; the returned function ends that.

    The handlers are Python's own, not the loop's: a plugin that keeps the loop from running must not keep a person
    from leaving.

    :param leave_at: the signal, counted from one, at which the process ends at once, whatever the loop does.
    """
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def received(number: int, _: FrameType | None) -> None:
        seen.append(number)
        if len(seen) >= leave_at:
            os._exit(130)
        loop.call_soon_threadsafe(act, number)

    known = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = [(number, signal.signal(number, received)) for number in known]

    def restore() -> None:
        for number, handler in before:
            signal.signal(number, handler)

    return restore


T = TypeVar("T")


def run_on_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work` on a new event loop, like :func:`asyncio.run`, and raise :exc:`KeyboardInterrupt` when Ctrl-C cancelled it.

    Ctrl-C is never an exception while the loop is being made or taken down: a loop that is half made prints an error when it
    is deleted, and so does a coroutine that was made and never awaited.
    """
    pythons = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not pythons:
        return asyncio.run(work())
    pressed, late = 0, False
    running: asyncio.Task[Any] | None = None

    def received(*_: object) -> None:
        nonlocal pressed, late
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        if running is not None and not running.done():
            running.get_loop().call_soon_threadsafe(running.cancel)
        late = running is not None and running.done()

    async def cancellable() -> T:
        nonlocal running
        debugger.install()
        running = asyncio.current_task()
        if pressed:
            raise asyncio.CancelledError
        return await work()

    signal.signal(signal.SIGINT, received)
    try:
        result = asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not pressed:
            raise
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, pythons)
    if late:  # the work was done, and only the loop was still being taken down
        raise KeyboardInterrupt
    return result

"""Run the work of a command on an event loop that Ctrl-C can stop at any moment."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_on_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work` on a new event loop, like :func:`asyncio.run`, and raise :exc:`KeyboardInterrupt` when Ctrl-C cancelled it.

    Ctrl-C is never an exception while the loop is being made or taken down: a loop that is half made prints an error when it
    is deleted, and so does a coroutine that was made and never awaited.
    """
    pythons = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not pythons:
        return asyncio.run(work())
    pressed = 0
    running: asyncio.Task[Any] | None = None

    def received(*_: Any) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        if running is not None and not running.done():
            running.get_loop().call_soon_threadsafe(running.cancel)

    async def cancellable() -> T:
        nonlocal running
        running = asyncio.current_task()
        if pressed:
            raise asyncio.CancelledError
        return await work()

    signal.signal(signal.SIGINT, received)
    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not pressed:
            raise
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, pythons)

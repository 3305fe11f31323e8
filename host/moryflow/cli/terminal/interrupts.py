"""What interrupts a running loop: signals, which stop a turn, a wait or a command, and ``breakpoint()``."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

from moryflow_sdk import MoryflowError

from moryflow.hooks.threads import lift_deadlines

# The signals by which the user or the system ends a program.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_on_signals(stop: Callable[[], object]) -> None:
    """Call `stop` on the first of :data:`ENDING`, and leave at once on the second."""
    catch_signals(ENDING, lambda _: stop(), leave_at=2)


def catch_signals(signals: Sequence[int], act: Callable[[int], object], *, leave_at: int) -> Callable[[], None]:
    """Call `act` on the loop for each of these signals, until the returned function is called.

    The handlers are Python's own, not the loop's: a plugin that keeps the loop from running must not keep the user
    from leaving.

    When a terminal is closed, SIGHUP comes more than once: from the system, from the shell, and when the shell has ended. They
    count as one, and SIGHUP stays ignored afterwards, while the process may still be saving what was typed. As no Ctrl-C can
    come any more, the process ends :data:`HANGUP_SECONDS` later, whatever the loop does. Under ``nohup``, SIGHUP is ignored.

    :param leave_at: the signal, counted from one, at which the process ends at once, whatever the loop does.
    """
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    over = threading.Event()

    def received(number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP and number in seen:
            return
        seen.append(number)
        if len(seen) >= leave_at:
            os._exit(130)
        if number == signal.SIGHUP:
            threading.Thread(target=_leave_unless, args=(over,), daemon=True).start()
        with suppress(RuntimeError):  # the loop is closed, so the end has begun
            loop.call_soon_threadsafe(act, number)

    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set[int]()
    before = [(number, signal.signal(number, received)) for number in signals if number not in ignored]

    def restore() -> None:
        over.set()
        for number, handler in before:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP and number in seen else handler)

    return restore


# How long a program may take to end after its terminal was closed.
HANGUP_SECONDS = 10.0


def _leave_unless(ended: threading.Event) -> None:
    if not ended.wait(HANGUP_SECONDS):
        os._exit(130)


T = TypeVar("T")
# Seconds after which a loop that has not noticed Ctrl-C is taken to be blocked.
BLOCKED = 0.3


def run_on_loop(work: Callable[[], Coroutine[Any, Any, T]], run: Callable[..., Any] = asyncio.run) -> T:
    """Run `work` on an event loop with `run`, and raise :exc:`KeyboardInterrupt` when Ctrl-C cancelled it.

    Ctrl-C raises no exception while the loop is being made or closed: a loop that is half made prints an error when it is
    deleted, and so does a coroutine that was never awaited. It does raise one while something blocks the loop, for example a
    prompt of click.
    """
    pythons = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not pythons:
        return run(work())
    pressed, late = 0, False
    running: asyncio.Task[Any] | None = None

    def received(*_: object) -> None:
        nonlocal pressed, late
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        if running is not None and not running.done():
            again = threading.Timer(BLOCKED, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
            again.daemon = True
            again.start()
            running.get_loop().call_soon_threadsafe(lambda task: (again.cancel(), task.cancel()), running)
        late = running is not None and running.done()

    async def cancellable() -> T:
        nonlocal running
        running = asyncio.current_task()
        if pressed:
            raise asyncio.CancelledError
        return await work()

    signal.signal(signal.SIGINT, received)
    try:
        result = run(cancellable())
    except asyncio.CancelledError:
        if not pressed:
            raise MoryflowError(
                "the work was cancelled, but not by you: a plugin may have cancelled tasks that it did not start",
                next_step="see whether it happens with --safe-mode too, which loads no plugins of yours",
            ) from None
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, pythons)
    if late:  # Ctrl-C came when the work was done and the loop was being closed
        raise KeyboardInterrupt
    return result


log = logging.getLogger(__name__)


def set_breakpoints(*, debug: bool) -> None:
    """Let ``breakpoint()`` open Python's debugger at a terminal under ``--debug``, and be passed over elsewhere.

    Without a terminal nobody could answer the debugger; without the flag the deadline of the call would pass.
    """
    at_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if not (debug and at_terminal) and sys.breakpointhook is sys.__breakpointhook__:
        sys.breakpointhook = lambda *_, **__: log.warning("breakpoint() is passed over: it needs a terminal and --debug")
    if debug:
        lift_deadlines()

"""What interrupts a running loop: signals, which stop a turn, a wait or a command, and ``breakpoint()``.

While the debugger has the terminal, the event loop and its clock stand still: nothing else is drawn, nobody else reads keys
and no deadline passes. After the first breakpoint no new deadline is set in this process.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, TypeVar

from moryflow_sdk import MoryflowError

from moryflow.hooks.threads import lift_deadlines

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals by which the user or the system ends a program."""


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


HANGUP_SECONDS = 10.0
"""How long a program may take to end after its terminal was closed."""


def _leave_unless(ended: threading.Event) -> None:
    if not ended.wait(HANGUP_SECONDS):
        os._exit(130)


T = TypeVar("T")
BLOCKED = 0.3
"""Seconds after which a loop that has not noticed Ctrl-C is taken to be blocked."""


def run_on_loop(work: Callable[[], Coroutine[Any, Any, T]], run: Callable[..., Any] = asyncio.run) -> T:
    """Run `work` on an event loop with `run`, and raise :exc:`KeyboardInterrupt` when Ctrl-C cancelled it.

    Ctrl-C raises no exception while the loop is being made or closed: a loop that is half made prints an error when it is
    deleted, and so does a coroutine that was never awaited. It does raise one while something blocks the loop, for example a
    prompt of click.
    """
    pythons = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not pythons:
        return run(_debuggable(work))
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
        return await _debuggable(work)

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
Aside = Callable[[], AbstractContextManager[None]]
ASIDES: list[Aside] = []
"""Context managers that are entered while the debugger has the terminal; each erases something and then draws it again."""
_one_at_a_time = threading.RLock()
BUSY = 5.0
"""Seconds to wait for the loop to stand still. A loop that takes longer is blocked, so it draws nothing either."""


async def _debuggable(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    stop_at_breakpoints(asyncio.get_running_loop())
    return await work()


def stop_at_breakpoints(loop: asyncio.AbstractEventLoop) -> None:
    """Let ``breakpoint()`` stop the clock of `loop`, unless other code has set its own ``sys.breakpointhook``."""
    hook = sys.breakpointhook
    if hook is sys.__breakpointhook__ or (isinstance(hook, _Breakpoint) and hook.loop is not loop):
        sys.breakpointhook = _Breakpoint(loop)


class _Breakpoint:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lost = 0.0
        """Seconds for which the clock of the loop has stood still."""

    def __call__(self, *args: object, **options: object) -> Any:
        frame = inspect.currentframe()
        named = os.environ.get("PYTHONBREAKPOINT")
        if named:
            lift_deadlines() if named != "0" else None
            return sys.__breakpointhook__(*args, **options)
        if not (sys.__stdin__ and sys.__stdin__.isatty() and os.isatty(1)):
            log.warning("breakpoint() is passed over: there is no terminal to debug at")
            return None
        lift_deadlines()
        return _debugger(self._pause).set_trace(frame and frame.f_back)

    @contextmanager
    def _pause(self) -> Iterator[None]:
        """Halt the loop, and set the terminal to the modes that a program expects from a shell."""
        with _one_at_a_time:
            if asyncio._get_running_loop() is self.loop or not self.loop.is_running():
                with self._halted(signal.default_int_handler):
                    yield
                return
            held, released = threading.Event(), threading.Event()

            def hold() -> None:
                with self._halted(signal.SIG_IGN):
                    held.set()
                    released.wait()

            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(hold)
                held.wait(BUSY)
            try:
                yield
            finally:
                released.set()

    @contextmanager
    def _halted(self, interrupted: Any) -> Iterator[None]:
        """On the loop's own thread: stop its clock, erase what it draws, keep Ctrl-C from the turn, and edit lines."""
        import termios

        began, before, modes = time.monotonic(), termios.tcgetattr(0), termios.tcgetattr(0)
        is_main = threading.current_thread() is threading.main_thread()
        handler = signal.signal(signal.SIGINT, interrupted) if is_main else None
        modes[0] |= termios.ICRNL
        modes[1] |= termios.OPOST
        modes[3] |= termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG
        try:
            with ExitStack() as stack:
                for aside in ASIDES:
                    stack.enter_context(aside())
                termios.tcflush(0, termios.TCIFLUSH)  # these keys were not typed for the debugger
                termios.tcsetattr(0, termios.TCSANOW, modes)
                yield
                termios.tcsetattr(0, termios.TCSANOW, before)
        finally:
            if is_main:
                signal.signal(signal.SIGINT, handler)
            self._lost += time.monotonic() - began
            self.loop.time = lambda: time.monotonic() - self._lost


def _debugger(pause: Callable[[], AbstractContextManager[None]]) -> Any:
    import pdb  # here, because the import takes longer than a start may

    class Debugger(pdb.Pdb):
        """Python's own debugger, which has the terminal while it asks. Answers go to another descriptor than 1."""

        def interaction(self, frame: FrameType | None, traceback: TracebackType | None) -> None:
            streams = sys.stdin, sys.stdout
            with pause(), open(1, "w", encoding="utf-8", errors="replace", closefd=False) as stdout:
                sys.stdin, sys.stdout = sys.__stdin__, stdout
                self.stdout = stdout
                try:
                    super().interaction(frame, traceback)
                finally:
                    sys.stdin, sys.stdout = streams

    return Debugger(nosigint=True)

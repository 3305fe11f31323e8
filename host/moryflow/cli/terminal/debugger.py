"""``breakpoint()`` in a tool or a hook: the terminal belongs to the person, and deadlines wait.

While the debugger asks, the event loop stands still and its clock with it: nothing is drawn, no key is read by anyone else
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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from moryflow.hooks.threads import lift_deadlines

log = logging.getLogger(__name__)
Aside = Callable[[], AbstractContextManager[None]]
Handler = Callable[[int, FrameType | None], Any] | int | None
ASIDES: list[Aside] = []
"""Entered whenever the debugger asks: each takes something off the screen, and puts it back."""
_one_at_a_time = threading.RLock()
BUSY = 5.0
"""Seconds in which the loop should have come to stand still; a loop that does not is blocked, and draws nothing either."""


def install() -> None:
    """Let ``breakpoint()`` work in code that the running loop calls or waits for, unless something else has taken it."""
    hook = _Breakpoint(asyncio.get_running_loop())
    if sys.breakpointhook is sys.__breakpointhook__ or isinstance(sys.breakpointhook, _Breakpoint):
        sys.breakpointhook = hook


class _Breakpoint:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lost = 0.0
        """Seconds for which the clock of the loop has stood still."""

    def __call__(self, *args: object, **options: object) -> Any:
        frame = inspect.currentframe()
        named = os.environ.get("PYTHONBREAKPOINT")
        if named != "0":
            lift_deadlines()
        if named:
            return sys.__breakpointhook__(*args, **options)
        if not (sys.__stdin__ and sys.__stdin__.isatty() and os.isatty(1)):
            log.warning("breakpoint() is passed over: there is no terminal to debug at")
            return None
        return _debugger(self.pause).set_trace(frame and frame.f_back)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let the loop stand still, and the terminal be as a shell leaves it."""
        with _one_at_a_time, ExitStack() as stack:
            if asyncio._get_running_loop() is self._loop:
                stack.enter_context(self._still(signal.default_int_handler))
            else:
                stack.enter_context(self._held())
            yield

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Let the loop wait for this thread."""
        held, released = threading.Event(), threading.Event()

        def hold() -> None:
            if not released.is_set():
                with self._still(signal.SIG_IGN):
                    held.set()
                    released.wait()

        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(hold)
            held.wait(BUSY)
        try:
            yield
        finally:
            released.set()

    @contextmanager
    def _still(self, interrupted: Handler) -> Iterator[None]:
        """On the loop's own thread: stop its clock, put aside what it draws, and take Ctrl-C away from the turn."""
        began = time.monotonic()
        try:
            with ExitStack() as stack:
                stack.enter_context(_interrupted_by(interrupted))
                for aside in ASIDES:
                    stack.enter_context(aside())
                stack.enter_context(_line_mode())
                yield
        finally:
            self._lost += time.monotonic() - began
            self._loop.time = lambda: time.monotonic() - self._lost


def _debugger(pause: Callable[[], AbstractContextManager[None]]) -> Any:
    import pdb  # takes longer to import than a start may

    class Debugger(pdb.Pdb):
        """Python's own debugger, which has the terminal while it asks."""

        def interaction(self, frame: FrameType | None, traceback: TracebackType | None) -> None:
            with pause(), _streams() as stdout:
                self.stdout = stdout
                super().interaction(frame, traceback)

    return Debugger(nosigint=True)


@contextmanager
def _interrupted_by(handler: Handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _line_mode() -> Iterator[None]:
    """Let the terminal echo and edit lines, as a program expects that reads them."""
    try:
        import termios
    except ImportError:  # no such terminals here
        yield
        return
    before, modes = termios.tcgetattr(0), termios.tcgetattr(0)
    termios.tcflush(0, termios.TCIFLUSH)  # typed for somebody else
    modes[0] |= termios.ICRNL
    modes[1] |= termios.OPOST
    modes[3] |= termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG
    termios.tcsetattr(0, termios.TCSANOW, modes)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)


@contextmanager
def _streams() -> Iterator[Any]:
    """Put the terminal in place of the standard streams; descriptor 1 is standard error, for answers have another."""
    before = sys.stdin, sys.stdout
    with open(1, "w", encoding="utf-8", errors="replace", closefd=False) as stdout:
        sys.stdin, sys.stdout = sys.__stdin__, stdout
        try:
            yield stdout
        finally:
            sys.stdin, sys.stdout = before

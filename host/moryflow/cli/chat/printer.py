"""The terminal while the input of a conversation is shown: output meanwhile appears above the input."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from prompt_toolkit.application import run_in_terminal

from moryflow.cli.terminal import streams
from moryflow.cli.terminal.interrupts import ASIDES

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.layout.screen import Screen

BUNDLE = 0.02
"""Seconds for which texts are collected before they are printed."""
IN_FLIGHT = 0.004
"""The most seconds that drawn text takes to reach the terminal; a resize within this time came before the text."""
SETTLED = 0.08
"""Seconds without a change after which a terminal's size counts as its new one."""
JUST_NOW = 1.0
"""Seconds after a stop by Ctrl-Z within which SIGCONT counts as the signal that ended the stop."""


class Printer:
    """Replaces standard output and standard error while the input is shown, and prints text above the input.

    Texts that come close together are printed at once, so that the input is not drawn anew for each.
    """

    def __init__(self, session: PromptSession[str]) -> None:
        self._app = session.app
        self._app.terminal_size_polling_interval = None
        self._size = self._app.output.get_size()
        self._loop = asyncio.get_running_loop()
        self._streams = streams.stdout(), streams.stderr()
        self.encoding, self.errors = self._streams[1].encoding, self._streams[1].errors
        self._waiting: list[str] = []
        self._lock = threading.Lock()
        self._printing: asyncio.Future[None] | None = None
        self._resizing: asyncio.TimerHandle | None = None
        self._drawn_at = self._resized_at = 0.0
        """When the input was drawn, and when the terminal was resized since then."""
        self._modes: list[Any] | None = None
        """The terminal's modes, as prompt_toolkit has set them; the next attribute says whether Ctrl-C is a signal."""
        self._signals = False
        self._resumed_at = 0.0
        """When the last stop by Ctrl-Z ended: prompt_toolkit erased the input before it, and draws it again."""

    def install(self) -> None:
        """Replace both streams; a standard output that is not a terminal stays."""
        stream: Any = self
        streams.use(stream if self._streams[0].isatty() else self._streams[0], stream)
        streams.restore()
        ASIDES.append(self._aside)
        self._app.before_render += self._fit
        self._app.after_render += self._note_drawn

    async def remove(self) -> None:
        """Print the text that waits, and put both streams back."""
        streams.use(*self._streams)
        streams.restore()
        ASIDES.remove(self._aside)
        self._app.before_render -= self._fit
        self._app.after_render -= self._note_drawn
        with suppress(OSError):  # the terminal is gone; what was typed must not be lost with it
            self._print()
        if self._printing is not None:
            await asyncio.wait((self._printing,))

    def write(self, text: str, /) -> int:
        """Print `text` soon; from any thread.

        :raises TypeError: it is bytes, which libraries write to find out whether this is a binary stream.
        """
        if not isinstance(text, str):
            raise TypeError(f"write() takes text, not {type(text).__name__}")
        with self._lock:
            self._waiting.append(text)
            first = len(self._waiting) == 1
        if first:
            self._loop.call_soon_threadsafe(self._loop.call_later, BUNDLE, self._print)
        return len(text)

    def isatty(self) -> bool:
        """Return true: the input is shown only at a terminal."""
        return True

    def fileno(self) -> int:
        return self._streams[1].fileno()

    def flush(self) -> None:
        """Do nothing: what was written is printed soon."""

    # ------------------------------------------------------------ the terminal

    def begin(self) -> None:
        """Set the terminal's modes, and handle resizes and stops from here on; the input has just been drawn."""
        with suppress(ImportError, OSError, ValueError):
            import termios

            self._modes = termios.tcgetattr(sys.stdin.fileno())
            self.set_modes(signals=self._signals)
        self._loop.add_signal_handler(signal.SIGWINCH, self._resize)
        self._loop.add_signal_handler(signal.SIGCONT, self._resume)

    def set_modes(self, *, signals: bool) -> None:
        """Set the terminal's modes, which a shell may have changed while the program was stopped.

        :param signals: whether Ctrl-C is a signal.
        """
        self._signals = signals
        if self._modes is None or not self._app.is_running or self._is_lent():
            return  # an editor has the terminal, or nobody
        with suppress(OSError, ValueError):
            import termios

            modes = self._modes
            modes[3] = modes[3] | termios.ISIG if signals else modes[3] & ~termios.ISIG
            for name in (termios.VQUIT, termios.VSUSP):
                modes[6][name] = b"\0"
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, modes)

    def suspend(self) -> None:
        """Stop the process until the shell continues it. Without a shell nothing stops, and no SIGCONT comes."""

        def stop() -> None:
            os.kill(0, signal.SIGTSTP)
            self._resumed_at = time.monotonic()

        run_in_terminal(stop)

    def _resume(self) -> None:
        """Draw the input anew, below what was printed while the program was stopped."""
        drawn, self._resumed_at = time.monotonic() - self._resumed_at < JUST_NOW, 0.0
        if self._app.is_running and not self._is_lent():
            self.set_modes(signals=self._signals)
            if not drawn:
                self._app.renderer.reset()
                self._redraw()

    def _resize(self) -> None:
        """Redraw when the size has settled: while an edge is being dragged, the width has changed again by then."""
        self._resized_at = self._resized_at or time.monotonic()
        if self._resizing is not None:
            self._resizing.cancel()
        self._resizing = self._loop.call_later(SETTLED, self._fit)

    def _fit(self, _: object = None) -> None:
        """Erase and redraw what was drawn for another size; a terminal that wraps lines anew has moved it."""
        before, self._size = self._size, self._app.output.get_size()
        screen = self._app.renderer.last_rendered_screen
        if screen is None or self._size == before or not self._app.is_running or self._is_lent():
            return
        settled = (self._resized_at or time.monotonic()) - self._drawn_at > IN_FLIGHT  # else drawn in the new size already
        if settled and _rewraps_lines():
            self._app.output.cursor_up(self._rows_added(screen))
        self._app.renderer.erase()
        self._redraw()

    def _note_drawn(self, _: object) -> None:
        self._drawn_at, self._resized_at = time.monotonic(), 0.0

    def _rows_added(self, screen: Screen) -> int:
        """Return how many more rows the lines above the cursor take in the terminal's new width."""
        cursor, columns = screen.get_cursor_position(self._app.layout.current_window), self._size.columns
        rows = (screen.data_buffer[row].items() for row in range(cursor.y))
        widths = [max((place + cell.width for place, cell in row if cell.char != " "), default=1) for row in rows]
        return sum((width - 1) // columns for width in widths) + cursor.x // columns

    def _redraw(self) -> None:
        self._app.renderer.request_absolute_cursor_position()
        self._app.invalidate()

    def _is_lent(self) -> bool:
        """Return whether another program, an editor or a pager, has the terminal."""
        return self._app._running_in_terminal  # pyright: ignore[reportPrivateUsage]

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Erase the input while a debugger has the terminal; before, wait for the terminal's answer to us, if one is due.

        The debugger would read that answer, the cursor's position, as input.
        """
        drawn = self._app.is_running
        if drawn and self._app.renderer.waiting_for_cpr:
            select.select([sys.stdin], [], [], 0.5)
        if drawn:
            self._app.renderer.erase()
        self._write_out(self._take_text())
        yield
        if drawn:
            self._redraw()

    def _take_text(self) -> str:
        with self._lock:
            text, self._waiting = "".join(self._waiting), []
        return text

    def _print(self) -> None:
        text = self._take_text()
        if not text:
            return
        if not self._app.is_running:
            self._write_out(text)
        elif self._is_lent():
            self._printing = asyncio.ensure_future(run_in_terminal(lambda: self._write_out(text)))
        else:
            # Not by run_in_terminal(): that lets the terminal edit lines meanwhile, and an Enter would become a Ctrl-J.
            self._fit()
            self._app.renderer.erase()
            self._write_out(text)
            self._redraw()

    def _write_out(self, text: str) -> None:
        self._streams[1].write(text)
        self._streams[1].flush()


def _rewraps_lines() -> bool:
    """Return whether this terminal wraps lines anew when its width changes; if not, erasing more rows would eat text."""
    xterm_or_screen = "XTERM_VERSION" in os.environ or "STY" in os.environ
    return not xterm_or_screen and not os.environ.get("TERM", "").startswith(("linux", "rxvt", "st-"))

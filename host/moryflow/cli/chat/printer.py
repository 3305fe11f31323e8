"""The terminal while the input of a conversation is shown: what is printed meanwhile appears above it."""

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
"""Seconds that what is drawn takes to the terminal, at most; a resize in between found the old text."""
SETTLED = 0.08
"""Seconds without a change after which a terminal's size counts as its new one."""
JUST_NOW = 1.0
"""Seconds after Ctrl-Z returned within which SIGCONT is what ended its stop."""


class Printer:
    """Stands for standard output and standard error while the input is shown: what is written appears above it.

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
        self._drawn = self._resized = 0.0
        """When the input was drawn, and when the terminal was resized since then."""
        self._modes: list[Any] | None = None
        """The terminal's modes, as prompt_toolkit has set them; the next is whether Ctrl-C is a signal."""
        self._signals = False
        self._went_on = 0.0
        """When Ctrl-Z last returned: prompt_toolkit, which had taken the input off the screen, has drawn it again."""

    def install(self) -> None:
        """Take the place of both streams; one that leads to a file stays."""
        stream: Any = self
        streams.use(stream if self._streams[0].isatty() else self._streams[0], stream)
        streams.restore()
        ASIDES.append(self._aside)
        self._app.before_render += self._fit
        self._app.after_render += self._note_drawn

    async def remove(self) -> None:
        """Print what waits, and give both streams back."""
        streams.use(*self._streams)
        streams.restore()
        ASIDES.remove(self._aside)
        self._app.before_render -= self._fit
        self._app.after_render -= self._note_drawn
        with suppress(OSError):  # the terminal is gone, which must not take what was typed along
            self._print()
        if self._printing is not None:
            await asyncio.wait((self._printing,))

    def write(self, text: str, /) -> int:
        """Print `text` soon; from any thread.

        :raises TypeError: it is bytes, by which libraries find out what kind of stream this is.
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
        """Say yes: only a terminal has an input."""
        return True

    def fileno(self) -> int:
        return self._streams[1].fileno()

    def flush(self) -> None:
        """Do nothing: what was written is printed soon."""

    # ------------------------------------------------------------ the terminal

    def begin(self) -> None:
        """Look after the terminal from here on; the input was just drawn for the first time."""
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
        if self._modes is None or not self._app.is_running or self._lent():
            return  # an editor has the terminal, or nobody
        with suppress(OSError, ValueError):
            import termios

            modes = self._modes
            modes[3] = modes[3] | termios.ISIG if signals else modes[3] & ~termios.ISIG
            for name in (termios.VQUIT, termios.VSUSP):
                modes[6][name] = b"\0"
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, modes)

    def suspend(self) -> None:
        """Stop the process until the shell lets it go on; without a shell nothing stops, and no signal says so."""

        def stop() -> None:
            os.kill(0, signal.SIGTSTP)
            self._went_on = time.monotonic()

        run_in_terminal(stop)

    def _resume(self) -> None:
        """Draw the input anew, below what was printed while the program was stopped."""
        drawn, self._went_on = time.monotonic() - self._went_on < JUST_NOW, 0.0
        if self._app.is_running and not self._lent():
            self.set_modes(signals=self._signals)
            if not drawn:
                self._app.renderer.reset()
                self._redraw()

    def _resize(self) -> None:
        """Draw anew when the size has settled: what is drawn while an edge is being dragged meets yet another width."""
        self._resized = self._resized or time.monotonic()
        if self._resizing is not None:
            self._resizing.cancel()
        self._resizing = self._loop.call_later(SETTLED, self._fit)

    def _fit(self, _: object = None) -> None:
        """Take away what was drawn for a terminal of another size: one that wraps lines anew has moved it."""
        before, self._size = self._size, self._app.output.get_size()
        screen = self._app.renderer.last_rendered_screen
        if screen is None or self._size == before or not self._app.is_running or self._lent():
            return
        settled = (self._resized or time.monotonic()) - self._drawn > IN_FLIGHT  # else it was drawn in the new size already
        if settled and _wraps_anew():
            self._app.output.cursor_up(self._rows_added(screen))
        self._app.renderer.erase()
        self._redraw()

    def _note_drawn(self, _: object) -> None:
        self._drawn, self._resized = time.monotonic(), 0.0

    def _rows_added(self, screen: Screen) -> int:
        """Return how many rows more the lines above the cursor take in the width that the terminal has now."""
        cursor, columns = screen.get_cursor_position(self._app.layout.current_window), self._size.columns
        rows = (screen.data_buffer[row].items() for row in range(cursor.y))
        widths = [max((place + cell.width for place, cell in row if cell.char != " "), default=1) for row in rows]
        return sum((width - 1) // columns for width in widths) + cursor.x // columns

    def _redraw(self) -> None:
        self._app.renderer.request_absolute_cursor_position()
        self._app.invalidate()

    def _lent(self) -> bool:
        """Whether another program, an editor or a pager, has the terminal."""
        return self._app._running_in_terminal  # pyright: ignore[reportPrivateUsage]

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Take the input off the screen while a debugger has the terminal, which must read no answer that is ours."""
        drawn = self._app.is_running
        if drawn and self._app.renderer.waiting_for_cpr:
            select.select([sys.stdin], [], [], 0.5)
        if drawn:
            self._app.renderer.erase()
        self._put(self._taken())
        yield
        if drawn:
            self._redraw()

    def _taken(self) -> str:
        with self._lock:
            text, self._waiting = "".join(self._waiting), []
        return text

    def _print(self) -> None:
        text = self._taken()
        if not text:
            return
        if not self._app.is_running:
            self._put(text)
        elif self._lent():
            self._printing = asyncio.ensure_future(run_in_terminal(lambda: self._put(text)))
        else:
            # Not by run_in_terminal(): that lets the terminal edit lines meanwhile, and an Enter would become a Ctrl-J.
            self._fit()
            self._app.renderer.erase()
            self._put(text)
            self._redraw()

    def _put(self, text: str) -> None:
        self._streams[1].write(text)
        self._streams[1].flush()


def _wraps_anew() -> bool:
    """Whether this terminal wraps lines anew when its width changes; on one that does not, erasing more would eat text."""
    xterm_or_screen = "XTERM_VERSION" in os.environ or "STY" in os.environ
    return not xterm_or_screen and not os.environ.get("TERM", "").startswith(("linux", "rxvt", "st-"))

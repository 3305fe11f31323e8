"""The input of a conversation, at the bottom of a terminal.

The input stays while a turn runs: lines that are sent then wait in a queue. Above it stand the end of the streaming answer,
what the turn waits for, and the queued lines; everything finished is printed above and scrolls away as plain text.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk.support.texts import visible
from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.application.current import get_app
from prompt_toolkit.completion import DynamicCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Always, Condition, has_completions
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.output import create_output
from prompt_toolkit.styles import Style

from moryflow.cli.terminal import brief, cut, streams, terminal_width, use_colour
from moryflow.cli.terminal.stdin import ALONE, LETTERS, PASTED

from . import LineSource, PickItem
from .clipboard import Clipboard, image_of
from .completion import ItemCompleter, LineCompleter, completed
from .console import COLOURS, Keys, LongHistory, Printer

if TYPE_CHECKING:
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyPressEvent

    from moryflow.cli.terminal.render import TerminalView

# Seconds after its start in which the input still gets what was typed before it was there.
AHEAD = 0.25
# Seconds within which a second Ctrl-C at an empty input ends the conversation.
TWICE = 2.0
# Seconds without a key after which the user who was typing when a question came is taken to have read the question.
PAUSE = 0.5
# How many lines of a sent text stay on the screen.
ECHOED = 10
# Seconds between two frames of the status line.
FRAME = 0.12
# A paste of more lines is folded.
PASTE_LINES = 9
# How a paste that is folded stands in the input.
FOLDED = re.compile(r"\[\d+ lines pasted(?: \d+)?\]")


class TerminalInput(LineSource):
    """The input of a conversation, by prompt_toolkit.

    :param history: the file with the input history; without one, the history is kept in memory.
    :param files: lists the files of the vault, by path relative to the vault.
    :param commands: returns each command that may follow a slash, with what it does.
    :param tab: what Tab does at an empty input; `status` returns the line below it, and `keys` prints the keys.
    """

    interactive = True

    def __init__(
        self,
        history: Path | None,
        files: Callable[[], Iterable[str]],
        commands: Callable[[], Mapping[str, str]],
        tab: Callable[[], Coroutine[Any, Any, None]],
        status: Callable[[], str],
        keys: Callable[[], None],
    ) -> None:
        self._commands, self._tab, self._show_keys = commands, tab, keys
        self._view: TerminalView | None = None  # of the running turn; the next attribute is that of the last turn
        self._last_view: TerminalView | None = None
        self._stop: Callable[[], None] = lambda: None
        self._prompt_text: Callable[[], str] = str
        self._keys = ""
        """The answers on offer, or a question; the next attributes are the answer, and the list to pick it from, if any."""
        self._answer: asyncio.Future[str] | None = None
        self._items: ItemCompleter | None = None
        self._letter_timer: asyncio.TimerHandle | None = None  # fires if no key has followed a letter that answers
        self._enter_timer: asyncio.TimerHandle | None = None  # fires if no key has followed an Enter that answers
        self._started_at = 0.0
        self._last_key = 0.0
        self._cleared_at = -TWICE
        self._ignores_keys = False
        """The user was typing when the question came: their keys answer nothing until they pause."""
        self._draft = Document()
        self._clipboard = Clipboard()
        self._queue: deque[str | None] = deque()
        self._ends = False  # Ctrl-D was pressed while a turn ran
        self._pastes: dict[str, str] = {}
        """The pastes that are folded, by what stands for them in the input; `_typed` are sent lines as they stood there."""
        self._typed: dict[str, str] = {}
        self._arrived = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._printer: Printer | None = None
        out = streams.stdout()  # elsewhere, the answers may go; this holds until the program ends
        create_app_session(output=create_output(out if out.isatty() else streams.stderr())).__enter__()
        past = LongHistory(history, self._unfolded) if history else InMemoryHistory()
        lines = LineCompleter(files, commands, [*past.load_history_strings()])
        self._session: PromptSession[str] = PromptSession(
            message=self._above,
            multiline=True,
            prompt_continuation="  ",
            history=past,
            completer=DynamicCompleter(lambda: self._items or lines),
            complete_while_typing=Condition(self._completes),
            reserve_space_for_menu=8,
            key_bindings=self._bindings(),
            style=Style.from_dict(COLOURS),
            bottom_toolbar=lambda: f" {cut(status(), (terminal_width() or 80) - 2)}",
            erase_when_done=True,
            enable_suspend=True,
            input=Keys(sys.stdin),
        )
        self._buffer = self._session.default_buffer
        self._session.app.ttimeoutlen = 0.05  # short: Esc stops a turn, and a terminal sends keys that begin with it at once
        for window in self._session.app.layout.find_all_windows():
            window.dont_extend_height = Always()  # else the window takes all rows down to the edge of the terminal
        self._session.app.key_processor.before_key_press += lambda _: self._note_key()
        self._buffer.on_text_changed += lambda _: self._note_text()

    async def line(self, prompt: Callable[[], str]) -> str | None:
        """Return the next line, ``None`` at the end; lines that were typed while a turn ran come first."""
        self._prompt_text = prompt
        while not self._queue and not self._ends:
            self._read()
            self._arrived.clear()
            await self._arrived.wait()
        await self.close()
        line = self._queue.popleft() if self._queue else None
        if line:
            bold, end = ("\x1b[1m", "\x1b[0m") if use_colour(sys.stderr) else ("", "")
            lines = visible(self._typed.pop(line, line), keep="\n\t").split("\n")
            rest = [f"… +{len(lines) - ECHOED:,} lines"] if len(lines) > ECHOED + 1 else lines[ECHOED:]
            echo = "\n  ".join([*lines[:ECHOED], *rest])
            sys.stderr.write(f"\n{bold}{prompt()}{echo}{end}\n\n")
        return line

    async def answer(self, keys: str) -> str:
        """Return what is typed at a question; a draft comes back after it. A queued line is no answer, Ctrl-C an empty one."""
        return await self._ask(keys)

    async def pick(self, title: str, items: Sequence[PickItem]) -> str:
        offered = ItemCompleter(items)
        return offered.picked((await self._ask(f"{title}: type to search, Enter picks, Esc leaves\n> ", offered)).strip())

    def propose(self, text: str) -> None:
        if self._session.app.is_running:
            self._buffer.insert_text(text)
        else:
            self._draft = self._draft.insert_before(text)

    async def _ask(self, keys: str, items: ItemCompleter | None = None) -> str:
        draft = self._buffer.document if self._session.app.is_running else self._draft
        self._draft = Document()
        self._read()
        now = time.monotonic()
        self._ignores_keys = "[" in keys and (bool(draft.text) or now - self._last_key < PAUSE)
        self._last_key = now if self._ignores_keys else self._last_key
        self._buffer.reset()
        self._keys, self._items = keys, items
        self._answer = asyncio.get_running_loop().create_future()
        self._invalidate()
        self._offer()
        try:
            return await self._answer
        finally:
            self._answer = self._items = None
            self._buffer.reset(draft)
            self._invalidate()

    @contextmanager
    def during(self, view: TerminalView, stop: Callable[[], None]) -> Iterator[None]:
        """Read lines while a turn runs, and show the live lines of `view` above them; `stop` ends the turn."""
        self._view = self._last_view = view
        self._stop = stop
        self._set_signals()
        ticking = asyncio.get_running_loop().create_task(self._tick())
        self._read()
        try:
            yield
        finally:
            ticking.cancel()
            self._view = None
            self._set_signals()
            self._invalidate()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(FRAME)
            self._read()
            self._invalidate()

    # ------------------------------------------------------------ reading

    def _read(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read_line())

    async def _read_line(self) -> None:
        if self._printer is None:
            self._printer = Printer()
        try:
            text = await self._session.prompt_async(  # its exception handler waits for Enter, though the terminal is gone
                default=self._draft, handle_sigint=False, pre_run=self._note_start, set_exception_handler=False
            )
            self._draft = Document()
        except _Pause:
            return
        except (EOFError, OSError):
            self._draft = self._buffer.document  # empty, unless the terminal is gone
            self._put(None)
            return
        whole = self._unfolded(text)
        self._typed[whole] = text
        self._put(whole)

    def _unfolded(self, text: str) -> str:
        return FOLDED.sub(lambda found: self._pastes.get(found[0], found[0]), text)

    def _put(self, line: str | None) -> None:
        self._queue.append(line)
        self._arrived.set()

    def unsent(self) -> str:
        """Return what was typed but not sent, and add it to the history, so that Up brings it back."""
        lines = [*(line for line in self._queue if line), self._draft.text]
        text = "\n".join(line for line in lines if line.strip())
        if text:
            self._session.history.append_string(text)
        return text

    async def close(self) -> None:
        """Stop reading, so that other code can read; a draft comes back with the next prompt."""
        if self._reading is not None and not self._reading.done():
            if self._session.app.is_running and not self._session.app.is_done:
                self._draft = self._buffer.document
                self._session.app.exit(exception=_Pause())
            await asyncio.wait((self._reading,))
        if self._printer is not None:
            self._printer.close()
            self._printer = None

    def _note_start(self) -> None:
        self._started_at = time.monotonic()
        loop = asyncio.get_running_loop()
        loop.call_soon(self._set_signals)  # the terminal is about to be set up
        loop.call_soon(self._offer)

    def _set_signals(self) -> None:
        """Make Ctrl-C a signal while a turn runs: it must also stop a turn that keeps the loop from reading keys."""
        if not self._session.app.is_running:
            return
        import termios

        with suppress(OSError, ValueError, termios.error):
            modes = termios.tcgetattr(sys.stdin.fileno())
            modes[3] = modes[3] | termios.ISIG if self._view is not None else modes[3] & ~termios.ISIG
            modes[6][termios.VQUIT] = modes[6][termios.VSUSP] = b"\0"
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, modes)

    def _invalidate(self) -> None:
        if self._session.app.is_running:
            self._session.app.invalidate()

    # ------------------------------------------------------------ what is shown

    def _above(self) -> StyleAndTextTuples:
        columns = terminal_width() or 80
        live = self._view.live_lines(max(3, self._session.app.output.get_size().rows // 3)) if self._view else []
        waiting = [f"  queued: {visible(brief(line))}" for line in self._queue if line]
        waiting[-1:] = [f"{line} · Up edits it" for line in waiting[-1:]]
        shown = [("class:dim", f"{cut(line, columns)}\n") for line in (*live, *waiting)]
        gap = [] if shown or self._answer is not None else [("", "\n")]
        return [*gap, *shown, ("", self._prompt_text() if self._answer is None else self._keys)]

    def _completes(self) -> bool:
        return self._answer is None and bool(completed(self._buffer.document.text_before_cursor))

    def _offer(self) -> None:
        if self._items is not None and self._session.app.is_running:
            self._buffer.start_completion()

    # ------------------------------------------------------------ what keys do

    def _bindings(self) -> KeyBindings:
        asked = Condition(lambda: self._answer is not None)
        works = Condition(lambda: self._view is not None)
        # The terminal made an Enter a Ctrl-J if it was typed before the input was there.
        enters = asked | Condition(lambda: time.monotonic() - self._started_at < AHEAD)
        alone = Condition(lambda: not get_app().key_processor.input_queue)  # else the Esc begins an Alt-Enter
        keys = KeyBindings()

        @keys.add("c-x", "c-e", filter=~asked)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.open_in_editor()  # Enter sends what the editor wrote

        keys.add("enter")(lambda _: self._enter())
        keys.add("c-j", filter=enters)(lambda _: self._enter())
        keys.add("c-j", filter=~enters)(lambda event: event.current_buffer.insert_text("\n"))
        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        keys.add("c-v")(lambda _: self._paste_image())
        keys.add("<bracketed-paste>")(lambda event: self._paste(event.data))
        keys.add("c-c")(lambda _: self._clear())
        keys.add("tab", filter=~asked & Condition(self._is_command))(lambda _: self._complete_command())
        keys.add("tab", filter=Condition(self._is_empty) & ~asked & ~works)(lambda _: self._tab())  # redrawn at its end
        keys.add("s-tab", filter=Condition(self._is_empty) & ~asked & ~works)(lambda event: self._send("/mode"))
        keys.add("?", filter=Condition(self._is_empty) & ~asked)(lambda _: self._show_keys())
        keys.add("c-d", filter=Condition(self._is_empty) & ~asked & works)(lambda _: self._stop_and_end())
        keys.add("c-d", filter=asked & Condition(self._is_empty))(lambda _: self._settle(""))
        keys.add("escape", filter=works | has_completions | asked, eager=alone)(lambda _: self._leave())
        keys.add("up", filter=works & ~asked & Condition(self._has_queued))(lambda _: self._take_back())
        keys.add("c-o")(lambda _: self._show_last())
        return keys

    def _send(self, line: str) -> None:
        self._buffer.text = line
        self._buffer.validate_and_handle()

    def _stop_and_end(self) -> None:
        self._ends = True
        self._arrived.set()
        self._stop()

    def _is_empty(self) -> bool:
        return not self._buffer.text

    def _has_queued(self) -> bool:
        return bool(self._queue) and self._buffer.document.on_first_line and self._buffer.complete_state is None

    def _is_command(self) -> bool:
        return self._buffer.text.startswith("/")

    def _complete_command(self) -> None:
        """Complete a command as far as it is unambiguous, at once: an Enter may follow; then offer the commands that fit."""
        typed = self._buffer.document.text_before_cursor
        common = os.path.commonprefix([f"/{name}" for name in self._commands() if f"/{name}".startswith(typed)])  # noqa: RUF071
        if len(common) > len(typed):
            self._buffer.insert_text(common[len(typed) :])
        elif self._buffer.complete_state:
            self._buffer.complete_next()
        else:
            self._buffer.start_completion()

    def _enter(self) -> None:
        """Send the line, or the answer. Of a command that is half typed, the first that fits is meant."""
        completing, self._last_key = self._buffer.complete_state, 0.0
        if self._answer is not None:  # the other lines of a paste must not follow at once: they belong to the answer
            self._enter_timer = asyncio.get_running_loop().call_later(PASTED, self._answer_line)
        elif self._view is not None and self._buffer.text.strip() == "/queue":  # at once: it is about this turn
            self._buffer.reset()
            self.take_all_back()
        elif completing and not completing.current_completion and self._is_command() and self._half_typed():
            self._buffer.apply_completion(completing.completions[0])
            self._buffer.validate_and_handle()
        elif self._buffer.text.strip():
            self._buffer.validate_and_handle()

    def _half_typed(self) -> bool:
        return self._buffer.text[1:] not in self._commands() and " " not in self._buffer.text and len(self._buffer.text) > 1

    def _answer_line(self) -> None:
        self._enter_timer = None
        self._settle(f"{self._buffer.text}\n")
        self._buffer.reset()

    def _clear(self) -> None:
        """Clear the input, as Ctrl-C does; at an empty input say how to leave, and leave at the second Ctrl-C."""
        empty, now = self._is_empty(), time.monotonic()
        self._buffer.reset()
        if self._answer is not None:
            self._settle("")
        elif self._view is not None:
            self._stop()
        elif empty and now - self._cleared_at < TWICE:
            self._session.app.exit(exception=EOFError())
        elif empty:
            self._cleared_at = now
            sys.stderr.write("(Ctrl-C again, Ctrl-D or /quit ends the conversation)\n")

    def _leave(self) -> None:
        """Do what Esc does: close the completions; at a question clear what is typed, then leave it; else stop the turn."""
        if self._buffer.complete_state and self._items is None:
            self._buffer.cancel_completion()
        elif self._answer is None:
            self._stop()
        elif self._is_empty() or self._items is not None:
            self._settle("")
        else:
            self._buffer.reset()

    def _take_back(self) -> None:
        line, typed = self._queue.pop() or "", self._buffer.text
        self._buffer.document = Document(f"{line}\n{typed}" if line and typed else line or typed, len(line))

    def take_all_back(self) -> None:
        """Move all queued lines back into the input: the turn after which they were to be sent was stopped."""
        while self._queue:
            self._take_back()

    def _paste(self, text: str) -> None:
        """Insert what was pasted. The path of an image, which a terminal pastes when one is dropped, becomes an attachment."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = (self._answer is None and image_of(text)) or text
        if self._answer is None and (lines := text.rstrip("\n").count("\n") + 1) > PASTE_LINES:
            same = sum(name.startswith(f"[{lines} lines pasted") for name in self._pastes)
            name = f"[{lines} lines pasted{f' {same + 1}' if same else ''}]"
            self._pastes[name] = text
            text = name
        self._buffer.insert_text(text)

    async def _paste_image(self) -> None:
        self._buffer.insert_text(await asyncio.to_thread(self._clipboard.image))

    async def _show_last(self) -> None:
        if self._last_view is not None:
            await self._last_view.show_last()

    def _note_text(self) -> None:
        """Search the open list for what is typed; answer with a letter that stands alone, unless a key follows at once."""
        text = self._buffer.text
        if self._items is not None and not self._items.has(text):
            self._offer()
        elif self._answer is not None and text.lower() in LETTERS.findall(self._keys):
            self._letter_timer = asyncio.get_running_loop().call_later(ALONE, self._press_letter)

    def _press_letter(self) -> None:
        self._letter_timer = None
        if self._answer is not None and not self._ignores_keys:
            self._last_key = 0.0
            self._settle(self._buffer.text.lower())
            self._buffer.reset()

    def _settle(self, text: str) -> None:
        """Answer the open question; an empty text means the end of the input."""
        if self._answer is not None and not self._answer.done() and not self._ignores_keys:
            self._answer.set_result(text)

    def _note_key(self) -> None:
        now = time.monotonic()
        if self._letter_timer is not None:
            self._letter_timer.cancel()
            self._letter_timer = None
        if self._enter_timer is not None:
            self._enter_timer.cancel()
            self._enter_timer = None
            self._buffer.insert_text("\n")
        if self._ignores_keys and now - self._last_key > PAUSE:
            self._ignores_keys = False
            self._buffer.reset()
        self._last_key = now


class _Pause(Exception):
    """Ends the input for a while; its draft is kept."""

"""Where the lines of a conversation come from: a terminal with editing and history, or a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

HISTORY = "chat-history"


class TerminalInput:
    """Line editing, history and completion of slash commands, by prompt_toolkit."""

    interactive = True

    def __init__(self, home: Path, names: Sequence[str], tab: Callable[[], Coroutine[Any, Any, None]]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.shortcuts import CompleteStyle

        file = _private_file(home / HISTORY)
        self._prompt: PromptSession[str] = PromptSession(
            history=FileHistory(str(file)) if file else InMemoryHistory(),
            completer=WordCompleter([f"/{name}" for name in names], sentence=True),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            key_bindings=_tab(tab),
        )

    async def line(self, prompt: Callable[[], str]) -> str | None:
        """Return the next line, an empty one after Ctrl-C, ``None`` at the end."""
        from prompt_toolkit.patch_stdout import patch_stdout

        try:
            with patch_stdout(raw=True):
                return await self._prompt.prompt_async(prompt)
        except KeyboardInterrupt:
            sys.stderr.write("(Ctrl-D or /quit ends the conversation)\n")
            return ""
        except EOFError:
            return None


def _tab(act: Callable[[], Coroutine[Any, Any, None]]) -> KeyBindings:
    """Let Tab at an empty prompt do `act`; with text before it, it completes."""
    from prompt_toolkit.application.current import get_app
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    @bindings.add("tab", filter=Condition(lambda: not get_app().current_buffer.text))
    async def _(event: KeyPressEvent) -> None:
        await act()
        event.app.invalidate()

    return bindings


def _private_file(path: Path) -> Path | None:
    """Make `path` with mode 0600; without it the history lives in memory."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError:
        return None
    return path


class PipedInput:
    """Lines of standard input, read by a daemon thread so that nothing waits for a pipe that never speaks."""

    interactive = False

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="moryflow-stdin", daemon=True).start()

    async def line(self, prompt: Callable[[], str]) -> str | None:
        """Return the next line, ``None`` at the end, however often that is asked for."""
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)
        return line

    def _read(self) -> None:
        for raw in sys.stdin.buffer:
            self._put(raw.decode("utf-8", "replace"))
        self._put(None)

    def _put(self, line: str | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

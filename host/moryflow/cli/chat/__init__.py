"""A conversation: its input, its slash commands, its turns.

This module has the values that they share, and the two simple inputs: a pipe, and a terminal that shows only plain text.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from moryflow.cli.terminal import cut, plain, terminal_width
from moryflow.cli.terminal.approval_prompt import read_answer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from moryflow.cli.terminal.render import TerminalView


# How a line names a file: behind an @, in quotes if the name has blanks.
MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')


def mentioned(text: str) -> list[str]:
    """Return the files that a line names, each once."""
    return list(dict.fromkeys(quoted or bare for quoted, bare in MENTION.findall(text)))


def mention(path: str) -> str:
    """Return how a line names the file `path`."""
    return f'@"{path}"' if " " in path else f"@{path}"


class AgentChoice(NamedTuple):
    """An agent that the user can talk with.

    :ivar text: what the agent is for.
    :ivar takes_turns: whether Tab at an empty prompt can switch to it.
    """

    text: str
    takes_turns: bool


class PluginLine(NamedTuple):
    """A plugin as a list shows it."""

    name: str
    version: str
    tier: str
    status: str
    error: str


class TurnPrompt(NamedTuple):
    """What a turn begins with. Without a text, the turn continues what the last one left open.

    :ivar typed: how many characters of the text the user typed; ``None`` means all of them.
    :ivar stays: the user sits at the terminal, so background sub-agents may go on when the turn has ended.
    """

    text: str | None
    files: Sequence[dict[str, str]] = ()
    images: Sequence[dict[str, str]] = ()
    typed: int | None = None
    on_ask: str = "deny"
    stays: bool = False


class PickItem(NamedTuple):
    """An item of a list that the user picks from: what picking it returns, and the line that is shown and searched."""

    key: str
    text: str


class LineSource:
    """Where the lines of a conversation come from. The methods that not every source has do nothing here.

    :ivar interactive: the user types the lines and sees the output.
    """

    interactive = False

    async def line(self, prompt: Callable[[], str]) -> str | None:
        """Return the next line, ``None`` at the end."""

    async def answer(self, keys: str) -> str:
        """Show `keys`, the answers on offer or a question, and return what is typed behind them."""
        return ""

    async def pick(self, title: str, items: Sequence[PickItem]) -> str:
        """Return the key of the item that the user picks, an empty text if they leave."""
        return ""

    def propose(self, text: str) -> None:
        """Put `text` where lines are typed."""

    def take_all_back(self) -> None:
        """Move all queued lines back to where lines are typed."""

    def unsent(self) -> str:
        """Return what was typed but not sent, and add it to the history."""
        return ""

    async def close(self) -> None:
        """Stop reading."""

    def during(self, view: TerminalView, stop: Callable[[], None]) -> AbstractContextManager[None]:
        """Read lines while a turn runs, and show the live lines of `view` above them; `stop` ends the turn."""
        return nullcontext()


# The most items of a list that are offered by number.
NUMBERED = 20


class PipedInput(LineSource):
    """Lines of standard input, read by a daemon thread so that nothing waits for a pipe that never sends any."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="moryflow-stdin", daemon=True).start()

    async def line(self, prompt: Callable[[], str]) -> str | None:
        """Return the next line; ``None`` at the end, at every call."""
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)
        return line

    async def answer(self, keys: str) -> str:
        """Return the next line as the answer to a question; empty at the end."""
        sys.stderr.write(keys)
        sys.stderr.flush()
        return await self.line(str) or ""

    def _read(self) -> None:
        for raw in sys.stdin.buffer:
            self._put(raw.decode("utf-8", "replace"))
        self._put(None)

    def _put(self, line: str | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)


class PlainInput(LineSource):
    """Lines of a terminal that cannot move its cursor (``TERM=dumb``), for a screen reader or an editor's shell.

    The terminal itself shows and edits what is typed, between two turns. An item of a list is picked by its number.
    """

    interactive = True

    async def line(self, prompt: Callable[[], str]) -> str | None:
        line = await read_answer(prompt())
        if not line:
            sys.stderr.write("\n")
        return line or None

    async def answer(self, keys: str) -> str:
        return await read_answer(keys)

    async def pick(self, title: str, items: Sequence[PickItem]) -> str:
        lines = [cut(f"{number:>3}  {item.text}", terminal_width() or 80) for number, item in enumerate(items[:NUMBERED], 1)]
        typed = await self.answer(plain("\n".join([title, *lines, "number, or Enter to leave > "])))
        number = int(typed) if typed.strip().isdecimal() else 0
        return items[number - 1].key if 0 < number <= len(items) else ""

    def propose(self, text: str) -> None:
        """Print `text`: at a plain terminal it cannot be put into the input to be changed."""
        sys.stderr.write(f"{plain(text)}\n")

"""A conversation: its input, its slash commands, its turns.

This module defines what a conversation needs from the host that runs its turns and from its input. It has the two simple
inputs: a pipe, and a terminal that shows only plain text.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, Unpack

from moryflow.approvals import Answers
from moryflow.cli.terminal import cut, plain, terminal_width
from moryflow.cli.terminal.approval_prompt import read_answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from moryflow_sdk import Event, SlashResult

    from moryflow.cli.options import Flags, RunFlags
    from moryflow.cli.terminal.render import TerminalView
    from moryflow.compaction.measure import Report
    from moryflow.runtime.documents import SessionTree
    from moryflow.runtime.session_commands import Label
    from moryflow.runtime.turn_result import TurnResult
    from moryflow.store import ApprovalRow, Node, RunRow, SessionRow

    from .picker import PickItem, Preview


MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
"""How a line names a file: behind an @, in quotes if the name has blanks."""


def mentioned(text: str) -> list[str]:
    """Return the files that a line names, each once."""
    return list(dict.fromkeys(quoted or bare for quoted, bare in MENTION.findall(text)))


def mention(path: str) -> str:
    """Return how a line names the file `path`."""
    return f'@"{path}"' if " " in path else f"@{path}"


class Choice(TypedDict, total=False):
    """What the user chooses for later sessions."""

    agent: str | None
    model: str | None


class Wishes(Choice, total=False):
    """What the user chooses for the turns of this conversation."""

    effort: str | None


class SessionChange(Choice, total=False):
    """What the user changes in the open session."""

    mode: str


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


class ChatHost(Answers, Protocol):
    """Runs the turns of a conversation and knows the sessions: a host in this process, or a server.

    A method that takes no session is about the open one. A coroutine raises a :class:`~moryflow_sdk.MoryflowError` if it cannot
    do what it is for.
    """

    @property
    def row(self) -> SessionRow:
        """The open session, as last known."""
        ...

    @property
    def agent(self) -> str: ...
    @property
    def mode(self) -> str: ...
    @property
    def busy(self) -> bool:
        """Whether a turn runs, or is still being stored."""
        ...

    @property
    def home(self) -> Path: ...
    @property
    def language(self) -> str: ...
    @property
    def chat(self) -> Mapping[str, object]:
        """The settings below ``chat``."""
        ...

    @property
    def place(self) -> str:
        """Where the turns run, as text for the user; empty if in this process."""
        ...

    @property
    def agents(self) -> Mapping[str, AgentChoice]: ...
    @property
    def commands(self) -> Mapping[str, str]:
        """The slash commands of plugins, with what they do."""
        ...

    async def start(self, tell: Callable[[list[str]], None]) -> None:
        """Begin to watch for reloads; `tell` gets the lines to show for each reload."""
        ...

    async def aclose(self) -> None:
        """Stop watching for reloads."""
        ...

    async def settled(self) -> None:
        """Wait until files that were saved before this call are loaded."""
        ...

    def waiting(self) -> Sequence[str]:
        """Return the code that appeared and waits for the user's consent; each item is returned once."""
        ...

    async def give(self, item: str) -> None:
        """Consent to an item that :meth:`waiting` returned."""
        ...

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with the events of the open session and of its sub-agents."""
        ...

    async def turn(self, prompt: TurnPrompt, chosen: RunFlags) -> TurnResult: ...
    def cancel(self) -> None:
        """Stop the running turn and its sub-agents."""
        ...

    async def stop_children(self) -> int:
        """Stop the sub-agents in the background, and return their number."""
        ...

    # ------------------------------------------------------------ to look at

    async def model(self) -> str: ...
    async def session(self, name: str) -> SessionRow:
        """Return a session with a title to show."""
        ...

    async def sessions(self, limit: int) -> Sequence[SessionRow]:
        """Return the sessions of this folder with a title to show, last used first."""
        ...

    async def path(self, session: str) -> Sequence[Node]: ...
    async def tree(self) -> SessionTree: ...
    async def runs(self) -> Sequence[RunRow]: ...
    async def labels(self) -> Mapping[str, str]: ...
    async def context(self) -> Report: ...
    def export(self) -> AsyncIterator[str]: ...
    async def whole_output(self, output: str) -> str: ...
    async def approvals(self) -> Sequence[ApprovalRow]: ...
    async def approval(self, approval: str) -> ApprovalRow: ...
    async def models(self) -> Sequence[Mapping[str, Any]]:
        """Return the models worth naming, as :func:`~moryflow.runtime.documents.models_json` does."""
        ...

    async def tools(self) -> Sequence[str]: ...
    async def plugins(self) -> Sequence[PluginLine]: ...
    async def shortens_itself(self) -> bool:
        """Return whether a conversation that is too long is compacted automatically."""
        ...

    # ------------------------------------------------------------ to change

    async def new(self, **chosen: Unpack[Choice]) -> None: ...
    async def open(self, name: str, model: str | None) -> None: ...
    async def change(self, **changes: Unpack[SessionChange]) -> None: ...
    async def switch(self, node: str | None) -> str | None:
        """Continue from the named node, or from the beginning; return the node's id."""
        ...

    async def fork(self, node: str | None, model: str | None) -> str:
        """Copy the path to a node into a new session and open it; return a remark for the user, which may be empty."""
        ...

    async def label(self, text: str, *, remove: bool) -> Label: ...
    async def compact(self, focus: str) -> Mapping[str, object]: ...
    async def command(self, name: str, text: str) -> SlashResult: ...
    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> ApprovalRow: ...


class ConversationPort(Protocol):
    """What slash commands need from the conversation: one person, one session at a time."""

    @property
    def host(self) -> ChatHost: ...

    @property
    def flags(self) -> Flags: ...

    @property
    def waiting(self) -> list[str]: ...

    @property
    def chosen(self) -> RunFlags:
        """The flags that the next session is opened with."""
        ...

    def choose(self, **changes: Unpack[Wishes]) -> None: ...
    async def pick(self, title: str, items: Sequence[PickItem], preview: Preview | None = None, chosen: str = "") -> str | None:
        """Return the key of the item that the user picks, an empty text if they leave, ``None`` if nobody can pick."""
        ...

    def propose(self, text: str) -> None:
        """Put `text` where the user types, to be changed and sent."""
        ...

    def typing(self) -> AbstractContextManager[None]:
        """While a model is called, let the user type, see what is waited for, and stop it."""
        ...

    async def recall(self) -> None:
        """Show the last exchanges of the session that is resumed."""
        ...


class LineSource(Protocol):
    """Where the lines of a conversation come from. The methods that not every source has do nothing here.

    :ivar interactive: the user types the lines and sees the output.
    """

    interactive = False

    async def line(self, prompt: Callable[[], str]) -> str | None:
        """Return the next line, ``None`` at the end."""
        ...

    async def answer(self, keys: str) -> str:
        """Show `keys`, the answers on offer or a question, and return what is typed behind them."""
        ...

    async def pick(self, title: str, items: Sequence[PickItem], preview: Preview | None = None, chosen: str = "") -> str:
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


NUMBERED = 20
"""The most items of a list that are offered by number."""


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

    async def pick(self, title: str, items: Sequence[PickItem], preview: Preview | None = None, chosen: str = "") -> str:
        """Let the user pick one of `items` by its number; return its key, an empty text if they leave."""
        lines = [cut(f"{number:>3}  {item.text}", terminal_width() or 80) for number, item in enumerate(items[:NUMBERED], 1)]
        typed = await self.answer(plain("\n".join([title, *lines, "number, or Enter to leave > "])))
        number = int(typed) if typed.strip().isdecimal() else 0
        return items[number - 1].key if 0 < number <= len(items) else ""

    def propose(self, text: str) -> None:
        """Print `text`: at a plain terminal it cannot be put into the input to be changed."""
        sys.stderr.write(f"{plain(text)}\n")

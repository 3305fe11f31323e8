"""A conversation: its input, its slash commands, its turns.

This module says what a conversation may ask of whoever runs its turns and of its input, and has the two simple inputs: a
pipe, and a terminal that shows only plain text.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Awaitable, Callable
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

    from .picker import PickItem


MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
"""How a line names a file: behind an @, in quotes where the name has blanks."""


def mentioned(text: str) -> list[str]:
    """Return the files that a line names, each once."""
    return list(dict.fromkeys(quoted or bare for quoted, bare in MENTION.findall(text)))


def mention(path: str) -> str:
    """Return how a line names the file `path`."""
    return f'@"{path}"' if " " in path else f"@{path}"


class Choice(TypedDict, total=False):
    """What a person chooses for the sessions to come."""

    agent: str | None
    model: str | None


class SessionChange(Choice, total=False):
    """What a person changes of the session that is open."""

    mode: str


class AgentChoice(NamedTuple):
    """An agent that a person can talk with.

    :ivar text: what it is for. `takes_turns` says that Tab leads to it.
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
    """What a turn begins with. Without a text it goes on with what the last one left open.

    :ivar typed: how many characters of the text the person typed; ``None`` means all of them.
    :ivar stays: a person sits at the terminal: sub-agents in the background may go on when the turn has ended.
    """

    text: str | None
    files: Sequence[dict[str, str]] = ()
    images: Sequence[dict[str, str]] = ()
    typed: int | None = None
    on_ask: str = "deny"
    stays: bool = False


class ChatHost(Answers, Protocol):
    """Runs the turns of a conversation and knows the sessions: a host in this process, or a server.

    What names no session is about the one that is open. All that waits raises a :class:`~moryflow_sdk.MoryflowError` where it
    cannot be done.
    """

    @property
    def row(self) -> SessionRow:
        """The session that is open, as it is known now."""
        ...

    @property
    def agent(self) -> str: ...
    @property
    def mode(self) -> str: ...
    @property
    def busy(self) -> bool:
        """Whether a turn runs, or is written down."""
        ...

    @property
    def home(self) -> Path: ...
    @property
    def language(self) -> str: ...
    @property
    def chat(self) -> Mapping[str, object]:
        """The settings ``chat``."""
        ...

    @property
    def place(self) -> str:
        """Where the turns run, for a person; nothing where that is here."""
        ...

    @property
    def agents(self) -> Mapping[str, AgentChoice]: ...
    @property
    def commands(self) -> Mapping[str, str]:
        """The slash commands of plugins, with what they do."""
        ...

    async def start(self, tell: Callable[[list[str]], None]) -> None:
        """Begin to watch for what is loaded anew; `tell` is given what is to be said of it."""
        ...

    async def aclose(self) -> None:
        """Watch no more."""
        ...

    async def settled(self) -> None:
        """Wait until what was saved before holds."""
        ...

    def waiting(self) -> Sequence[str]:
        """Return, once, what appeared and waits for a person's yes."""
        ...

    async def give(self, item: str) -> None:
        """Say yes to what waits."""
        ...

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with what happens in the session that is open and in its sub-agents."""
        ...

    async def turn(self, prompt: TurnPrompt, chosen: RunFlags) -> TurnResult: ...
    def cancel(self) -> None:
        """Stop the turn that runs, and its sub-agents."""
        ...

    async def stop_children(self) -> int:
        """Stop the sub-agents in the background; return how many they were."""
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
        """Whether a conversation that is too long is compacted without being asked."""
        ...

    # ------------------------------------------------------------ to change

    async def new(self, **chosen: Unpack[Choice]) -> None: ...
    async def open(self, name: str, model: str | None) -> None: ...
    async def change(self, **changes: Unpack[SessionChange]) -> None: ...
    async def switch(self, node: str | None) -> str | None:
        """Go on from the node that is named, or from the beginning; return its id."""
        ...

    async def fork(self, node: str | None, model: str | None) -> str:
        """Copy the path to a node into a new session and open it; return what is to be said of it."""
        ...

    async def label(self, text: str, *, remove: bool) -> Label: ...
    async def compact(self, focus: str) -> Mapping[str, object]: ...
    async def command(self, name: str, text: str) -> SlashResult: ...
    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> ApprovalRow: ...


class ConversationPort(Protocol):
    """One person, one session at a time."""

    @property
    def host(self) -> ChatHost: ...

    @property
    def flags(self) -> Flags: ...

    @property
    def chosen(self) -> RunFlags:
        """The flags that the next session is opened with."""
        ...

    def choose(self, **changes: Unpack[Choice]) -> None: ...
    async def pick(
        self, title: str, items: Sequence[PickItem], preview: Callable[[str], Awaitable[str]] | None = None, chosen: str = ""
    ) -> str | None:
        """Return the key of the item that a person picks, an empty text when they leave, ``None`` where nobody can."""
        ...

    def propose(self, text: str) -> None:
        """Put `text` where the person types, to be changed and sent."""
        ...

    def typing(self) -> AbstractContextManager[None]:
        """Let the person type while a model is asked, see what is awaited, and stop it."""
        ...

    async def recall(self) -> None:
        """Show the last exchanges of the session that goes on."""
        ...


class LineSource(Protocol):
    """Where lines come from; what it need not be able to do does nothing here.

    :ivar interactive: a person sits there, and sees what is said.
    """

    interactive = False

    async def line(self, prompt: Callable[[], str]) -> str | None:
        """Return the next line, ``None`` at the end."""
        ...

    async def answer(self, keys: str) -> str:
        """Show `keys`, the answers on offer or a question, and return what is typed behind them."""
        ...

    async def pick(
        self, title: str, items: Sequence[PickItem], preview: Callable[[str], Awaitable[str]] | None = None, chosen: str = ""
    ) -> str:
        """Return the key of the item that a person picks, an empty text when they leave."""
        return ""

    def propose(self, text: str) -> None:
        """Put `text` where lines are typed."""

    def take_all_back(self) -> None:
        """Put all lines that wait where lines are typed."""

    def unsent(self) -> str:
        """Return what was typed and not sent, and remember it."""
        return ""

    async def close(self) -> None:
        """Read no more."""

    def during(self, view: TerminalView, stop: Callable[[], None]) -> AbstractContextManager[None]:
        """Take lines while a turn runs, and show what `view` says above them; `stop` ends the turn."""
        return nullcontext()


NUMBERED = 20
"""Items of a list that are offered by number."""


class PipedInput(LineSource):
    """Lines of standard input, read by a daemon thread so that nothing waits for a pipe that never speaks."""

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

    async def answer(self, keys: str) -> str:
        """Return the next line as the answer to what was asked; nothing at the end."""
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
    """Lines of a terminal that cannot move its cursor (``TERM=dumb``), as a screen reader or an editor's shell wants them.

    The terminal itself shows and edits what is typed, between two turns; a list is picked from by number.
    """

    interactive = True

    async def line(self, prompt: Callable[[], str]) -> str | None:
        line = await read_answer(prompt())
        if not line:
            sys.stderr.write("\n")
        return line or None

    async def answer(self, keys: str) -> str:
        return await read_answer(keys)

    async def pick(
        self, title: str, items: Sequence[PickItem], preview: Callable[[str], Awaitable[str]] | None = None, chosen: str = ""
    ) -> str:
        """Let a person pick one of `items` by its number; return its key, an empty text when they leave."""
        lines = [cut(f"{number:>3}  {item.text}", terminal_width() or 80) for number, item in enumerate(items[:NUMBERED], 1)]
        typed = await self.answer(plain("\n".join([title, *lines, "number, or Enter to leave > "])))
        number = int(typed) if typed.strip().isdecimal() else 0
        return items[number - 1].key if 0 < number <= len(items) else ""

    def propose(self, text: str) -> None:
        """Show `text`: a plain terminal edits only what is typed at it."""
        sys.stderr.write(f"{plain(text)}\n")

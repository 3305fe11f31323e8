"""The state of a conversation that its slash commands read and change: one user, one session at a time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from moryflow.cli.options import Flags, RunFlags
from moryflow.cli.terminal import is_dumb, say
from moryflow.cli.terminal.render import TerminalView
from moryflow.cli.terminal.stdin import discard_typed

from . import LineSource, PickItem

if TYPE_CHECKING:
    from moryflow.store import Node

    from .attached import AttachedChatHost
    from .local import LocalChatHost

    ChatHost: TypeAlias = LocalChatHost | AttachedChatHost


YES = ("y", "yes")


class Talk:
    """A conversation as its slash commands see it.

    :ivar host: runs the turns, and knows the sessions.
    :ivar chosen: the flags that the next session is opened with.
    :ivar waiting: the ids of the questions of this conversation that wait for an answer.
    """

    def __init__(self, host: ChatHost, flags: Flags, chosen: RunFlags) -> None:
        self.host, self.flags, self.chosen = host, flags, chosen
        self._source = LineSource()
        self._work: asyncio.Task[Any] | None = None
        keys = sys.stdin.isatty() and not is_dumb()
        self._view = TerminalView(quiet=flags.quiet, verbose=flags.verbose, language=host.language, chat=keys)
        self._view.session, self._view.whole = host.row.id, host.whole_output

    @property
    def waiting(self) -> list[str]:
        return []

    def question_called(self, name: str) -> str:
        """Return the id of the open question that the user calls `name`, which may be its number."""
        return name

    @property
    def interactive(self) -> bool:
        return self._source.interactive

    async def answer(self, keys: str) -> str:
        """Show the answers on offer, and return the letter that is pressed, or the line that is typed."""
        return await self._source.answer(keys)

    def show_change(self, text: str) -> None:
        """Print what a command would do, and below an empty line the diff of it."""
        self._view.show_change(text)

    async def confirmed(self, text: str) -> bool:
        """Ask whether to go on; one key answers.

        :raises click.Abort: the user pressed Ctrl-C.
        """
        discard_typed()
        say(text)
        typed = await self._source.answer("  [y]es [n]o > ")
        if not typed and self._source.interactive:
            raise click.Abort
        return typed.strip().lower() in YES

    def choose(self, **changes: str | None) -> None:
        """Note agent, model or effort for the turns and the sessions that follow."""
        self.chosen = self.chosen._replace(**changes)

    async def pick(self, title: str, items: Sequence[PickItem]) -> str | None:
        """Return the key of the item that the user picks, an empty text if they leave, ``None`` if nobody can pick."""
        return await self._source.pick(title, items) if self._source.interactive else None

    def propose(self, text: str) -> None:
        """Put `text` where the user types, to be changed and sent."""
        self._source.propose(text)

    @contextmanager
    def typing(self) -> Iterator[None]:
        """Let the user type while a model is called; what is waited for stands above the input then."""
        self._view.begin()
        self._view.typing = self._source.interactive
        try:
            with self._source.during(self._view, self._stop):
                yield
        finally:
            self._view.typing = False

    def _stop(self) -> None:
        if self.host.busy:
            self.host.cancel()
        elif self._work is not None and not self._view.idle:
            self._work.cancel()

    async def recall(self) -> None:
        """Show the last exchanges of the session that is resumed."""
        if self._source.interactive and not self.flags.quiet:
            self._view.recall(exchanges(await self.host.path(self.host.row.id)))


def exchanges(path: Sequence[Node]) -> list[tuple[str, str]]:
    """Return each prompt of a path with the last text that answered it."""
    found: list[tuple[str, str]] = []
    for node in path:
        text = str(node.payload.get("text") or "").strip()
        if node.kind == "user":
            found.append((text, ""))
        elif node.kind == "assistant" and text and found:
            found[-1] = (found[-1][0], text)
    return found

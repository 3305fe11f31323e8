"""What a slash command may ask of the conversation it is typed in, and what the input shows of a turn that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from moryflow.cli.options import Flags, RunFlags
    from moryflow.runtime.host import Host
    from moryflow.runtime.session import Session

    from .picker import PickItem


class Choice(TypedDict, total=False):
    """What a person chooses for the sessions to come."""

    agent: str | None
    model: str | None


class ConversationPort(Protocol):
    """One person, one host, one session at a time."""

    @property
    def host(self) -> Host: ...

    @property
    def session(self) -> Session:
        """The session that is open now; :meth:`exchange` opens another."""
        ...

    @property
    def flags(self) -> Flags: ...

    @property
    def chosen(self) -> RunFlags:
        """The flags that the next session is opened with."""
        ...

    def choose(self, **changes: Unpack[Choice]) -> None:
        """Change :attr:`chosen`."""
        ...

    async def exchange(self, session: Session) -> None:
        """Go on with another session."""
        ...

    def say(self, text: str) -> None:
        """Tell the person something that is not part of the answer."""
        ...

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


class TurnView(Protocol):
    """What runs while a person may type, as :class:`moryflow.cli.terminal.render.TerminalView` shows it."""

    def live_lines(self, rows: int) -> list[str]:
        """Return what stands above the input now: the end of the answer, and what is awaited."""
        ...

    async def show_last(self) -> None:
        """Show the newest output that was cut, whole."""
        ...

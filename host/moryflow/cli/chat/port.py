"""What a slash command may ask of the conversation it is typed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from moryflow.cli.commands.run import RunFlags
    from moryflow.cli.options import Flags
    from moryflow.runtime.host import Host
    from moryflow.runtime.session import Session


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

    def choose(self, **changes: Any) -> None:
        """Change :attr:`chosen`."""
        ...

    async def exchange(self, session: Session) -> None:
        """Go on with another session."""
        ...

    def say(self, text: str) -> None:
        """Tell the person something that is not part of the answer."""
        ...

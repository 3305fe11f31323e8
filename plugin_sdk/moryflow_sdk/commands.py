"""Commands that a plugin adds to the command line and to ``chat``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from moryflow_sdk.calls import ToolCall
    from moryflow_sdk.tools import Tool

    from .context import Turn


class CommandContext(Protocol):
    """What the host offers to a plugin's command on the command line; click's ``ctx.obj``.

    Every command accepts the common flags; they need not be declared.

    :ivar as_json: ``--json`` or ``--output json`` was given.
    :ivar yes: ``-y`` was given, which answers the command's own questions with yes.
    :ivar vault: the folder to work in, absolute; `home` is Moryflow's own folder.
    :ivar mode: ``agent`` or ``full_access``, of new sessions.
    """

    vault: Path
    home: Path
    mode: str
    as_json: bool
    yes: bool

    @property
    def tools(self) -> Mapping[str, Tool]:
        """All tools of the plugins that are loaded now."""
        ...

    def run(self, work: Callable[[Turn], Awaitable[Any]], *, session: str | None = None, vault: Path | None = None) -> Any:
        """Run `work` on the host's loop with a read-only turn of the plugin's own, and return its result.

        :param session: the id of a stored session, or its beginning: `work` reads its ``session_state`` and history.
            Without one the turn belongs to no session. To change one, use :meth:`change`.
        :raises ConfigError: there is no such session.
        """
        ...

    def change(self, work: Callable[[Turn], Awaitable[Any]], *, session: str | None = None) -> Any:
        """Run `work` with a turn that holds `session`, by default the vault's last one, and apply its changes when it returns.

        :raises ConfigError: there is no such session.
        :raises SessionBusy: another process is working in it.
        """
        ...

    def configure(self, setting: Sequence[str], value: Any) -> bool:
        """Set a value in the user's configuration, keeping its comments; ``None`` removes it. Return whether it changed.

        :param setting: the path of names to the setting: ``("mcp", "servers", "docs")``.
        :raises ConfigError: the file does not parse or cannot be written, or a tool started this program.
        """
        ...

    def turn(
        self, *, session: str | None = None, vault: Path | None = None, mode: str | None = None
    ) -> AbstractAsyncContextManager[Turn]:
        """Open a turn of purpose ``direct``, for use inside :meth:`run`."""
        ...

    def prepare(self, tool: str, args: Mapping[str, Any], turn: Turn) -> ToolCall:
        """Return the call as gates would receive it: validated, resolved, hashed. Nothing runs.

        :raises ToolError: the tool does not exist or the arguments are not valid.
        """
        ...

    def print(self, document: Any, *, text: str | None = None) -> None:
        """Print `document` as JSON under ``--json``, else `text` (or a plain rendering)."""
        ...


@dataclass(frozen=True)
class SlashResult:
    """What a slash command did: `text` is shown, `prompt` is sent to the agent.

    :param choices: what the user may choose: a label with its key, ``[u]ndo``, and the text with which the command runs again.
    :param foreign: `prompt` contains text that somebody else wrote. It attaches no files, starts no sub-agent and agrees to
        nothing.
    """

    text: str = ""
    prompt: str = ""
    foreign: bool = False
    choices: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Command:
    """A command.

    :param name: the noun or verb as typed, for example ``audit`` or ``memory-bank``.
    :param cli: returns a click command or group; called only when the command is used.
    :param slash: for ``chat``: receives the text after ``/name``, and returns what to show or send.
    :param aliases: other spellings, for example the plural.
    :param source: the file that the command was read from, if a plugin finds commands in files.
    :param revision: a text that changes whenever the content of such a file does.
    """

    name: str
    help: str
    cli: Callable[[], Any] | None = None
    slash: Callable[[str, Turn], Awaitable[SlashResult]] | None = None
    aliases: Sequence[str] = ()
    source: str = ""
    revision: str = ""

"""Commands in the background: they outlive the call that started them, and end with the session, or with the host.

Everything else is as in the foreground: the same judgement, sandbox and check of what the command made. Nobody is asked when it
ends: files of it that run later stay set aside.
"""

from __future__ import annotations

import asyncio
import fcntl
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moryflow_sdk import Ask, Denied, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.processes import end_marked

from .run import SHOWN_TAIL, Output, Pipe, run

MAX_COMMANDS = 8  # at once in a session
NOTED = 2000  # characters of the end of the output that the note holds


@dataclass(eq=False)
class BackgroundCommand:
    """A command that runs, or has ended.

    :ivar folder: the host's folder of records.
    :ivar unread: the end of what it printed since the model last looked.
    """

    id: str
    command: str
    folder: Path
    task: asyncio.Task[ToolResult] = field(init=False)
    unread: str = ""
    printed: asyncio.Event = field(default_factory=asyncio.Event)

    def show(self, piece: str) -> None:
        self.unread = (self.unread + piece)[-SHOWN_TAIL:]
        self.printed.set()

    @property
    def state(self) -> str:
        if not self.task.done():
            return "runs"
        if self.task.cancelled():
            return "was stopped"
        return f"failed: {error}" if (error := self.task.exception()) else f"has ended, {self.task.result().title}"


class Tail(Output):
    """An output of which only the end is kept, however long the command runs."""

    async def read(self, pipe: Pipe) -> None:
        while chunk := await pipe.read():
            self._size += len(chunk)
            piece = self._decoder.decode(chunk)
            self._show(piece)
            self.text = (self.text + piece)[-SHOWN_TAIL:]


class Detached:
    """The context of a call that has returned: nobody is asked for it."""

    def __init__(self, ctx: ToolContext) -> None:
        self._ctx = ctx

    async def ask(self, question: Ask) -> None:
        raise Denied(f"{question.reason}; nobody is asked for a command in the background")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


# The commands by session, in the order they began; those that ended stay until they are looked at.
_commands: dict[str, dict[str, BackgroundCommand]] = {}


def commands_of(session: str) -> list[BackgroundCommand]:
    """Return the commands of a session, in the order they began."""
    return list(_commands.get(session, {}).values())


def begin(ctx: ToolContext, opened: Collection[str]) -> ToolResult:
    """Start the judged command and return at once.

    :raises ToolError: too many run already.
    """
    running = [command.id for command in commands_of(ctx.session) if not command.task.done()]
    if len(running) >= MAX_COMMANDS:
        text = f"{len(running)} commands run in the background already: {', '.join(running)}"
        raise ToolError(text, code="busy", next_step="stop one with bash_output")
    command = BackgroundCommand(f"bg_{secrets.token_hex(2)}", ctx.call.args["command"], ctx.data_dir / "background")
    command.task = asyncio.create_task(_run(ctx, command, opened))
    _commands.setdefault(ctx.session, {})[command.id] = command
    text = f"{command.id} runs in the background. bash_output shows what it prints and stops it; a note says when it has ended."
    return ToolResult(output=text, title=f"{command.id} in the background", metadata={"background": command.id})


async def _run(ctx: ToolContext, command: BackgroundCommand, opened: Collection[str]) -> ToolResult:
    detached: Any = Detached(ctx)
    try:
        with _recorded(command.folder, ctx.mark):
            result = await run(detached, None, opened, Tail(ctx.data_dir, command.show))
    except ToolError as error:
        await ctx.info.note(f"The command {command.id} was not run: {error}")
        raise
    finally:
        command.printed.set()
    await ctx.info.note(f"The command {command.id} has ended, {result.title}: {command.command}\n\n{result.output[-NOTED:]}")
    return result


async def look(session: str, name: str, *, wait: float, stop: bool) -> str:
    """Return what a command printed since the last look; wait for output or its end first, or stop it.

    :raises ToolError: there is no such command.
    """
    command = _commands.get(session, {}).get(name)
    if command is None:
        known = ", ".join(each.id for each in commands_of(session)) or "none"
        raise ToolError(f"there is no command {name[:40]!r} in the background; there are: {known}", code="not_found")
    if stop:
        await end([command])
    elif not command.unread and not command.task.done():
        command.printed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await command.printed.wait()
    printed, command.unread = command.unread, ""
    if command.task.done():
        _commands.get(session, {}).pop(name, None)
    return f"{printed.rstrip()}\n[{name} {command.state}]".strip()


async def end(commands: Collection[BackgroundCommand]) -> None:
    """End commands with everything that they started."""
    for command in commands:
        command.task.cancel()
    if commands:
        await asyncio.wait([command.task for command in commands])


async def end_of_sessions(*sessions: str) -> None:
    """End the commands of sessions."""
    for session in sessions:
        await end(_commands.pop(session, {}).values())


async def end_of_host(folder: Path) -> None:
    """End the commands whose records are in `folder`, the host's own."""
    for session, commands in tuple(_commands.items()):
        if any(command.folder == folder for command in commands.values()):
            await end_of_sessions(session)


@contextmanager
def _recorded(folder: Path, mark: str) -> Iterator[None]:
    """Keep a locked file while the command runs; if this process is killed, the file stays and the lock does not."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / mark).open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            (folder / mark).unlink(missing_ok=True)


def end_leftovers(folder: Path) -> None:
    """End the commands of hosts that were killed."""
    for path in _left(folder):
        end_marked((path.name,))
        path.unlink(missing_ok=True)


def _left(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        with suppress(OSError), path.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its host is alive
            yield path

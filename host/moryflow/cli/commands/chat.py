"""``moryflow chat``: a conversation at the terminal, or line by line when input is piped in."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.findings import notes_on, say_about, say_about_agent
from moryflow.cli.open_host import warn, with_host
from moryflow.cli.options import Flags, RunFlags, TurnCommand, talk_options
from moryflow.cli.terminal import is_dumb

if TYPE_CHECKING:
    from pathlib import Path

    from moryflow.cli.chat import LineSource
    from moryflow.cli.chat.conversation import Conversation
    from moryflow.runtime.host import Host


@click.command("chat", cls=TurnCommand)
@talk_options
def command(flags: Flags, again: bool, resume: str | None, attach: str | None, **given: Any) -> int:
    """Talk with an agent. /help lists the commands; Ctrl-C stops the turn, Ctrl-D ends the conversation."""
    if flags.as_json:
        raise click.UsageError("a conversation is not printed as JSON; for programs: moryflow run --output stream-json")
    chosen = RunFlags(prompt=None, files=(), resume="" if again and resume is None else resume, output="text", **given)
    if attach is not None:
        from moryflow.cli.attached import check_attach
        from moryflow.cli.terminal.interrupts import run_on_loop

        check_attach(flags, attach, worktree=chosen.worktree)
        return run_on_loop(lambda: _attached_chat(attach, flags, chosen))

    from .session_worktree import finish

    with _prompt_at_once() as ready:

        async def talk(host: Host) -> tuple[int, str]:
            ready()
            warn(host, flags)
            return await _chat(host, flags, chosen)

        code, vault = with_host(flags, talk, quiet=True)
    finish(vault, flags, ask=True)
    return code


@contextmanager
def _prompt_at_once() -> Iterator[Callable[[], None]]:
    """Show a prompt while plugins load: the terminal shows what is typed, and the input takes it over.

    The function that the block gets takes the prompt away, as the end of the block does after a failure.
    """
    shown = sys.stdin.isatty() and sys.stderr.isatty() and not is_dumb()

    def ready() -> None:
        nonlocal shown
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        shown = False

    if shown:
        sys.stderr.write("> ")
        sys.stderr.flush()
    try:
        yield ready
    finally:
        ready()


async def _chat(host: Host, flags: Flags, chosen: RunFlags) -> tuple[int, str]:
    from moryflow.cli.chat.conversation import Conversation
    from moryflow.cli.chat.local import LocalChatHost
    from moryflow.cli.terminal.interrupts import set_breakpoints

    from .run import open_session

    set_breakpoints(debug=False)  # the input reads the keys
    session = await open_session(host, flags, chosen)
    say_about_agent(host, session.agent.source, quiet=flags.quiet)
    say_about(host, notes_on(host, "commands"), quiet=flags.quiet)
    host.choose_model(session)
    await session.keep()
    talk = Conversation(LocalChatHost(host, session, quiet=flags.quiet), flags, chosen)
    return await talk.run(_source(talk)), talk.host.row.vault


async def _attached_chat(url: str, flags: Flags, chosen: RunFlags) -> int:
    from moryflow.cli.chat.attached import AttachedChatHost
    from moryflow.cli.chat.conversation import Conversation

    from .run import confirm_mode

    confirm_mode(chosen.mode, flags)
    talk = Conversation(await AttachedChatHost.opened(url, flags, chosen), flags, chosen)
    return await talk.run(_source(talk))


def _source(talk: Conversation) -> LineSource:
    from moryflow.cli.chat import PipedInput, PlainInput

    if not sys.stdin.isatty():
        return PipedInput()
    if is_dumb():
        return PlainInput()
    from moryflow.cli.chat.input import TerminalInput

    return TerminalInput(
        _history(talk.host.home, talk.host.row.vault), talk.files, talk.commands, talk.next_agent, talk.status, talk.show_keys
    )


def _history(home: Path, vault: str) -> Path | None:
    from hashlib import sha256

    path = home / "history" / sha256(os.fsencode(vault)).hexdigest()[:16]
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError:
        return None
    return path

"""What a person types at the terminal: lines that answer a question, and a command's own questions."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import PurePosixPath

import click

from moryflow.cli.options import Flags

PASTED = 0.05
"""Seconds in which lines that come behind the first one are taken for the same paste; nobody types that fast."""


def discard_typed() -> None:
    """Drop what was typed and not read yet: it was typed before the question that comes now was on the screen.

    Piped input stays: its author knows what will be asked.
    """
    if not sys.stdin.isatty():
        return
    if "prompt_toolkit.input.typeahead" in sys.modules:  # a conversation: keys that came behind the last line
        from prompt_toolkit.application.current import get_app_session
        from prompt_toolkit.input.typeahead import clear_typeahead

        clear_typeahead(get_app_session().input)
    try:
        import termios
    except ImportError:  # no such terminals here
        return
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


async def read_line() -> str:
    """Read a line without a thread, so that Ctrl-C leaves nobody waiting for input.

    Lines that are pasted at once are one text: its first line alone may mean something else, and the others would be taken for
    what is asked next. A line that Ctrl-D leaves half typed is nothing.

    A terminal is read without Python's own buffer, which could hold what was typed before. A file, or the null device, cannot
    be waited for; its next line, or its end, is there already.
    """
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()
    descriptor, is_terminal = sys.stdin.fileno(), sys.stdin.isatty()
    typed = bytearray()

    def ready() -> None:
        if line.done():
            return
        if not is_terminal:
            line.set_result(sys.stdin.readline())
            return
        try:
            piece = os.read(descriptor, 4096)
        except OSError:  # the terminal is gone
            piece = b""
        typed.extend(piece)
        if not piece:
            line.set_result("")
        elif piece.endswith(b"\n"):
            loop.call_later(PASTED, ended)

    def ended() -> None:
        if not line.done():
            discard_typed()  # the last line of a paste may have no end
            line.set_result(typed.decode("utf-8", "replace"))

    try:
        loop.add_reader(descriptor, ready)
    except PermissionError:
        return sys.stdin.readline()
    try:
        return await line
    finally:
        loop.remove_reader(descriptor)


def confirm(text: str, flags: Flags, *, default: bool = False, command: str = "") -> None:
    """Ask, unless ``-y`` was given.

    :param command: what says yes where nobody can be asked.
    :raises ConfigError: nobody can be asked.
    :raises click.Abort: the answer was no.
    """
    if flags.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        from moryflow_sdk import ConfigError

        raise ConfigError(f"{text} Nobody can be asked here.", next_step=command or "add -y to confirm")
    discard_typed()
    click.confirm(folded_question(text), err=True, default=default, abort=True)


def folded_question(text: str) -> str:
    """Return a question in lines that the terminal need not wrap, with room for ``[y/N]:``, which click puts behind it."""
    from .text import folded

    return folded(text + _OFFERED).removesuffix(_OFFERED)


_OFFERED = "\u00a0[y/N]:"


def question(item: str) -> str:
    """Return what a person is asked about code that waits."""
    if PurePosixPath(item).is_absolute():
        return f"{item} changed while a command ran. Did you change it, and may it run?"
    return f"{item} is new. Did you put it there, and may it run?"

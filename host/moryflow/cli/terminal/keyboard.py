"""Lines that a person types as an answer."""

from __future__ import annotations

import asyncio
import os
import sys

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

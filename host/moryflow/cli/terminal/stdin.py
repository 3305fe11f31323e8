"""Input: lines and answers that the user types at the terminal, files, and text piped into standard input."""

from __future__ import annotations

import asyncio
import base64
import codecs
import os
import re
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

import click
from moryflow_sdk import ConfigError
from moryflow_sdk.support.texts import columns_of, image_type, visible

from moryflow.cli.options import Flags

from . import at_terminal, folded, is_dumb
from .streams import stderr

# ---------------------------------------------------------------- The user at the terminal


# Seconds within which lines after the first count as part of the same paste; nobody types that fast.
PASTED = 0.05


def discard_typed() -> None:
    """Drop keys that were typed but did not answer yet: they were typed before the coming question was on the screen.

    Piped input stays: its author knows what will be asked.
    """
    for typed in _half_typed:
        typed.text = ""
    if not sys.stdin.isatty():
        return
    if "prompt_toolkit.input.typeahead" in sys.modules:  # a conversation: keys typed after the last line
        from prompt_toolkit.application.current import get_app_session
        from prompt_toolkit.input.typeahead import clear_typeahead

        clear_typeahead(get_app_session().input)
    import termios

    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


# The letters that answer, among the answers on offer.
LETTERS = re.compile(r"\[(\w)\]")
# Seconds in which no other key follows a letter that is an answer, and not the beginning of a reason.
ALONE = 0.25


@contextmanager
def keys_at_once() -> Iterator[None]:
    """Let the terminal give each key as it is pressed, without showing it; not a dumb one, and no pipe."""
    if not sys.stdin.isatty() or is_dumb():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin.fileno())
    tty.setcbreak(sys.stdin.fileno(), termios.TCSADRAIN)  # Ctrl-C and Ctrl-Z stay signals
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)


async def read_key(letters: str) -> str:
    """Return one of `letters` as soon as it is pressed alone, or else a line; without `letters`, in a pipe, always a line."""
    if not letters or not sys.stdin.isatty() or is_dumb():
        return await read_line()
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str] = loop.create_future()
    decode, typed = codecs.getincrementaldecoder("utf-8")("replace").decode, Typed()
    timer: asyncio.TimerHandle | None = None

    def ended() -> None:
        text = typed.text
        if text and not found.done():  # none is left if another question came, or the process was stopped meanwhile
            discard_typed()  # the last line of a paste may have no end
            found.set_result(text)

    def ready() -> None:
        nonlocal timer
        if timer is not None:
            timer.cancel()
        try:
            piece = os.read(sys.stdin.fileno(), 4096)
        except OSError:  # the terminal is gone
            piece = b""
        if not piece or typed.add(decode(piece)):
            loop.remove_reader(sys.stdin.fileno())
            if not found.done():
                found.set_result("")
        elif typed.text.endswith("\n"):
            timer = loop.call_later(PASTED, ended)
        elif len(typed.text) == 1 and typed.text.lower() in letters:
            timer = loop.call_later(ALONE, ended)

    loop.add_reader(sys.stdin.fileno(), ready)
    _half_typed.append(typed)
    try:
        text = await found
    finally:
        _half_typed.remove(typed)
        loop.remove_reader(sys.stdin.fileno())
        if timer is not None:
            timer.cancel()
    if not text.endswith("\n"):
        stderr().write("\n")
    return text.lower() if len(text) == 1 else text


class Typed:
    """What was typed at a terminal that does not show it: shows it, and takes away what Backspace and Ctrl-U remove."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, keys: str) -> bool:
        """Take in `keys`; return whether they end the input, as Ctrl-D does, also behind half an answer."""
        if keys.startswith("\x1b"):  # an arrow key, for example
            return False
        for key in keys.replace("\r", "\n"):
            if key in "\x7f\b\x15":
                gone = self.text if key == "\x15" else self.text[-1:]
                self.text = self.text[: len(self.text) - len(gone)]
                stderr().write("\b \b" * columns_of(visible(gone)))
            elif key == "\x04":
                return True
            else:
                self.text += key
                stderr().write(visible(key, keep="\n"))
        stderr().flush()
        return False


# What is being typed at the terminal, which a question that comes or is shown again drops.
_half_typed: list[Typed] = []


async def read_line() -> str:
    """Read a line without a thread, so that Ctrl-C leaves nobody waiting for input.

    Lines that are pasted together are one text: the first line alone may mean something else, and the others would answer the
    next question. A line that is ended by Ctrl-D instead of Enter counts as empty.

    A terminal is read without Python's own buffer, which could hold what was typed before. A loop cannot wait for a file or
    the null device; the next line, or the end, can be read at once.
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
    """Ask the user to confirm, unless ``-y`` was given.

    :param command: the command that says yes, to name if nobody can be asked.
    :raises ConfigError: nobody can be asked.
    :raises click.Abort: the answer was no.
    """
    if flags.yes:
        return
    if not at_terminal():
        raise ConfigError(f"{text} Nobody can be asked here.", next_step=command or "add -y to confirm")
    discard_typed()
    click.confirm(folded(text), err=True, default=default, abort=True)


def question(item: str) -> str:
    """Return the question for the user about code that waits for consent."""
    if PurePosixPath(item).is_absolute():
        return f"{item} changed while a command ran. Did you change it, and may it run?"
    return f"{item} is new. Did you put it there, and may it run?"


# ---------------------------------------------------------------- Files and pipes


MAX_INPUT_BYTES = 8 * 1024 * 1024
_PIECE = 64 * 1024
# Seconds to wait for the first byte of a pipe when there is a prompt already; an inherited pipe may never send one.
PIPE_TIMEOUT = 0.5


def piped_text(*, have_prompt: bool) -> str | None:
    """Return the text on standard input when something is piped in, else ``None``.

    :raises ConfigError: the input is binary or too large.
    """
    stream = sys.stdin
    if stream is None or stream.closed or stream.isatty():
        return None
    kind = os.fstat(stream.fileno()).st_mode
    waits = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
    if have_prompt and waits and not select.select([stream], [], [], PIPE_TIMEOUT)[0]:
        return None
    data = _read(stream.buffer)
    if len(data) > MAX_INPUT_BYTES:
        raise ConfigError(
            f"standard input is larger than {MAX_INPUT_BYTES // 2**20} MiB", next_step="save it in the vault and name the file"
        )
    return as_text(data, "standard input") or None


def _read(file: IO[bytes]) -> bytes:
    """Return the content of `file`; if it is too large, a little more than the limit.

    It is not read in one go: Python would allocate all that is asked for, and once glibc has freed a block of 8 MiB, it never
    again returns smaller ones to the system. A command's output of 20 MB then cost 12 MB more.
    """
    data = bytearray()
    while len(data) <= MAX_INPUT_BYTES and (piece := file.read(_PIECE)):
        data += piece
    return bytes(data)


def as_text(data: bytes, where: str) -> str:
    """Return `data` as text.

    :raises ConfigError: it is not text.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError("this is not text (UTF-8)", where=where, next_step="give a text file, or an image with -f") from error
    if "\0" in text:
        raise ConfigError("this is binary, not text", where=where, next_step="give a text file, or an image with -f")
    return text


def attachment(path: Path) -> tuple[str, dict[str, Any]]:
    """Return (``files`` or ``images``, the attachment) for one ``-f FILE``.

    :raises ConfigError: it cannot be read, is too large, or is neither text nor an image.
    """
    try:
        with path.open("rb") as file:
            data = _read(file)
    except OSError as error:
        raise ConfigError(
            f"cannot read the file: {error.strerror}", where=str(path), next_step="check the path after -f"
        ) from error
    if len(data) > MAX_INPUT_BYTES:
        raise ConfigError(
            f"the file is larger than {MAX_INPUT_BYTES // 2**20} MiB", where=str(path), next_step="name it in the prompt"
        )
    if media_type := image_type(data):
        return "images", {"media_type": media_type, "data": base64.b64encode(data).decode("ascii")}
    return "files", {"path": str(path), "text": as_text(data, str(path))}

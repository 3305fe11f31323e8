"""The standard streams of the command line. What plugins write to standard output goes to standard error instead.

A reader of ``--json`` or of the events of a run must find only our output there. Prints of Python code are sorted out here;
file descriptor 1, which C libraries and child programs write to, is standard error, and ours is another.
"""

from __future__ import annotations

import codecs
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType
from typing import IO, Any, TextIO

_OURS = frozenset({"__main__", "moryflow", "moryflow_sdk", "moryflow_builtins", "prompt_toolkit"})
"""The packages that write what the host has to say. A plugin may be any other module, and print through any library."""
NAME = "standard output"
"""What an error is told with that has no file's name."""
_MAIN = threading.main_thread()

SIMPLER = "moryflow-simpler"
"""The error handler of standard error: signs of ours that its encoding lacks are written as others like them, all else as
escapes. Not of standard output: an answer is data."""
_LIKE = {"•": "*", "…": "...", "→": "->", "│": "|", "┊": ":", "·": "-", "“": '"', "”": '"', "–": "-", "└": "`"}


def _simpler(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_LIKE.get(one) or ascii(one)[1:-1] for one in error.object[error.start : error.end]), error.end


codecs.register_error(SIMPLER, _simpler)


def prepare(*, apart: bool) -> None:
    """Make the standard streams usable, whatever the caller did to them.

    One that was closed (`<&-`) becomes the null device, so that no file of ours gets its number. What the terminal's
    encoding cannot show is escaped instead of lost.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number, inheritable=True)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream, errors in ((sys.stdout, "backslashreplace"), (sys.stderr, SIMPLER)):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)
    _install(apart=apart)
    use(sys.stdout, sys.stderr)


def use(out: TextIO | None, err: TextIO | None) -> None:
    """Let the command line write to these streams from here on; ``None``: to whatever ``sys`` has."""
    global _out, _err
    _out, _err = out, err


_out: TextIO | None = None
_err: TextIO | None = None


def restore() -> None:
    """Put the streams of the command line back where a plugin has left others, for what prints through ``sys``."""
    sys.stdout, sys.stderr = stdout(), stderr()


def stdout() -> TextIO:
    """Return the standard output of the command line.

    What ``sys.stdout`` is may be a plugin's meanwhile: ``redirect_stdout`` in its thread holds for the whole process.
    """
    return _out or sys.stdout


def stderr() -> TextIO:
    """Return the standard error of the command line, see :func:`stdout`."""
    return _err or sys.stderr


class Stdout(TextIOWrapper):
    """Takes what the host writes, on its one thread, and passes on what comes from elsewhere.

    :param shared: a plugin's own command runs, and what it prints is the answer.
    """

    shared = False

    def write(self, text: str, /) -> int:
        """Write a text where it belongs.

        A plugin prints on the host's thread too, at import and in a hook, so only the frame that writes tells whose text
        it is. Looking at it takes 0.2 µs a write.
        """
        if threading.current_thread() is not _MAIN or not (self.shared or _is_ours(sys._getframe(1))):
            return stderr().write(text)
        with _named():
            return super().write(text)

    def flush(self) -> None:
        with _named():
            super().flush()

    def close(self) -> None:
        """Write what waits, and stay open: a plugin that closes it may not end the answer."""
        self.flush()


class Stderr(TextIOWrapper):
    """Takes what anybody writes to standard error, plugins and what they log too, and leaves out the secrets we know."""

    def write(self, text: str, /) -> int:
        """Write a text without secrets."""
        secrets: Any = sys.modules.get("moryflow_sdk.support.secrets")  # who knows of one has imported it
        super().write(secrets.hide(text) if secrets is not None else text)
        return len(text)

    def close(self) -> None:
        """Write what waits, and stay open."""
        self.flush()


@contextmanager
def _named() -> Iterator[None]:
    """Name the place that could not be written, as the error of a file does."""
    try:
        yield
    except OSError as error:
        error.filename = NAME
        raise


def _install(*, apart: bool) -> None:
    """Install it over a plain standard output. Leave a stream that someone else installed.

    :param apart: this process is ours alone, so that nobody else's descriptor 1 is moved.
    """
    _hide_on_stderr()
    found = sys.stdout
    if type(found) is not TextIOWrapper:
        return
    settings = {"encoding": found.encoding, "errors": found.errors, "line_buffering": found.line_buffering}
    unbuffered, apart = found.write_through, apart and found.fileno() == 1
    found.flush()
    binary: Any = found.detach()
    if apart:
        binary = _apart(binary, unbuffered=unbuffered)
    sys.stdout = Stdout(binary, **settings, write_through=unbuffered)
    if sys.__stdout__ is found:
        sys.__stdout__ = sys.stdout


def _hide_on_stderr() -> None:
    found = sys.stderr
    if type(found) is not TextIOWrapper:
        return
    settings = {"encoding": found.encoding, "errors": found.errors, "line_buffering": found.line_buffering}
    unbuffered = found.write_through
    found.flush()
    binary: Any = found.detach()
    sys.stderr = Stderr(binary, **settings, write_through=unbuffered)
    if sys.__stderr__ is found:
        sys.__stderr__ = sys.stderr


def _apart(binary: IO[bytes], *, unbuffered: bool) -> IO[bytes]:
    """Return a stream to what descriptor 1 was, which is standard error from here on."""
    try:
        ours = os.dup(1)
    except OSError:  # there are no descriptors left
        return binary
    os.dup2(2, 1)
    return os.fdopen(ours, "wb", 0 if unbuffered else -1)


def share() -> None:
    """Let plugins print: a command of one of them begins."""
    if isinstance(sys.stdout, Stdout):
        sys.stdout.shared = True
        sys.stdout.flush()
        os.dup2(sys.stdout.fileno(), 1)


@contextmanager
def lent() -> Iterator[None]:
    """Let a program that is started meanwhile write to standard output: an editor."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(sys.stdout.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)


def _is_ours(frame: FrameType | None) -> bool:
    """Whether it is the host that writes in `frame`. What click echoes is its caller's."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "click":
            return package in _OURS
        frame = frame.f_back
    return True


def nobody_reads() -> bool:
    """Whether the other end of standard output or standard error has been closed."""
    import select

    poll = select.poll()
    for stream in (stdout(), stderr()):
        poll.register(stream.fileno(), 0)  # POLLERR is told unasked
    return any(event & select.POLLERR for _, event in poll.poll(0))


def give_up_waiting() -> None:
    """Let go of what could not be written: Python must not try again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (stdout(), stderr()):
        try:
            stream.flush()
        except ValueError:  # a plugin has closed what is below it
            continue
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)

"""The standard streams of the command line. What plugins write to standard output goes to standard error instead.

A reader of ``--json`` or of the events of a run must find only our output there. Prints of Python code are told apart here;
file descriptor 1, which C libraries and child programs write to, is made standard error, and our output has another.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType
from typing import IO, Any, TextIO

_OURS = frozenset({"__main__", "moryflow", "moryflow_sdk", "moryflow_builtins", "prompt_toolkit"})
"""The packages whose output is the host's. Any other module may be a plugin, which may also print through any library."""
NAME = "standard output"
"""The file name in an error about standard output, which has none."""
_MAIN = threading.main_thread()


def prepare(*, own_process: bool) -> None:
    """Make the standard streams usable, whatever the caller did to them, and install ours (see :func:`_install`).
    A stream that was closed (`<&-`) becomes the null device, so that no file of ours gets its number. Characters that the
    terminal's encoding lacks are escaped instead of lost.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number, inheritable=True)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _install(own_process=own_process)
    use(sys.stdout, sys.stderr)


def use(out: TextIO | None, err: TextIO | None) -> None:
    """Let the command line write to these streams from here on; ``None``: to whatever ``sys`` has."""
    global _out, _err
    _out, _err = out, err


_out: TextIO | None = None
_err: TextIO | None = None


def restore() -> None:
    """Set ``sys.stdout`` and ``sys.stderr`` to the command line's streams again, if a plugin has left others there."""
    sys.stdout, sys.stderr = stdout(), stderr()


def stdout() -> TextIO:
    """Return the standard output of the command line.

    ``sys.stdout`` may be a plugin's at the moment: ``redirect_stdout`` in its thread applies to the whole process.
    """
    return _out or sys.stdout


def stderr() -> TextIO:
    """Return the standard error of the command line, see :func:`stdout`."""
    return _err or sys.stderr


class Stdout(TextIOWrapper):
    """Writes what the host prints, on its one thread, and passes all other text on to standard error.

    :cvar shared: a plugin's own command runs, so what it prints is the answer.
    """

    shared = False

    def write(self, text: str, /) -> int:
        """Write the host's text to standard output, and any other text to standard error.

        A plugin prints on the host's thread too, at import and in a hook, so only the frame that writes shows whose text
        it is. Looking at the frame takes 0.2 µs a write.
        """
        if threading.current_thread() is not _MAIN or not (self.shared or _is_ours(sys._getframe(1))):
            return stderr().write(text)
        with _named():
            return super().write(text)

    def flush(self) -> None:
        with _named():
            super().flush()

    def close(self) -> None:
        """Flush and stay open: a plugin that closes the stream must not cut the answer off."""
        self.flush()


class Stderr(TextIOWrapper):
    """Writes all of standard error, the output and logs of plugins included, and hides the secrets that we know."""

    def write(self, text: str, /) -> int:
        super().write(without_secrets(text))
        return len(text)

    def close(self) -> None:
        """Flush and stay open."""
        self.flush()


def without_secrets(text: str) -> str:
    secrets: Any = sys.modules.get("moryflow_sdk.support.secrets")  # whoever knows a secret has imported it
    return secrets.hide(text) if secrets is not None else text


@contextmanager
def _named() -> Iterator[None]:
    """Set the file name of an ``OSError`` to :data:`NAME`, so that it names its place like the error of a file."""
    try:
        yield
    except OSError as error:
        error.filename = NAME
        raise


def _install(*, own_process: bool) -> None:
    """Replace plain standard streams by :class:`Stdout` and :class:`Stderr`. Leave a stream that someone else installed.

    :param own_process: the process is ours alone, so descriptor 1 may be moved.
    """
    for name, kind in (("stderr", Stderr), ("stdout", Stdout)):
        found = getattr(sys, name)
        if type(found) is not TextIOWrapper:
            continue
        settings: dict[str, Any] = {"encoding": found.encoding, "errors": found.errors, "line_buffering": found.line_buffering}
        unbuffered, moves = found.write_through, kind is Stdout and own_process and found.fileno() == 1
        found.flush()
        binary: Any = found.detach()
        if moves:
            binary = _move_stdout(binary, unbuffered=unbuffered)
        ours = kind(binary, **settings, write_through=unbuffered)
        setattr(sys, name, ours)
        if getattr(sys, f"__{name}__") is found:
            setattr(sys, f"__{name}__", ours)


def _move_stdout(binary: IO[bytes], *, unbuffered: bool) -> IO[bytes]:
    """Make descriptor 1 standard error, and return a stream to what it was before."""
    try:
        ours = os.dup(1)
    except OSError:  # there are no descriptors left
        return binary
    os.dup2(2, 1)
    return os.fdopen(ours, "wb", 0 if unbuffered else -1)


def share_stdout() -> None:
    """Let plugins print to standard output, because a plugin's command begins."""
    if isinstance(sys.stdout, Stdout):
        sys.stdout.shared = True
        sys.stdout.flush()
        os.dup2(sys.stdout.fileno(), 1)


@contextmanager
def lend_stdout() -> Iterator[None]:
    """Let a program that is started meanwhile, for example an editor, write to standard output."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(sys.stdout.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)


def _is_ours(frame: FrameType | None) -> bool:
    """Return whether the host writes in `frame`. What click echoes belongs to click's caller."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "click":
            return package in _OURS
        frame = frame.f_back
    return True


def nobody_reads() -> bool:
    """Return whether the other end of standard output or standard error has been closed."""
    import select

    poll = select.poll()
    for stream in (stdout(), stderr()):
        poll.register(stream.fileno(), 0)  # POLLERR is reported without being asked for
    return any(event & select.POLLERR for _, event in poll.poll(0))


def drop_unwritten() -> None:
    """Drop output that could not be written: Python must not try again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (stdout(), stderr()):
        try:
            stream.flush()
        except ValueError:  # a plugin has closed the file below the stream
            continue
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)

"""The standard streams of the command line. What plugins write to standard output goes to standard error instead.

A reader of ``--json`` or of the events of a run must find only our output there. Before a plugin is loaded, ``sys.stdout``
becomes standard error, and so does file descriptor 1, which C libraries and child programs write to; our output goes to
:func:`stdout`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import IO, Any, TextIO

# The file name in an error about standard output, which has none.
NAME = "standard output"


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


def use(out: TextIO, err: TextIO) -> None:
    """Let the command line write to these streams from here on."""
    global _out, _err
    _out, _err = out, err


_out: TextIO | None = None
_err: TextIO | None = None
# Whether `sys.stdout` is standard error.
_kept = False


def keep_stdout() -> None:
    """Let whatever is printed from here on go to standard error, because plugins are about to be loaded."""
    global _kept
    _kept = _out is not None
    restore()


def restore() -> None:
    """Set ``sys.stdout`` and ``sys.stderr`` to the command line's streams again, if a plugin has left others there."""
    sys.stdout, sys.stderr = stderr() if _kept else stdout(), stderr()


def release() -> None:
    """Give the streams back to the program that called ``main()``."""
    global _out, _err, _kept
    _kept = False
    restore()
    _out = _err = None


def stdout() -> TextIO:
    """Return the standard output of the command line, whatever ``sys.stdout`` is at the moment."""
    return _out or sys.stdout


def stderr() -> TextIO:
    """Return the standard error of the command line, see :func:`stdout`."""
    return _err or sys.stderr


class Stdout(TextIOWrapper):
    """Standard output, whose errors name it."""

    def write(self, text: str, /) -> int:
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
    global _kept
    _kept = False
    restore()
    if isinstance(out := stdout(), Stdout):
        out.flush()
        os.dup2(out.fileno(), 1)


@contextmanager
def lend_stdout() -> Iterator[None]:
    """Let a program that is started meanwhile, for example an editor, write to standard output."""
    stdout().flush()
    before = os.dup(1)
    os.dup2(stdout().fileno(), 1)
    try:
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)


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

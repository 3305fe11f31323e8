"""The command line. Every command lives in a module of its own, imported when it is used."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from io import TextIOWrapper

from moryflow.base import leave_out_pydantic_plugins

from .group import cli
from .terminal import shutdown, stdout

STOPPED = 130
"""What a shell reports of a program that Ctrl-C has ended: 128 + SIGINT."""
__all__ = ["cli", "main"]

SIMPLER = "moryflow-simpler"
"""The error handler of standard error: signs of ours that its encoding lacks are written as others like them, all else as
escapes. Not of standard output: an answer is data."""
_LIKE = {"•": "*", "…": "...", "→": "->", "│": "|", "┊": ":", "·": "-", "“": '"', "”": '"', "–": "-", "└": "`"}
LEAST_FILES = 32
"""Files that the process must be able to open at a time: a run with the built-in plugins needs some twenty."""
READER_GONE = 141
"""What a shell reports of a program whose reader has gone (`| head`): 128 + SIGPIPE."""


def main(arguments: list[str] | None = None) -> int:
    """Run `moryflow` and return its exit code."""
    if arguments is None:  # a program that calls this function ends in its own way
        shutdown.install()
    try:
        code = _main(arguments)
    except KeyboardInterrupt:  # before the command had begun, or when it had ended
        code = STOPPED
    if arguments is None:
        shutdown.with_code(code)
    return code


def _main(arguments: list[str] | None) -> int:
    if _has_few_files():
        return 1
    _prepare_streams(apart=arguments is None)
    if arguments is None:
        leave_out_pydantic_plugins()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except OSError as error:
        code = _output_lost(error)
    _give_up_waiting()
    return code


def _has_few_files() -> bool:
    """Say so where the process may open too few files: anything may fail then, and each time in another way."""
    most = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else -1
    if not 0 <= most < LEAST_FILES:
        return False
    said = f"moryflow: only {most} files may be open at a time here, and {LEAST_FILES} are the least\n  next: ulimit -n 1024\n"
    with contextlib.suppress(OSError):  # nobody reads
        os.write(2, said.encode())
    return True


def _run(arguments: list[str] | None) -> int:
    """Run the command. What it raises is reported here, unless standard output itself is the trouble."""
    from .failures import report

    shutdown.begin_work(alone=arguments is None)
    try:
        if "_MORYFLOW_COMPLETE" in os.environ:
            _install_excepthooks(arguments)
            return cli.main(args=arguments, prog_name="moryflow", standalone_mode=False) or 0
        # Not cli.main() otherwise: that turns a broken pipe, wherever it happened, into exit code 1.
        with cli.make_context("moryflow", sys.argv[1:] if arguments is None else list(arguments)) as ctx:
            _install_excepthooks(arguments)
            outcome = cli.invoke(ctx)
    except OSError as error:
        sys.stdout.flush()  # raises again if what was written is still waiting
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            raise
        return report(error)
    except BaseException as error:
        return report(error)
    return outcome if isinstance(outcome, int) else 0


def _install_excepthooks(arguments: list[str] | None) -> None:
    """Look after what is raised where nobody waits for it; a program that calls :func:`main` has its own way with that."""
    if arguments is None:
        from .terminal import excepthooks

        excepthooks.install()


def _nobody_reads() -> bool:
    """Whether the other end of standard output or standard error has been closed."""
    import select

    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        poll.register(stream.fileno(), 0)  # POLLERR is told unasked
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _output_lost(error: OSError) -> int:
    """Say so where somebody can read it."""
    from .failures import report

    if isinstance(error, BrokenPipeError):
        return READER_GONE
    return report(OSError(error.errno, error.strerror, stdout.NAME))


def _give_up_waiting() -> None:
    """Let go of what could not be written: Python must not try again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _simpler(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_LIKE.get(one) or ascii(one)[1:-1] for one in error.object[error.start : error.end]), error.end


codecs.register_error(SIMPLER, _simpler)


def _prepare_streams(*, apart: bool) -> None:
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
    stdout.install(apart=apart)

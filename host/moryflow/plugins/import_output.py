"""Send what plugins print during import to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

_as_it_is = False


def leave_as_it_is() -> None:
    """Move nothing from here on: in the probe, which wants to see it."""
    global _as_it_is
    _as_it_is = True


@contextmanager
def printing_aside() -> Iterator[None]:
    """Let standard error take what is written to standard output meanwhile, also what other programs write.

    For work that does not wait: nothing of the host's may be written until it ends.
    """
    if _as_it_is:
        yield
        return
    with suppress(OSError, ValueError):  # a stream that is closed, or no file, has nothing of ours in it
        sys.stdout.flush()
    ours = _swapped()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if ours >= 0:
            os.dup2(ours, 1)
            os.close(ours)


def _swapped() -> int:
    """Put standard error in the place of standard output; return what is to be put back, -1 when one of them is closed."""
    try:
        ours = os.dup(1)
    except OSError:
        return -1
    try:
        os.dup2(2, 1)
    except OSError:
        os.close(ours)
        return -1
    return ours

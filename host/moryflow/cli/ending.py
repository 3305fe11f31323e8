"""The very end of the process.

When everything that asked to be called at exit has been called, the process is left at once: Python and its libraries are
not taken down first. That takes time for nothing, and it crashes where a thread is still inside a library (OpenSSL, in
the thread that prepares the first request) whose memory is given back under it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time

GRACE = 5.0
"""Seconds that threads and clean-ups of plugins may hold up the end."""

_codes: list[int] = []


def install() -> None:
    """Leave as the last thing at exit; call it before anything else asks to be called then."""
    atexit.register(_leave)


def with_code(code: int) -> None:
    """Say what the process will have ended with. Without that it ends as Python ends."""
    _codes[:] = [code]
    threading.Thread(target=_lose_patience, name="moryflow-ending", daemon=True).start()


def _lose_patience() -> None:
    time.sleep(GRACE)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"moryflow: a thread or a clean-up of a plugin did not end within {GRACE:g} s and was left behind\n")
    _leave()


def _leave() -> None:
    if not _codes:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(_codes[0])

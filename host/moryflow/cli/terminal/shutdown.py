"""The end of the process: flush, close, exit code.

While a thread is still inside a library (OpenSSL, in the one that prepares the first request), Python and its libraries
must not be taken down: its memory would be given back under it, and the process would crash. It is left at once then, when
everything that asked to be called at exit has been called, and what waits in files has been written.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from io import BufferedRandom, BufferedWriter, TextIOWrapper

GRACE = 5.0
"""Seconds that threads and clean-ups of plugins may hold up the end."""

_NAME = "moryflow-ending"
_codes: list[int] = []


def install() -> None:
    """Look after the end as the last thing at exit; call it before anything else asks to be called then."""
    atexit.register(_end)


def begin_work(*, alone: bool) -> None:
    """Let Ctrl-C be an exception: until here :mod:`moryflow.__main__` has left at once.

    :param alone: this process is ours, so that nobody else has chosen what Ctrl-C does.
    """
    if alone and callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def with_code(code: int) -> None:
    """Say what the process will have ended with. All is done: Ctrl-C leaves at once, where an exception would be printed."""
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    _codes[:] = [code]
    threading.Thread(target=_lose_patience, name=_NAME, daemon=True).start()


def _lose_patience() -> None:
    time.sleep(GRACE)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"moryflow: a thread or a clean-up of a plugin did not end within {GRACE:g} s and was left behind\n")
        sys.stderr.flush()
    os._exit(_codes[0])  # and write nothing more: that may be what waits for ever


def _end() -> None:
    if _codes and any(thread.daemon and thread.name != _NAME for thread in threading.enumerate()):
        _leave()
    gc.freeze()  # what is left goes with the process: looking through it once more takes 40 ms


def _leave() -> None:
    """Leave without taking anything down; only what waits to be written is written.

    Python keeps no list of open files, and a plugin may not have closed its own: the collector knows them. The search takes
    1 ms in 27,000 objects, and happens only when a thread still runs.
    """
    kinds = (TextIOWrapper, BufferedWriter, BufferedRandom)  # text first: it waits in front of bytes
    files = [found for found in gc.get_objects() if type(found) in kinds]
    for file in sorted(files, key=lambda file: kinds.index(type(file))):
        with contextlib.suppress(Exception):
            file.flush()
    os._exit(_codes[0])

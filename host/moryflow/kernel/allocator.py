"""Give large freed blocks of memory back to the system."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache

LARGE_BLOCK = 4 * 1024 * 1024
_M_MMAP_THRESHOLD = -3


@cache
def return_large_blocks() -> None:
    """Have every block from :data:`LARGE_BLOCK` on go back to the system when it is freed.

    glibc does so until the first such block is freed; from then on it keeps blocks of that size for the next one, and an
    output of 20 MB would stay in the process's memory for good. Asked for when the first large output comes, because
    ctypes is needed. Elsewhere than with glibc nothing happens.
    """
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):  # musl has no mallopt, and needs none
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)

"""``os._exit`` as a probe has it: it says where it was called before it leaves."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NoReturn

trace = -1
"""Descriptor that takes where the process stands."""
_leave = os._exit


def leave(status: int) -> NoReturn:
    """Leave without a word to anybody else."""
    import faulthandler

    with suppress(BaseException):
        faulthandler.dump_traceback(trace, all_threads=False)
    _leave(status)

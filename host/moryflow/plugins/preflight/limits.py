"""What a probe may take, who has taken it, and how a probe leaves."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from moryflow_sdk.processes import children

_USUAL = 512 << 20
"""Bytes: importing torch or pandas takes half of that. Files that are only mapped, as large libraries are, do not count."""
_SHARE = 4
"""On a small machine, no more than this part of its memory."""


def machine_memory() -> int:
    """Return the bytes of memory that there are for this process and all others beside it."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    return min(found)


def most_memory() -> int:
    """Return the bytes that the code in a probe may fill."""
    return min(_USUAL, machine_memory() // _SHARE)


def filled(pid: int) -> int:
    """Return the bytes that a process and those that it began have filled by now; 0 where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return 0
    own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:")))
    return own + sum(filled(child) for child in children(pid))


trace = -1
"""Descriptor that takes where the process stands."""
_leave = os._exit


def leave(status: int) -> NoReturn:
    """Leave without a word to anybody else."""
    import faulthandler

    with suppress(BaseException):
        faulthandler.dump_traceback(trace, all_threads=False)
    _leave(status)

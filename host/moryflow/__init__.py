"""Moryflow's in-process API: ``async with open_host() as host``.

A name is imported when it is first used, so that ``moryflow --help`` stays fast.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not imported: `typing` would delay the command line's handler for Ctrl-C
if TYPE_CHECKING:
    from typing import Any

    from moryflow.kernel.outcome import RunOptions
    from moryflow.runtime.host import Host, open_host
    from moryflow.runtime.session import Session
    from moryflow.runtime.turn_result import TurnResult
    from moryflow.runtime.turn_task import DirectResult
    from moryflow.store import SessionBusy

__version__ = "0.1.0"
"""The version of Moryflow, as ``moryflow --version`` prints it."""
__all__ = ["DirectResult", "Host", "RunOptions", "Session", "SessionBusy", "TurnResult", "__version__", "open_host"]

_HOMES = {
    "DirectResult": "moryflow.runtime.turn_task",
    "Host": "moryflow.runtime.host",
    "open_host": "moryflow.runtime.host",
    "Session": "moryflow.runtime.session",
    "SessionBusy": "moryflow.store",
    "RunOptions": "moryflow.kernel.outcome",
    "TurnResult": "moryflow.runtime.turn_result",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)

"""Guess the line that changed something: the first one that names it and acts on it."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_CALLS = {
    "the alarm": r"alarm|setitimer",
    "the current folder": r"chdir",
    "the default timeout": r"setdefaulttimeout",
    "the end of the program: its thread": r"Thread",
    "the event loop policy": r"set_event_loop_policy",
    "the files behind": r"dup2|close",
    "the garbage collector": r"gc\.",
    "the handler of": r"signal\.signal",
    "the limits": r"setrlimit",
    "the priority": r"nice|setpriority",
    "the recursion limit": r"setrecursionlimit",
    "the signals": r"pthread_sigmask",
    "the standard streams": r"close",
    "the tracing": r"settrace|setprofile",
    "the umask": r"umask",
    "the warnings filter": r"warnings\.",
    "what is logged": r"logging\.disable",
    "what runs at the end": r"atexit",
    "what runs: it forks": r"fork",
}
"""By the beginning of what is said: the calls that do it."""
_NAME = re.compile(r"([A-Za-z_]\w*)\W*$")
_OTHER = re.compile(r"\s*(import|from|def|class|async def|#|@)\b")


def line_of(what: str, file: str) -> int:
    """Return the line, 0 when there is none to be sure of."""
    calls = next((calls for beginning, calls in _CALLS.items() if what.startswith(beginning)), "")
    named = _NAME.search(what.partition(" (")[0])
    pattern = re.compile(rf"\b({calls})" if calls else rf"\b{named[1]}\b" if named else "(?!)")
    with suppress(BaseException):  # what reads files may be what was changed
        for number, line in enumerate(Path(file).read_text("utf-8", "replace").splitlines(), 1):
            if pattern.search(line) and not _OTHER.match(line):
                return number
    return 0

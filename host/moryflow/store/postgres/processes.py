"""The names under which processes hold sessions: the machine, the process, and what makes both unique."""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def _machine() -> str:
    """Return a mark of this start of this machine and of this container, in which a process has a number of its own."""
    boot, pids = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    try:
        found = f"{socket.gethostname()} {boot.read_text()} {pids.readlink()}"
    except OSError:  # not Linux: nobody's end is noticed, and each lease runs out
        return os.urandom(6).hex()
    return hashlib.sha256(found.encode()).hexdigest()[:12]


def worker_name() -> str:
    """Return a name for this process that no other one has, or had."""
    return f"{socket.gethostname()}:{os.getpid()}:{_machine()}:{os.urandom(3).hex()}"


def has_ended(worker: str) -> bool:
    """Return whether `worker` was a process of this machine that is no more, so that nobody needs to wait for its lease."""
    _, pid, machine, _ = _parts(worker)
    if not pid.isdigit() or machine != _machine():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    with suppress(OSError):  # a killed process stays listed until its parent has asked for its end
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def process_of(worker: str | None) -> str:
    """Return who holds a session, for use in a sentence."""
    host, pid, machine, _ = _parts(worker or "")
    if not pid:
        return worker or "another process"
    if machine != _machine():
        return f"process {pid} on {host}"
    return "this process" if pid == str(os.getpid()) else f"process {pid}"


def _parts(worker: str) -> tuple[str, str, str, str]:
    parts = worker.rsplit(":", 3)
    return (parts[0], parts[1], parts[2], parts[3]) if len(parts) == 4 else (worker, "", "", "")

"""Operating-system locks on files: they end with the process that holds them, so they need no heartbeat and no expiry."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
"""What a file system without locks says; some network folders are such."""


class FileLock:
    """An exclusive lock on `path`, taken by :meth:`acquire` and given back by :meth:`release`.

    The file names the holder and is removed on release; a lock counts only while its file is still the one at `path`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Try to take the lock; return whether it is ours now.

        :raises OSError: the file cannot be made or locked at all.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if not _lock(descriptor) or not self._is_current(descriptor):
                os.close(descriptor)
                return False
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        with contextlib.suppress(OSError):
            if self._is_current(descriptor):
                self.path.unlink()
        os.close(descriptor)

    def holder(self) -> str:
        """Return who holds the lock, for a sentence: ``process 4711``."""
        try:
            pid = self.path.read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return "another process"
        if pid == str(os.getpid()):
            return "this process"
        return f"process {pid}" if pid.isdigit() else "another process"

    def seems_held(self) -> bool:
        """Tell whether a living process has it, without taking it: one that was killed left its file behind."""
        try:
            os.kill(int(self.path.read_text(encoding="ascii", errors="replace")), 0)
        except (FileNotFoundError, ProcessLookupError):
            return False
        except (OSError, ValueError):
            return True
        return True

    def _is_current(self, descriptor: int) -> bool:
        """Tell whether `path` still leads to the locked file; the last holder may have removed it meanwhile."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(descriptor), there)


def has_locks(folder: Path) -> bool:
    """Tell whether the file system of a folder has locks, as far as that shows without a new file."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in NO_LOCKS
    finally:
        os.close(descriptor)
    return True


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""Operating-system locks on files: they end with the process that holds them, so they need no heartbeat and no expiry."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from moryflow_sdk.support.own_files import try_lock

# The error numbers of a file system without locks, such as some network folders.
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})


class FileLock:
    """An exclusive lock on the file `path`, from :meth:`acquire` to :meth:`release`.

    The file holds the id of the holder's process and is removed on release. A lock counts only while its file is still the
    one at `path`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Try to take the lock; return whether this process has it now.

        :raises OSError: the file cannot be created, or the file system has no locks.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if not try_lock(descriptor) or not self._is_current(descriptor):
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
        """Release the lock; does nothing if it is not held."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        with contextlib.suppress(OSError):
            if self._is_current(descriptor):
                self.path.unlink()
        os.close(descriptor)

    def holder(self) -> str:
        """Return the holder for use in a sentence, such as ``process 4711``."""
        try:
            pid = self.path.read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return "another process"
        if pid == str(os.getpid()):
            return "this process"
        return f"process {pid}" if pid.isdigit() else "another process"

    def seems_held(self) -> bool:
        """Return whether a living process holds the lock, without acquiring it; a killed process leaves its file behind."""
        try:
            os.kill(int(self.path.read_text(encoding="ascii", errors="replace")), 0)
        except (FileNotFoundError, ProcessLookupError):
            return False
        except (OSError, ValueError):
            return True
        return True

    def _is_current(self, descriptor: int) -> bool:
        """Return whether `path` is still the locked file; the last holder may have removed it meanwhile."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(descriptor), there)


def has_locks(folder: Path) -> bool:
    """Return whether the file system of a folder has locks, as far as it shows without creating a file."""
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

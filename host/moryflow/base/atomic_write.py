"""Write a file whole or not at all, and lock it with a file beside it while it is being edited."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from moryflow_sdk import ConfigError
from moryflow_sdk.support.own_files import try_lock

# How long to wait for another writer. An edit takes milliseconds.
WAIT_SECONDS = 5.0


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock file beside `target`.

    :raises ConfigError: another process holds it for more than :data:`WAIT_SECONDS`, or the folder cannot be written.
    """
    lock = target.with_name(f".{target.name}.lock")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        _acquire(descriptor, lock)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, lock: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            raise ConfigError("another process is writing the configuration", where=str(lock), next_step="try again")
        time.sleep(0.01)


def write_atomically(target: Path, data: bytes) -> None:
    """Replace the content of `target`: write a temporary file beside it, sync it, then rename it. Mode and owner are kept.

    :raises ConfigError: `target` cannot be written; its old content is unchanged.
    """
    try:
        _replace(target, data)
    except OSError as error:
        raise _unwritable(target, error) from error


def _replace(target: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            with suppress(FileNotFoundError):
                take_over(stream.fileno(), target.stat())
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def take_over(descriptor: int, old: os.stat_result) -> None:
    """Give the new file the owner, group and mode of the file that it replaces, as far as this user may.

    If it cannot have the group, its own, which it may have from the folder, may do only what everybody may.
    """
    for owner in (old.st_uid, -1):
        with suppress(OSError):
            os.fchown(descriptor, owner, old.st_gid)
            break
    mode = old.st_mode & 0o777
    same = os.fstat(descriptor).st_gid == old.st_gid
    os.fchmod(descriptor, mode if same else mode & (0o707 | (mode & 0o007) << 3))


def _unwritable(target: Path, error: OSError) -> ConfigError:
    return ConfigError(f"the configuration cannot be written: {error.strerror}", where=str(target), next_step="moryflow doctor")

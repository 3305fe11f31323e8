"""Find the user's own files in a folder, tell who else could have written them, open them without falling into traps, lock
them, and write them whole.

A dangling link counts as a file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from moryflow_sdk.errors import Diagnostic

LOST_HINT = "put back what it leads to, or remove the link"
"""The next step for the problem that :func:`leads_nowhere` returns."""


def own_files(
    folder: Path, suffix: str, *, hidden: tuple[str, ...] = (".",), next_step: str = ""
) -> tuple[list[Path], list[Diagnostic]]:
    """Return the files in `folder`, sorted by name, and why it cannot be listed; a missing folder counts as empty.

    :param hidden: files whose names begin with one of these are left out.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == suffix and not path.name.startswith(hidden)), []
    except OSError as error:
        lost = leads_nowhere(folder)
        if not lost and isinstance(error, FileNotFoundError):
            return [], []
        message, step = (lost, LOST_HINT) if lost else (f"the folder cannot be read: {error.strerror}", next_step)
        return [], [Diagnostic(file=str(folder), code="folder_unreadable", message=message, next_step=step)]


def files_below(folders: Iterable[str], suffix: str, *, next_step: str = "") -> tuple[list[Path], list[Diagnostic]]:
    """Return the files in `folders` and in all folders below them, and which folders are not there.

    A folder begins with ``/`` or ``~``, so that it does not depend on where the host was started.
    """
    files: list[Path] = []
    problems: list[Diagnostic] = []
    for folder in folders:
        place = Path(folder).expanduser()
        if not place.is_absolute() or not place.is_dir():
            said = "this folder is not there" if place.is_absolute() else "a folder begins with / or ~"
            problems.append(Diagnostic(file=folder, code="folder_missing", message=said, next_step=next_step))
            continue
        below = [place, *sorted(path for path in place.rglob("*") if path.is_dir() and not path.name.startswith("."))]
        for each in below:
            found, wrong = own_files(each, suffix, next_step=next_step)
            files += found
            problems += wrong
    return files, problems


MANIFESTS = (".toml", ".json")
"""Suffixes of files that describe the program beside them: ``weather.toml`` describes ``weather`` or ``weather.sh``."""
PROGRAM_HEAD = 64 * 1024
"""Bytes at the beginning of a program in which a block that describes it must begin."""


def own_programs(folder: Path) -> list[Path]:
    """Return the programs in other languages than Python in the folder, sorted by name; each of them is a tool.

    A program is executable, or is described by a block ``/// moryflow`` or by a file beside it; that file is not a program.
    """
    try:
        return sorted(path for path in folder.iterdir() if _is_program(path))
    except OSError:
        return []


def _is_program(path: Path) -> bool:
    if path.suffix in (".py", *MANIFESTS) or path.name.startswith((".", "_")) or path.name.endswith("~"):
        return False
    try:
        if not path.is_file():
            return path.is_symlink() and not exists(path)
        if path.stat().st_mode & 0o111 or any(path.with_suffix(suffix).exists() for suffix in MANIFESTS):
            return True
        with path.open("rb") as file:
            return b"/// moryflow" in file.read(PROGRAM_HEAD)
    except OSError:
        return False


def exists(path: Path) -> bool:
    """Whether something is at `path` that this user can reach: up to Python 3.13 ``Path.exists`` raises in a folder that they
    may not enter.
    """
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    """Whether a file is at `path` that this user can reach; see :func:`exists`."""
    return os.path.isfile(path)  # noqa: PTH113


def leads_nowhere(path: Path) -> str:
    """Return a message if `path`, or a folder above it, is a link to something that does not exist; else an empty text."""
    for place in (path, *path.parents):
        with suppress(PermissionError):  # it may lead somewhere that this user cannot look at
            if place.is_symlink() and not place.exists():
                what = "this" if place == path else str(place)
                return f"{what} is a link that leads nowhere: {place.readlink()}"
    return ""


def open_regular(path: Path | str, *, follow: bool = True) -> BinaryIO:
    """Open a file for reading without blocking, as opening a named pipe would.

    :param follow: whether `path` may be a link.
    :raises OSError: it cannot be opened, or is not an ordinary file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not an ordinary file", str(path))
    return os.fdopen(descriptor, "rb")


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file, which ends with the process; return ``False`` if somebody else has it.

    :raises OSError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def replace_file(path: Path, data: bytes, *, sync: bool = False) -> os.stat_result:
    """Write a file at once or not at all, for the owner alone, and return its status. Its folder must exist.

    Until it is whole it has a random name that ends like its own, so it counts as a secret if the file does.

    :param sync: hold this even after a power cut.
    :raises OSError: it cannot be written; what was there is unchanged.
    """
    import tempfile  # not at module level, because most starts only read

    descriptor, name = tempfile.mkstemp(prefix=".", suffix=f".{path.name}", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            if sync:
                os.fsync(descriptor)
            Path(name).replace(path)
            return os.fstat(descriptor)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


class Doubt(NamedTuple):
    """Why somebody else could have written a file.

    :ivar reason: a clause about the file: ``everybody can write to it``.
    :ivar step: the command that fixes it.
    """

    reason: str
    step: str


def doubt_about(path: Path, opened: os.stat_result | None = None) -> Doubt | None:
    """Return why somebody else could have written the file at `path`; ``None`` if nobody else could.

    Anybody who may write to the file, or to a folder above it or above what it is a link to, can replace it; in a folder with
    the sticky bit, such as ``/tmp``, they can replace only their own files.

    :param opened: the status of the file when it was opened; if another file is at `path` now, that is a doubt.
    :raises OSError: a part of the path cannot be examined.
    """
    written, real = Path(os.path.abspath(path)), Path(os.path.realpath(path, strict=True))  # noqa: PTH100
    status = real.lstat()
    if opened is not None and not os.path.samestat(opened, status):
        return Doubt("it was replaced while it was read", f"ls -l {shlex.quote(str(path))}")
    places = dict.fromkeys((*reversed(written.parents), written, *reversed(real.parents)))
    return next(filter(None, (_doubt(place, place.lstat(), is_last=False) for place in places if place != real)), None) or (
        _doubt(real, status)
    )


def doubt_about_one(path: Path, status: os.stat_result) -> Doubt | None:
    """Do the same as :func:`doubt_about` for `path` alone, without the folders above it."""
    return _doubt(path, status)


def _doubt(place: Path, status: os.stat_result, *, is_last: bool = True) -> Doubt | None:
    mode = status.st_mode
    if status.st_uid not in (0, os.geteuid()):
        what = "it" if is_last else str(place)
        step = f"{'sudo ' if os.geteuid() else ''}chown {'-h ' if stat.S_ISLNK(mode) else ''}$USER {shlex.quote(str(place))}"
        if stat.S_ISDIR(mode) and not os.geteuid():  # it may be the home of that user, which root must not take away
            step = f"run Moryflow as that user: sudo -u '#{status.st_uid}' -H moryflow"
        return Doubt(f"{what} belongs to another user (uid {status.st_uid})", step)
    is_shared = mode & stat.S_IWGRP and not _is_private_group(status.st_gid, os.geteuid())
    if stat.S_ISLNK(mode) or (mode & stat.S_ISVTX and not is_last) or not (mode & stat.S_IWOTH or is_shared):
        return None
    who = "everybody" if mode & stat.S_IWOTH else "its group"
    what = "it" if is_last else f"the folder {place}"
    return Doubt(f"{who} can write to {what}", f"chmod go-w {shlex.quote(str(place))}")


@cache
def _is_private_group(group: int, user: int) -> bool:
    """Whether the group is the user's own, with the user's name and nobody else in it.

    Ubuntu and Fedora give every user such a group, and let it write to what the user creates (umask 002). Root's group is
    not one: on some systems it has administrators in it.
    """
    import grp
    import pwd

    try:
        found, own = grp.getgrgid(group), pwd.getpwuid(user)
    except KeyError:
        return False
    return user != 0 and group == own.pw_gid and found.gr_name == own.pw_name and set(found.gr_mem) <= {own.pw_name}

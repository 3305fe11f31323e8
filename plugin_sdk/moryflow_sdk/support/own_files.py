"""Files that were found: who else could have written them, which cannot be used, and how to open one that may be a trap.

A dangling link counts as a file.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from moryflow_sdk.errors import Diagnostic

LOST_HINT = "put back what it leads to, or remove the link"
"""What helps where :func:`leads_nowhere` says something."""


def own_files(
    folder: Path, suffix: str, *, hidden: tuple[str, ...] = (".",), next_step: str = ""
) -> tuple[list[Path], list[Diagnostic]]:
    """Return the files of `folder` by name, and why it cannot be listed; one that is not there is empty.

    :param hidden: how the names of files begin that are passed over.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == suffix and not path.name.startswith(hidden)), []
    except OSError as error:
        lost = leads_nowhere(folder)
        if not lost and isinstance(error, FileNotFoundError):
            return [], []
        message, step = (lost, LOST_HINT) if lost else (f"the folder cannot be read: {error.strerror}", next_step)
        return [], [Diagnostic(file=str(folder), code="folder_unreadable", message=message, next_step=step)]


MANIFESTS = (".toml", ".json")
"""How the name of a file ends that describes the program beside it: ``weather.toml`` is for ``weather`` and ``weather.sh``."""
PROGRAM_HEAD = 64 * 1024
"""Bytes at the beginning of a program in which a block may describe it."""


def own_programs(folder: Path) -> list[Path]:
    """Return what else in the folder is a tool: programs in other languages than Python, by name.

    They are executable, or are described by a block ``/// moryflow`` or a file beside them; such a file is none itself.
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
            return path.is_symlink() and not path.exists()
        if path.stat().st_mode & 0o111 or any(path.with_suffix(suffix).exists() for suffix in MANIFESTS):
            return True
        with path.open("rb") as file:
            return b"/// moryflow" in file.read(PROGRAM_HEAD)
    except OSError:
        return False


def leads_nowhere(path: Path) -> str:
    """Say that `path`, or a folder above it, is a link to something that is not there; empty where that is not so."""
    for place in (path, *path.parents):
        if place.is_symlink() and not place.exists():
            what = "this" if place == path else str(place)
            return f"{what} is a link that leads nowhere: {place.readlink()}"
    return ""


def open_regular(path: Path | str, *, follow: bool = True) -> BinaryIO:
    """Open a file to read it, without waiting: a named pipe in its place would hold up whoever opens it.

    :param follow: whether it may be a link.
    :raises OSError: it cannot be opened, or is something else than a file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not an ordinary file", str(path))
    return os.fdopen(descriptor, "rb")


class Doubt(NamedTuple):
    """Why somebody else could have written a file.

    :ivar reason: for the end of a sentence about the file: ``everybody can write to it``.
    :ivar step: the command that puts it right.
    """

    reason: str
    step: str


_MOST_LINKS = 40


def doubt_about(path: Path, opened: os.stat_result | None = None) -> Doubt | None:
    """Return why somebody else could have written what is at `path`; ``None`` where nobody could.

    Whoever may write a folder on the way, links followed, can put another file in its place; in a folder with the sticky
    bit, such as ``/tmp``, only in place of their own files.

    :param opened: the file as it was opened; another one at `path` by now is in doubt.
    :raises OSError: a part of the way cannot be looked at.
    """
    way = list(_way(os.path.abspath(path)))  # noqa: PTH100
    last, status = way[-1]
    if opened is not None and not os.path.samestat(opened, status):
        return Doubt("it was replaced while it was read", f"ls -l {shlex.quote(str(path))}")
    return _foreign(way, last) or _writable(way, last)


def doubt_about_one(path: Path, status: os.stat_result) -> Doubt | None:
    """Do the same for `path` alone, without the folders on the way."""
    way = [(str(path), status)]
    return _foreign(way, str(path)) or _writable(way, str(path))


def _foreign(way: Iterable[tuple[str, os.stat_result]], last: str) -> Doubt | None:
    for place, status in way:
        if status.st_uid not in (0, os.geteuid()):
            what = "it" if place == last else place
            dereference = "-h " if stat.S_ISLNK(status.st_mode) else ""
            step = f"chown {dereference}$USER {shlex.quote(place)}"
            return Doubt(f"{what} belongs to another user (uid {status.st_uid})", step)
    return None


def _writable(way: Iterable[tuple[str, os.stat_result]], last: str) -> Doubt | None:
    open_places = {place: status.st_mode for place, status in way if _open_to_others(status, is_last=place == last)}
    if not open_places:
        return None
    place = last if last in open_places else next(iter(open_places))
    who = "everybody" if open_places[place] & stat.S_IWOTH else "its group"
    what = "it" if place == last else f"the folder {place}"
    return Doubt(f"{who} can write to {what}", f"chmod go-w {shlex.join(open_places)}")


def _open_to_others(status: os.stat_result, *, is_last: bool) -> bool:
    mode = status.st_mode
    if stat.S_ISLNK(mode) or (mode & stat.S_ISVTX and not is_last):
        return False
    return bool(mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _is_private_group(status.st_gid, os.geteuid())))


@cache
def _is_private_group(group: int, user: int) -> bool:
    """Whether the group is the user's own, with nobody else in it.

    Ubuntu and Fedora give every user such a group, and let it write to what the user creates (umask 002). Root's group is
    not one: on some systems it has administrators in it.
    """
    import grp
    import pwd

    try:
        found, own = grp.getgrgid(group), pwd.getpwuid(user)
    except KeyError:
        return False
    members = {own.pw_name, *found.gr_mem, *(entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == group)}
    return user != 0 and group == own.pw_gid and found.gr_name == own.pw_name and members == {own.pw_name}


def _way(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every folder, link and file that is looked at on the way to the absolute `path`, the goal last."""
    todo, current, links = path.split("/")[::-1], "/", 0
    yield current, os.lstat(current)
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            current = os.path.dirname(current)  # noqa: PTH120
            continue
        place = f"{current.rstrip('/')}/{name}"
        status = os.lstat(place)
        yield place, status
        if not stat.S_ISLNK(status.st_mode):
            current = place
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(f"{path}: its links are a loop")
        goal = os.readlink(place)  # noqa: PTH115
        current = "/" if goal.startswith("/") else current
        todo.extend(goal.split("/")[::-1])

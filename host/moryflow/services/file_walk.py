"""Reaching an object without following a single link, and making sure it is the one that was judged.

Every walk starts at the root's descriptor and opens one component at a time with ``O_NOFOLLOW``, so a link that
another process puts in the way is an error and never a detour.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from moryflow_sdk import Identity, Target, ToolError

THROUGH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CONTENT = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_CODES = {
    errno.ENOENT: ("not_found", "does not exist", "list the folder with ls, or search with glob"),
    errno.EACCES: ("permission", "may not be opened by this user", ""),
    errno.EPERM: ("permission", "may not be changed by this user", ""),
    errno.EROFS: ("permission", "is on a read-only volume", ""),
    errno.EEXIST: ("exists", "already exists", "choose another name, or delete it first"),
    errno.EISDIR: ("is_directory", "is a folder", "list it with ls"),
    errno.ENOTDIR: ("not_a_directory", "is not a folder", ""),
    errno.ENOTEMPTY: ("not_empty", "is a folder that is not empty", ""),
    errno.ELOOP: ("changed", "has become a link since it was judged", "call the tool again"),
    errno.ENOSPC: ("no_space", "could not be written: no space is left on the device", "free some space, then call again"),
    errno.EDQUOT: ("no_space", "could not be written: the disk quota is used up", "free some space, then call again"),
    errno.EFBIG: ("no_space", "could not be written: it is larger than the limit for files", "write less at once"),
    errno.ENAMETOOLONG: ("invalid_path", "has a name that is too long", "use a shorter name"),
    errno.EXDEV: ("io", "and its destination are on different volumes", "copy it with a shell command"),
    errno.EINVAL: ("io", "cannot be put there", "a folder cannot be moved into itself"),
    errno.ENXIO: ("not_a_file", "is not a regular file", ""),
}


def name_of(target: Target) -> str:
    """Return the name of `target` for messages: the vault-relative one, or the absolute one."""
    return target.text.removeprefix("vault:/").removeprefix("fs:") or "."


def failure(error: OSError, target: Target) -> ToolError:
    """Return `error` as the model reads it."""
    code, what, next_step = _CODES.get(error.errno or 0, ("io", f"could not be used: {error.strerror}", ""))
    return ToolError(f"{name_of(target)} {what}", code=code, next_step=next_step)


def refuse_changed(target: Target) -> NoReturn:
    """Say that the object is no longer the one that was judged."""
    raise ToolError(
        f"{name_of(target)} changed after it was judged; nothing was done", code="changed", next_step="call it again"
    )


def path_of(target: Target) -> str:
    """Return the resolved path of a file target.

    :raises ToolError: it could not be resolved, or is no file.
    """
    if target.error or target.path is None:
        raise ToolError(target.error or f"{target.text} is not a file", code="invalid_path", where=target.given)
    return target.path


def same(status: os.stat_result, identity: Identity) -> bool:
    """Whether `status` is of the object that `identity` names."""
    return (status.st_dev, status.st_ino) == (identity.device, identity.inode)


@contextmanager
def parent_folder(target: Target, path: str | None = None, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder that holds `target` and yield its descriptor and the last name; ``.`` at the root itself.

    :param create: make folders that are missing, and take those away again that stay empty after a failure.
    """
    folder, name = posixpath.split(path or path_of(target))
    with as_tool_errors(target), folder_at(folder, create=create) as descriptor:
        yield descriptor, name or "."


@contextmanager
def as_tool_errors(target: Target) -> Iterator[None]:
    """Turn :class:`OSError` into :class:`ToolError` about `target`."""
    try:
        yield
    except OSError as error:
        raise failure(error, target) from error


@contextmanager
def folder_at(folder: str, *, create: bool = False) -> Iterator[int]:
    """Walk from the root to `folder` and yield a descriptor that other calls can start from."""
    made: list[tuple[int, str]] = []
    descriptor = os.open("/", THROUGH)
    try:
        for name in folder.split("/"):
            if name:
                above, descriptor = descriptor, _enter(descriptor, name, made if create else None)
                os.close(above)
        yield descriptor
    except BaseException:
        _take_back(made)
        raise
    finally:
        os.close(descriptor)
        for holder, _ in made:
            os.close(holder)


def _enter(parent: int, name: str, made: list[tuple[int, str]] | None) -> int:
    """Open folder `name` of `parent`; one that is missing is made and noted in `made`, if that is given."""
    try:
        return _step(parent, name)
    except FileNotFoundError:
        if made is None:
            raise
        with suppress(FileExistsError):  # somebody else has just made it
            os.mkdir(name, dir_fd=parent)
            made.append((os.dup(parent), name))
        return _step(parent, name)


def _step(parent: int, name: str) -> int:
    try:
        return os.open(name, THROUGH, dir_fd=parent)
    except NotADirectoryError:
        # Linux says ENOTDIR for a link too when O_DIRECTORY is given; only a link means that the path has changed.
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


def _take_back(made: list[tuple[int, str]]) -> None:
    for holder, name in reversed(made):
        try:
            os.rmdir(name, dir_fd=holder)
        except OSError:
            return  # somebody uses it by now


def status_at(parent: int, name: str) -> os.stat_result | None:
    """Return what `name` is in the folder `parent`, a link itself included, or nothing."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def judged_status(target: Target, parent: int, name: str) -> os.stat_result | None:
    """Return the status of what is at `target` now, having made sure that it is what was judged.

    :raises ToolError: ``changed`` when it is another object, or is there although it was not, or the reverse.
    """
    status = status_at(parent, name)
    if status is None and target.identity is None:
        return None
    if status is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if target.identity is None or not same(status, target.identity):
        refuse_changed(target)
    return status


def open_content(target: Target, parent: int, name: str) -> int:
    """Open the regular file `name` in `parent` for reading; pipes, sockets and devices are refused, never waited for."""
    status = judged_status(target, parent, name)
    if status is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    refuse_irregular(status, target)
    descriptor = os.open(name, CONTENT, dir_fd=parent)
    opened = os.fstat(descriptor)
    if (opened.st_dev, opened.st_ino) != (status.st_dev, status.st_ino):
        os.close(descriptor)
        refuse_changed(target)
    return descriptor


def refuse_irregular(status: os.stat_result, target: Target) -> None:
    """Raise unless `status` is of a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise failure(OSError(errno.EISDIR, ""), target)
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{name_of(target)} is not a regular file (a device, socket or pipe)", code="not_a_file")


@contextmanager
def held_folder(target: Target) -> Iterator[int]:
    """Open the judged folder itself and yield a descriptor that can be listed."""
    with parent_folder(target) as (parent, name):
        status = judged_status(target, parent, name)
        if status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        descriptor = os.open(name, FOLDER, dir_fd=parent)
    try:
        opened = os.fstat(descriptor)
        if (opened.st_dev, opened.st_ino) != (status.st_dev, status.st_ino):
            refuse_changed(target)
        yield descriptor
    finally:
        os.close(descriptor)

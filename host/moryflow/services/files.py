"""The ``files`` service: it opens, writes, moves and removes exactly the objects that gates judged.

A file is replaced by renaming a complete new one over it; a new file never replaces an object that appeared meanwhile.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from moryflow_sdk import Entry, Identity, Target, ToolError

from moryflow.base.atomic_write import take_over

from .file_walk import (
    FOLDER,
    failure,
    folder_at,
    held_folder,
    judged_status,
    list_folder,
    name_of,
    open_content,
    parent_folder,
    path_of,
    present_status,
    refuse_changed,
    refuse_irregular,
    walk_files,
)
from .paths import PathResolver

# Held from the last check of an object to its replacement or removal: if two agents of this process change one file at the
# same moment, the second gets an error.
_SWAP = threading.Lock()
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class VaultFiles:
    """Implements :class:`moryflow_sdk.services.Files` for one vault.

    :param home: Moryflow's own folder; this service never changes anything in it.
    :param user_home: the folder that ``~`` stands for.
    :param case_sensitive: whether the vault's volume distinguishes ``A`` from ``a``; found by a test if not given.
    """

    def __init__(self, vault: Path, home: Path, user_home: Path, *, case_sensitive: bool | None = None) -> None:
        self._paths = PathResolver(vault, user_home, case_sensitive=case_sensitive)
        self._home = self._paths.follow(str(home.absolute())).path

    @property
    def case_sensitive(self) -> bool:
        return self._paths.case_sensitive

    def resolve(self, path: str, *, domain: str = "read", base: str | None = None, as_stored: bool = False) -> Target:
        return self._paths.resolve(path, domain=domain, base=base, as_stored=as_stored)

    def unsaved(self, target: Target) -> bool:
        """Whether the content last read of `target` differs from the disk: never here, since everything is read from disk."""
        return False

    @contextmanager
    def open(self, target: Target) -> Iterator[BinaryIO]:
        with parent_folder(target) as (parent, name):
            descriptor = open_content(target, parent, name)
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def read(self, target: Target, *, limit: int = 64 * 1024 * 1024) -> bytes:
        with self.open(target) as file:
            size = os.fstat(file.fileno()).st_size
            content = file.read(limit + 1) if size <= limit else b""
        if size > limit or len(content) > limit:
            raise ToolError(
                f"{name_of(target)} has {max(size, len(content)):,} bytes; the limit is {limit:,}",
                code="too_large",
                next_step="read a part of it with offset and limit, or search it with grep",
            )
        return content

    def write(self, target: Target, data: bytes, *, create_parents: bool = True, mode: int | None = None) -> Target:
        """Replace or create a regular file atomically; return its target with the new identity."""
        self._refuse_home(target)
        if target.identity is None:
            self._refuse_lost_vault(path_of(target))
        return write_file(target, data, create_parents=create_parents, mode=mode)

    def remove(self, target: Target, *, recursive: bool = False) -> None:
        self._refuse_home(target)
        link = self._link(target)
        if link is None:
            self._refuse_container(target)
        remove_entry(target, link, recursive=recursive)

    def move(self, source: Target, destination: Target) -> None:
        self._refuse_home(source, destination)
        self._refuse_container(source)
        move_entry(source, destination, self._link(source))

    def entries(self, target: Target, *, ignore: bool = False) -> list[Entry]:
        return list_folder(target, ignore=ignore)

    def walk(self, target: Target, *, ignore: bool = True) -> Iterator[tuple[str, Entry]]:
        return walk_files(target, ignore=ignore)

    def folder(self, target: Target) -> AbstractContextManager[int]:
        return held_folder(target)

    def _link(self, target: Target) -> str | None:
        """Return the path of the link that `target` was given as, or ``None`` if it was not given as a link.

        Removing or moving a link means the link itself. A link that is reached through another link is refused, because
        the gates did not judge its real path.
        """
        path = self._paths.lexical_path(target)
        if path is None or not Path(path).is_symlink():
            return None
        folder, name = os.path.split(path)
        try:
            with folder_at(folder) as parent:
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError:
            status = None
        if status is None or not stat.S_ISLNK(status.st_mode) or self._paths.follow(path).path != target.path:
            raise ToolError(
                f"{target.given} is a link in a folder that is reached through another link",
                code="changed",
                next_step="name the link by its own path",
            )
        self._refuse_home_path(path, target)
        return path

    def _in_home(self, path: str) -> bool:
        return path == self._home or path.startswith(self._home + "/")

    def _refuse_home(self, *targets: Target) -> None:
        """Refuse to change the host's own folder: it is closed to every tool in every mode, even if a gate is missing."""
        for target in targets:
            self._refuse_home_path(path_of(target), target)

    def _refuse_home_path(self, path: str, target: Target) -> None:
        if self._in_home(path):
            raise ToolError(f"{name_of(target)} belongs to Moryflow itself and is not changed by tools", code="permission")

    def _refuse_lost_vault(self, path: str) -> None:
        """Refuse to recreate a vault that was moved or removed: the new file would be apart from all the others."""
        vault = self._paths.vault
        if path.startswith(vault.rstrip("/") + "/") and not Path(vault).is_dir():
            raise ToolError(
                f"the vault no longer exists: {vault}",
                code="not_found",
                next_step="put it back, or end here and work in another folder",
            )

    def _refuse_container(self, target: Target) -> None:
        path = path_of(target)
        for kept in (self._paths.vault, self._home):
            if kept == path or kept.startswith(path.rstrip("/") + "/"):
                raise ToolError(f"{name_of(target)} holds the vault or Moryflow's own folder and stays", code="permission")


def write_file(target: Target, data: bytes, *, create_parents: bool, mode: int | None = None) -> Target:
    """Replace or create `target` with `data`; return it with its new identity. Only a new file gets `mode`.

    Readers see the old content or the new, never a part; another name of a hard-linked file keeps the old content.
    """
    with parent_folder(target, create=create_parents and target.identity is None) as (parent, name):
        old = judged_status(target, parent, name)
        if old:
            refuse_irregular(old, target)
            _refuse_read_only(parent, name)
        with _temporary(parent, data, old, mode) as (temporary, written):
            _refuse_moved_folder(target, parent)
            if old is not None:
                _keep_attributes(parent, name, temporary)
            if old is None:
                _create(target, parent, temporary, name)
            else:
                with _SWAP:
                    judged_status(target, parent, name)
                    os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        _sync_folder(parent)
    return target.replace(identity=Identity(device=written.st_dev, inode=written.st_ino))


@contextmanager
def _temporary(parent: int, data: bytes, old: os.stat_result | None, mode: int | None) -> Iterator[tuple[str, os.stat_result]]:
    """Write `data` to a random file of mode 0600 in `parent`, give it its final mode, and clean up after a failure."""
    name = f".moryflow-{secrets.token_hex(8)}.tmp"
    descriptor = os.open(name, NEW, 0o600, dir_fd=parent)
    try:
        try:
            _write_all(descriptor, data)
            if old:
                take_over(descriptor, old)
            else:
                os.fchmod(descriptor, 0o666 & ~_umask() if mode is None else mode & 0o777)
            os.fsync(descriptor)
            written = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        yield name, written
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)


def _keep_attributes(parent: int, name: str, temporary: str) -> None:
    """Give the new file the access list and the user's attributes of the old one. Without the access list, the mode of a file
    that was shared with one person would open it to a group.
    """
    if not hasattr(os, "listxattr"):
        return
    folder = f"/proc/self/fd/{parent}"
    with suppress(OSError):
        for attribute in os.listxattr(f"{folder}/{name}", follow_symlinks=False):
            if is_kept(attribute):
                value = os.getxattr(f"{folder}/{name}", attribute, follow_symlinks=False)
                os.setxattr(f"{folder}/{temporary}", attribute, value, follow_symlinks=False)


def is_kept(attribute: str) -> bool:
    """Whether a replaced file keeps this extended attribute: the access list and the user's attributes are kept."""
    return attribute == "system.posix_acl_access" or attribute.startswith("user.")


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _umask() -> int:
    """Return the process's umask. Reading it with ``os.umask`` means setting it, which other threads would notice."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0o022
    line = next((line for line in lines if line.startswith("Umask:")), "Umask: 0022")
    return int(line.split()[1], 8)


def _refuse_read_only(parent: int, name: str) -> None:
    """Refuse to replace a read-only file: a rename would do so, while writing to the file in place would fail."""
    if not os.access(name, os.W_OK, dir_fd=parent):
        os.stat(name, dir_fd=parent, follow_symlinks=False)  # if the file is gone, that error is raised instead
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def _refuse_moved_folder(target: Target, parent: int) -> None:
    """Refuse if another process moved the folder away while its descriptor was held."""
    folder = (target.path or "/").rpartition("/")[0]
    with folder_at(folder) as again:
        if not os.path.samestat(os.fstat(again), os.fstat(parent)):
            refuse_changed(target)


def _create(target: Target, parent: int, temporary: str, name: str) -> None:
    try:
        os.link(temporary, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
    except FileExistsError:
        refuse_changed(target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        # The volume has no hard links.
        judged_status(target, parent, name)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)


def _sync_folder(parent: int) -> None:
    with suppress(OSError):
        descriptor = os.open(".", FOLDER, dir_fd=parent)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def move_entry(source: Target, destination: Target, link: str | None) -> None:
    """Rename `source`, or the link at the path `link` that led to it, to `destination`, which must not exist."""
    if destination.identity is not None:
        raise failure(FileExistsError(errno.EEXIST, ""), destination)
    with parent_folder(source, link) as (parent, name):
        status = _status(source, link, parent, name)
        with parent_folder(destination, create=True) as (into, new):
            judged_status(destination, into, new)
            if stat.S_ISDIR(status.st_mode):
                os.rename(name, new, src_dir_fd=parent, dst_dir_fd=into)
            else:
                _link_then_unlink(source, status, (parent, name), (into, new))


def _status(target: Target, link: str | None, parent: int, name: str) -> os.stat_result:
    """Return the status of the object to move or remove: the judged object, or the link that named it."""
    if link is None:
        return present_status(target, parent, name)
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        refuse_changed(target)
    return status


def _link_then_unlink(source: Target, status: os.stat_result, old: tuple[int, str], new: tuple[int, str]) -> None:
    """Move a file without replacing anything: link the new name, check it, then remove the old name."""
    try:
        os.link(old[1], new[1], src_dir_fd=old[0], dst_dir_fd=new[0], follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        os.rename(old[1], new[1], src_dir_fd=old[0], dst_dir_fd=new[0])
        return
    linked = os.stat(new[1], dir_fd=new[0], follow_symlinks=False)
    if not os.path.samestat(linked, status):
        os.unlink(new[1], dir_fd=new[0])
        refuse_changed(source)
    os.unlink(old[1], dir_fd=old[0])


def remove_entry(target: Target, link: str | None, *, recursive: bool) -> None:
    """Remove `target`, or the link at the path `link` that led to it; a folder only when empty or `recursive`."""
    with parent_folder(target, link) as (parent, name):
        with _SWAP:
            status = _status(target, link, parent, name)
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=parent)
                return
        if name == ".":
            raise ToolError("the root folder is not removed", code="permission")
        if recursive:
            _remove_contents(parent, name, status)
        os.rmdir(name, dir_fd=parent)


def _remove_contents(parent: int, name: str, expected: os.stat_result) -> None:
    """Remove everything in a folder, depth first, by descriptors only: a link is removed, never entered."""
    descriptor = os.open(name, FOLDER, dir_fd=parent)
    try:
        if not os.path.samestat(os.fstat(descriptor), expected):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        with os.scandir(descriptor) as found:
            entries = [(entry.name, entry.stat(follow_symlinks=False)) for entry in found]
        for entry, status in entries:
            if stat.S_ISDIR(status.st_mode):
                _remove_contents(descriptor, entry, status)
                os.rmdir(entry, dir_fd=descriptor)
            else:
                os.unlink(entry, dir_fd=descriptor)
    finally:
        os.close(descriptor)

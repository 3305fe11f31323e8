"""Opens an object without following any link, checks that it is the one that was judged, and lists what is below a folder.

Every walk starts at the root's descriptor and opens one component at a time with ``O_NOFOLLOW``. A link that another process
puts in the way is therefore an error, never a detour. Lists show links and do not follow them.

Ignore files are read as ``rg`` reads them: the nearest file comes first, the last matching line of a file wins, any
``.ignore`` comes before every ``.gitignore``, and an excluded folder is not entered, so no line can include a file below it.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from moryflow_sdk import Entry, Identity, Target, ToolError

from .paths import printable

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
    """Return `error` as an error about `target` for the model."""
    code, what, next_step = _CODES.get(error.errno or 0, ("io", f"could not be used: {error.strerror}", ""))
    return ToolError(f"{name_of(target)} {what}", code=code, next_step=next_step)


def refuse_changed(target: Target) -> NoReturn:
    """Raise the error that the object is no longer the one that was judged."""
    raise ToolError(
        f"{name_of(target)} changed after it was judged; nothing was done", code="changed", next_step="call it again"
    )


def path_of(target: Target) -> str:
    """Return the resolved path of a file target.

    :raises ToolError: it could not be resolved, or is not a file.
    """
    if target.error or target.path is None:
        raise ToolError(target.error or f"{target.text} is not a file", code="invalid_path", where=target.given)
    return target.path


def same(status: os.stat_result, identity: Identity) -> bool:
    """Whether `status` is of the object that `identity` names."""
    return (status.st_dev, status.st_ino) == (identity.device, identity.inode)


@contextmanager
def parent_folder(target: Target, path: str | None = None, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder that contains `target`; yield its descriptor and the last name, which is ``.`` for the root.

    :param create: make missing folders; they stay after a failure.
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
    descriptor = os.open("/", THROUGH)
    try:
        for name in folder.split("/"):
            if name:
                above, descriptor = descriptor, _enter(descriptor, name, create=create)
                os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(parent: int, name: str, *, create: bool) -> int:
    try:
        return _open_folder(parent, name)
    except FileNotFoundError:
        if not create:
            raise
        with suppress(FileExistsError):  # another process has just made it
            os.mkdir(name, dir_fd=parent)
        return _open_folder(parent, name)


def _open_folder(parent: int, name: str) -> int:
    try:
        return os.open(name, THROUGH, dir_fd=parent)
    except NotADirectoryError:
        # Linux says ENOTDIR for a link too when O_DIRECTORY is given; only a link means that the path has changed.
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


def judged_status(target: Target, parent: int, name: str) -> os.stat_result | None:
    """Return the status of the object at `target`, checked to be the judged one; ``None`` if there was and is no object.

    :raises FileNotFoundError: the judged object is gone.
    :raises ToolError: ``changed`` if it is another object, or if there was none when the target was judged.
    """
    try:
        return present_status(target, parent, name)
    except FileNotFoundError:
        if target.identity is not None:
            raise
        return None


def present_status(target: Target, parent: int, name: str) -> os.stat_result:
    """Return the status of the object at `target`, which must exist and be the judged one.

    :raises FileNotFoundError: there is no object.
    :raises ToolError: ``changed`` if it is another object, or if there was none when the target was judged.
    """
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if target.identity is None or not same(status, target.identity):
        refuse_changed(target)
    return status


def open_content(target: Target, parent: int, name: str) -> int:
    """Open the regular file `name` in `parent` for reading; refuse pipes, sockets and devices without waiting for them."""
    status = present_status(target, parent, name)
    refuse_irregular(status, target)
    descriptor = os.open(name, CONTENT, dir_fd=parent)
    if not os.path.samestat(os.fstat(descriptor), status):
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
        status = present_status(target, parent, name)
        descriptor = os.open(name, FOLDER, dir_fd=parent)
    try:
        if not os.path.samestat(os.fstat(descriptor), status):
            refuse_changed(target)
        yield descriptor
    finally:
        os.close(descriptor)


# Folders nested deeper than this are left out, since each level holds a descriptor.
MAX_DEPTH = 100


def list_folder(target: Target, *, ignore: bool) -> list[Entry]:
    """Return the entries of the folder `target`, sorted by name."""
    with held_folder(target) as folder:
        with os.scandir(folder) as found:
            items = sorted(found, key=lambda item: item.name)
        if ignore:
            ignores = ignores_above(path_of(target)).entering(folder, {item.name for item in items})
            items = [item for item in items if not ignores.excludes(item.name, item.name, item.is_dir(follow_symlinks=False))]
        return [_entry(item) for item in items]


def walk_files(target: Target, *, ignore: bool) -> Iterator[tuple[str, Entry]]:
    """Yield ``(relative path, entry)`` of every regular file below `target`."""
    for path, item in _walk(target, ignore):
        with suppress(FileNotFoundError):
            yield printable(path), _entry(item)


_Found = Iterator[tuple[str, os.DirEntry[str]]]


def _walk(target: Target, ignore: bool) -> _Found:
    with held_folder(target) as folder:
        yield from _below(folder, "", ignores_above(path_of(target)) if ignore else None, 0)


def _below(folder: int, prefix: str, ignores: Ignores | None, depth: int) -> _Found:
    """Walk an open folder; a folder below it that is gone or cannot be read is left out."""
    try:
        with os.scandir(folder) as found:
            items = sorted(found, key=lambda item: item.name)
    except OSError:
        return
    if ignores is not None:
        ignores = ignores.entering(folder, {item.name for item in items}, cut=len(prefix))
    for item in items:
        path, is_folder = prefix + item.name, item.is_dir(follow_symlinks=False)
        if ignores is not None and ignores.excludes(path, item.name, is_folder):
            continue
        if is_folder and depth < MAX_DEPTH:
            try:
                below = os.open(item.name, FOLDER, dir_fd=folder)
            except OSError:
                continue
            try:
                yield from _below(below, path + "/", ignores, depth + 1)
            finally:
                os.close(below)
        elif item.is_file(follow_symlinks=False):
            yield path, item


def _entry(item: os.DirEntry[str]) -> Entry:
    kind: Literal["file", "dir", "link", "other"] = "other"
    if item.is_symlink():
        kind = "link"
    elif item.is_dir(follow_symlinks=False):
        kind = "dir"
    elif item.is_file(follow_symlinks=False):
        kind = "file"
    try:
        status = item.stat(follow_symlinks=False)
    except OSError:
        return Entry(name=printable(item.name), kind=kind)
    return Entry(name=printable(item.name), kind=kind, size=status.st_size, modified=status.st_mtime)


NAMES = (".ignore", ".gitignore")
# Folders that are never searched: git's own, and stored outputs, whose search results would be stored there again.
ALWAYS = frozenset({".git", ".agent-output"})

MAX_BYTES = 1024 * 1024
# The pattern for the line `*/`. pathspec's own one matches the first slash of a path, which belongs to a folder above.
EVERY_FOLDER = re.compile(r".*(?P<ps_d>/)$")

# A line with more `*` between two slashes is ignored: its regular expression could take practically forever.
MAX_STARS = 4


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """The lines of one ignore file. ``lead + path[cut:]`` makes a path relative to the file's folder."""

    lead: str
    cut: int
    lines: tuple[tuple[re.Pattern[str], bool], ...]
    any_line: re.Pattern[str]

    def verdict(self, path: str, folder: bool) -> bool | None:
        """Return whether `path` is excluded; ``False`` if a line includes it again, ``None`` if no line matches it."""
        path = f"{self.lead}{path[self.cut :]}{'/' if folder else ''}"
        if not self.any_line.search(path):
            return None
        return next((out for line, out in reversed(self.lines) if _matches(line, path, folder)), None)


@dataclass(frozen=True, slots=True)
class Ignores:
    """All ignore files that apply to one folder, nearest first, one tuple for each of :data:`NAMES`."""

    files: tuple[tuple[IgnoreFile, ...], ...] = ((), ())

    def excludes(self, path: str, name: str, folder: bool) -> bool:
        """Return whether the entry at `path` (relative to where the walk began) is excluded."""
        if name in ALWAYS:
            return True
        for kind in self.files:
            for file in kind:
                verdict = file.verdict(path, folder)
                if verdict is not None:
                    return verdict
        return False

    def entering(self, folder: int, names: Iterable[str], *, lead: str = "", cut: int = 0) -> Ignores:
        """Return the ignore files that apply below `folder`, whose entries are called `names`."""
        present = [name in names for name in NAMES]
        if not any(present):
            return self
        found = [_read(folder, name, lead, cut) if there else None for name, there in zip(NAMES, present, strict=True)]
        return Ignores(tuple((new, *old) if new else old for new, old in zip(found, self.files, strict=True)))


def ignores_above(path: str) -> Ignores:
    """Return the ignore files of the folders above `path`."""
    ignores, below = Ignores(), path.strip("/").split("/")
    for depth in range(len(below)):
        lead = "/".join(below[depth:]) + "/"
        try:
            with folder_at(posixpath.join("/", *below[:depth])) as folder:
                ignores = ignores.entering(folder, NAMES, lead=lead)
        except OSError:
            continue
    return ignores


def _matches(line: re.Pattern[str], path: str, folder: bool) -> bool:
    """Return whether `line` matches `path` itself. A match of a folder above does not count: that one would not be entered."""
    match = line.match(path)
    if match is None:
        return False
    if "ps_d" in line.groupindex:
        return match.end("ps_d") in (-1, len(path))
    return not folder or line.match(path[:-1]) is not None


def _read(folder: int, name: str, lead: str, cut: int) -> IgnoreFile | None:
    try:
        descriptor = os.open(name, CONTENT, dir_fd=folder)
    except OSError:
        return None
    try:
        content = os.read(descriptor, MAX_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)
    return _compile(content.decode("utf-8", "replace").removeprefix("\ufeff"), lead, cut)


def _compile(text: str, lead: str, cut: int) -> IgnoreFile | None:
    lines = tuple(found for line in text.splitlines() if (found := _line(line)))
    if not lines:
        return None
    any_line = "|".join(f"(?:{line.pattern.replace('?P<ps_d>', '?:')})" for line, _ in lines)
    return IgnoreFile(lead, cut, lines, re.compile(any_line))


def _line(line: str) -> tuple[re.Pattern[str], bool] | None:
    """Return the pattern of one line and whether it excludes; ``None`` for a comment or an invalid line."""
    from pathspec import GitIgnoreSpec

    if not line or line.startswith("#") or any(part.count("*") > MAX_STARS for part in line.split("/")):
        return None
    try:
        pattern: Any = GitIgnoreSpec.from_lines([line]).patterns[0]
    except ValueError:
        return None
    if pattern.regex is None:
        return None
    regex = EVERY_FOLDER if pattern.regex.pattern == "(?P<ps_d>/)" else pattern.regex
    return regex, bool(pattern.include)

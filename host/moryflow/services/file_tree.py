"""List and walk folders by descriptor, without what ``.gitignore`` and ``.ignore`` leave out.

Links are shown, never followed. Ignore files are read as ``rg`` reads them: the nearest file speaks first, the last matching
line of a file wins, any ``.ignore`` speaks before every ``.gitignore``, and a folder that is left out is not entered, so
nothing in it can be taken back.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from moryflow_sdk import Entry, Target

from .file_walk import CONTENT, FOLDER, folder_at, held_folder, path_of
from .paths import printable

MAX_DEPTH = 100
"""Folders nested deeper are left out; each level holds a descriptor."""


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
    for path, _, item in _walk(target, ignore):
        with suppress(FileNotFoundError):
            yield printable(path), _entry(item)


def read_files(
    target: Target, wanted: Callable[[str], bool] | None, *, ignore: bool, limit: int
) -> Iterator[tuple[str, bytes]]:
    """Yield ``(relative path, content)`` of the files of at most `limit` bytes for which `wanted(path)` holds."""
    for path, folder, item in _walk(target, ignore):
        shown = printable(path)
        if wanted is not None and not wanted(shown):
            continue
        content = _content(folder, item.name, limit)
        if content is not None:
            yield shown, content


def _content(folder: int, name: str, limit: int) -> bytes | None:
    try:
        descriptor = os.open(name, CONTENT, dir_fd=folder)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        return os.read(descriptor, status.st_size)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _walk(target: Target, ignore: bool) -> Iterator[tuple[str, int, os.DirEntry[str]]]:
    with held_folder(target) as folder:
        yield from _below(folder, "", ignores_above(path_of(target)) if ignore else None, 0)


def _below(folder: int, prefix: str, ignores: Ignores | None, depth: int) -> Iterator[tuple[str, int, os.DirEntry[str]]]:
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
            yield from _enter(folder, item.name, path + "/", ignores, depth + 1)
        elif item.is_file(follow_symlinks=False):
            yield path, folder, item


def _enter(
    parent: int, name: str, prefix: str, ignores: Ignores | None, depth: int
) -> Iterator[tuple[str, int, os.DirEntry[str]]]:
    """Walk one folder further; one that has gone, or may not be read, is left out."""
    try:
        folder = os.open(name, FOLDER, dir_fd=parent)
    except OSError:
        return
    try:
        yield from _below(folder, prefix, ignores, depth)
    finally:
        os.close(folder)


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
ALWAYS = frozenset({".git", ".agent-output"})
"""Never searched: the repository's own store, and stored outputs, which would come back in a circle."""

MAX_BYTES = 1024 * 1024
EVERY_FOLDER = re.compile(r".*(?P<ps_d>/)$")
"""What ``*/`` means; pathspec searches for the first slash, which is a folder above."""

MAX_STARS = 4
"""A line with more ``*`` between two slashes is not used: it could take a regular expression for ever."""


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """The lines of one file. A path is made relative to its folder by ``lead + path[cut:]``."""

    lead: str
    cut: int
    lines: tuple[tuple[re.Pattern[str], bool], ...]
    any_line: re.Pattern[str]

    def verdict(self, path: str, folder: bool) -> bool | None:
        """Whether `path` is left out (true), taken back (false), or not mentioned."""
        path = f"{self.lead}{path[self.cut :]}{'/' if folder else ''}"
        if not self.any_line.search(path):
            return None
        return next((out for line, out in reversed(self.lines) if _names(line, path, folder)), None)


@dataclass(frozen=True, slots=True)
class Ignores:
    """All ignore files that hold in one folder, nearest first, one list for each of :data:`NAMES`."""

    files: tuple[tuple[IgnoreFile, ...], ...] = ((), ())

    def excludes(self, path: str, name: str, folder: bool) -> bool:
        """Whether the entry at `path` (relative to where the walk began) is left out."""
        if name in ALWAYS:
            return True
        for kind in self.files:
            for file in kind:
                verdict = file.verdict(path, folder)
                if verdict is not None:
                    return verdict
        return False

    def entering(self, folder: int, names: Iterable[str], *, lead: str = "", cut: int = 0) -> Ignores:
        """Return what holds below `folder`, whose entries are called `names`."""
        present = [name in names for name in NAMES]
        if not any(present):
            return self
        found = [_read(folder, name, lead, cut) if there else None for name, there in zip(NAMES, present, strict=True)]
        return Ignores(tuple((new, *old) if new else old for new, old in zip(found, self.files, strict=True)))


def ignores_above(path: str) -> Ignores:
    """Return what the folders above `path` say about what is below it."""
    ignores, below = Ignores(), path.strip("/").split("/")
    for depth in range(len(below)):
        lead = "/".join(below[depth:]) + "/"
        try:
            with folder_at(posixpath.join("/", *below[:depth])) as folder:
                ignores = ignores.entering(folder, NAMES, lead=lead)
        except OSError:
            continue
    return ignores


def _names(line: re.Pattern[str], path: str, folder: bool) -> bool:
    """Whether `line` names `path` itself and not only a folder above it, which would not have been entered."""
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
    """Return the expression of one line and whether it leaves out; nothing for a comment or a broken line."""
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

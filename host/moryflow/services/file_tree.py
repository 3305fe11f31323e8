"""Listing and walking folders by descriptor: links are shown, never followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal

from moryflow_sdk import Entry, Target

from .file_ignore import Ignores, ignores_above
from .file_walk import CONTENT, FOLDER, held_folder, path_of
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

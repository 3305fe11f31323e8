"""The state on disk of the files that a generation is made from, and which of them were saved since it was loaded."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .consent import items
from .entry_points import CODE_FOLDERS, TEXT_FOLDERS

HOME_FILES = ("config.jsonc", "consents.json", "secrets.json")
_SUFFIXES = (".py", ".md", ".toml", ".jsonc", ".json", ".pth", ".txt")

FileStates = dict[Path, tuple[int, int]]


def file_states(home: Path, written: Iterable[Path]) -> FileStates:
    """Return what changes with each file that a generation is made from, in the home and in the paths `written`.

    The time is that of the last change of content, owner or mode: a file that others may write to allows less. A folder has
    only the latter two, because other files in it change at every turn.
    """
    roots = (*map(home.joinpath, (*TEXT_FOLDERS, *items(home))), *written)
    own = (home, *map(home.joinpath, (*HOME_FILES, *CODE_FOLDERS)))
    states: FileStates = {}
    for path in (*own, *(path for root in roots for path in _sources(root))):
        with suppress(OSError):  # it does not exist, or was just removed
            found = path.stat()
            is_folder = stat.S_ISDIR(found.st_mode)
            states[path] = (found.st_mode, found.st_uid) if is_folder else (found.st_ctime_ns, found.st_size)
    return states


class FilesSeen(NamedTuple):
    """What a generation was loaded from: the files of the home right before, and when that was, in nanoseconds."""

    home: Path
    states: FileStates
    at: int

    def changed(self, now: FileStates) -> list[Path]:
        """Return the files that changed since, compared with their states `now`; new folders alone change nothing.

        Which files elsewhere count is known only after loading, so there the time of the last change decides.
        """
        found = [path for path in self.states if path not in now]
        for path, state in now.items():
            known = self.states.get(path)
            if known is None and path.is_dir():
                continue
            if state != known if path.is_relative_to(self.home) else state[0] >= self.at:
                found.append(path)
        return found


# How far the clock for the times of files may be behind the exact clock, in nanoseconds.
_CLOCK_NS = 20_000_000


def files_seen(home: Path) -> FilesSeen:
    """Return the state of the files in `home`; to be called right before they are read."""
    return FilesSeen(home, file_states(home, ()), time.time_ns() - _CLOCK_NS)


_NOT_WRITTEN = ("__pycache__", "node_modules")


def _sources(root: Path) -> Iterator[Path]:
    """Yield the files below `root` that may be part of a generation, and their folders, or `root` itself if it is a file."""
    if not root.is_dir():
        yield root
    for folder, names, leaves in os.walk(root):
        if "pyvenv.cfg" in leaves and folder != str(root):  # a virtual environment
            names.clear()
            continue
        names[:] = [name for name in names if name not in _NOT_WRITTEN and not name.startswith(".")]
        yield Path(folder)
        yield from (Path(folder, leaf) for leaf in leaves if is_source(f"{folder}/{leaf}"))


def is_source(path: str) -> bool:
    """Whether a change of this file may matter. Editors' temporary files and byte code do not."""
    folder, _, name = path.rpartition("/")
    hidden = name.startswith((".", "#", "~")) or name.endswith(("~", "#"))
    is_folder = name in (*CODE_FOLDERS, *TEXT_FOLDERS)  # a link to one counts as a file
    return not hidden and (is_folder or name.endswith(_SUFFIXES) or folder.endswith("/tools")) and "/__pycache__/" not in path

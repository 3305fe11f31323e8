"""Which repository git would use in a folder: its configuration can name programs that git runs.

Git looks in the folder and in each one above it: for ``.git``, then whether the folder is a git directory itself. What
is looked for here is a little wider than what git accepts, so that no repository of git's is missed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from moryflow_sdk.git_files import read_start

_LONGEST_LINK = 8192
_LONGEST_INDEX = 1 << 30
"""How much of a ``.git`` file is read; git itself refuses a longer path."""


def strange_repository(folder: str, vault: str) -> str:
    """Return the git directory that git would use in `folder` when it is not the vault's own; empty when it is."""
    own = repository(Path(vault))
    found = repository(Path(folder))
    if found is None:
        return ""
    root = Path(vault).resolve()
    if found != own and not (own is not None and _is_worktree_of(found, own)):
        return str(found)
    planted = found.is_relative_to(root) and not found.is_relative_to(root / ".git")
    return str(found) if planted else ""


def repository(folder: Path) -> Path | None:
    """Return the git directory that git would use in `folder`, links followed; ``None`` where there is none."""
    try:
        resolved = folder.resolve()
        return next(filter(None, map(_repository_at, (resolved, *resolved.parents))), None)
    except (OSError, RuntimeError):
        return folder  # it cannot be read, so it counts as foreign


def _repository_at(folder: Path) -> Path | None:
    dot = folder / ".git"
    if dot.is_file():
        return _linked(dot)
    if _looks_like_git_directory(dot):
        return dot.resolve()
    return folder if _looks_like_git_directory(folder) else None


def _linked(file: Path) -> Path:
    """Return where a ``.git`` file leads; the file itself when it says nothing that git would follow."""
    with file.open("rb") as stream:
        text = stream.read(_LONGEST_LINK).decode("utf-8", "surrogateescape")
    mark, _, goal = text.partition(":")
    goal = goal.strip("\r\n").lstrip(" ")
    return (file.parent / goal).resolve() if mark == "gitdir" and goal and "\0" not in goal else file


def _looks_like_git_directory(folder: Path) -> bool:
    """Whether ``HEAD`` is there, which may be a link that leads nowhere, and any of what git wants beside it."""
    return _is_there(folder / "HEAD") and any(_is_there(folder / name) for name in ("commondir", "objects", "refs"))


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _is_worktree_of(found: Path, own: Path) -> bool:
    """Whether `found` is a further worktree of the repository `own`, whose configuration it shares."""
    return found.parent == own / "worktrees"


def tracked_paths(folder: Path) -> Callable[[Path], bool] | None:
    """Return what tells whether git tracks a path, for the repository that `folder` is in; ``None`` where nothing can."""
    found = repository(folder)
    if found is None or found.name != ".git":
        return None
    try:
        index = read_start(found / "index", _LONGEST_INDEX)
    except FileNotFoundError:
        return lambda _: False
    except OSError:
        return None
    readable = index[:4] == b"DIRC" and index[4:8] in (b"\0\0\0\2", b"\0\0\0\3") and b"link" not in index[-4096:]
    return (lambda path: _is_entry(index, os.fsencode(path.relative_to(found.parent)))) if readable else None


def _is_entry(index: bytes, name: bytes) -> bool:
    """Whether an index has an entry `name`, or entries below it.

    Before the name stand its length and, in entries with more flags, two bytes more.
    """
    place = index.find(name)
    while place >= 0:
        length = index.find(b"\0", place) - place
        end = place + len(name)
        for back in (2, 4) if index[end : end + 1] in (b"\0", b"/") else ():
            flags = int.from_bytes(index[place - back : place - back + 2], "big")
            if flags & 0xFFF == min(length, 0xFFF) and bool(flags & 0x4000) == (back == 4):
                return True
        place = index.find(name, place + 1)
    return False

"""Which repository git would use in a folder: its configuration can name programs that git runs.

Git looks in the folder and in each one above it: for ``.git``, then whether the folder is a git directory itself. What
is looked for here is a little wider than what git accepts, so that no repository of git's is missed.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from moryflow_sdk.support.git_files import read_start

from .git_objects import FAILURES, GitUnknown
from .words import Arg

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


def index_entries(git: Path) -> dict[str, str]:
    """Return the paths in the index of a git directory with the hashes of their content; none for what is not merged.

    :raises Unknown: it is not understood.
    """
    try:
        data = read_start(git / "index", _LONGEST_INDEX)
    except FileNotFoundError:
        return {}
    mark, version, count = struct.unpack_from(">4sII", data)
    if mark != b"DIRC" or version not in (2, 3, 4):
        raise GitUnknown("the index is of another version")
    found: dict[str, str] = {}
    place, name = 12, b""
    for _ in range(count):
        flags = int.from_bytes(data[place + 60 : place + 62], "big")
        start, kept = place + (64 if flags & 0x4000 else 62), 0
        if version == 4:
            start, dropped = _number(data, start)
            kept = len(name) - dropped
        end = data.index(b"\0", start)
        name = name[:kept] + data[start:end]
        found[os.fsdecode(name)] = "" if flags & 0x3000 else data[place + 40 : place + 60].hex()
        place = end + 1 if version == 4 else place + (end - place + 8 & ~7)
    while place < len(data) - 20:  # extensions: in a split or sparse index entries are elsewhere
        if data[place : place + 4] in (b"link", b"sdir"):
            raise GitUnknown("the index is in parts")
        place += 8 + int.from_bytes(data[place + 4 : place + 8], "big")
    if place != len(data) - 20:
        raise GitUnknown("the index is not understood")
    return found


def _number(data: bytes, start: int) -> tuple[int, int]:
    """Return where a number of variable length ends, and the number."""
    value = data[start] & 127
    while data[start] & 128:
        start += 1
        value = (value + 1 << 7) | data[start] & 127
    return start + 1, value


def tracked_paths(folder: Path) -> Callable[[Path], bool] | None:
    """Return what tells whether git tracks a path, for the repository that `folder` is in; ``None`` where nothing can."""
    found = repository(folder)
    if found is None or found.name != ".git":
        return None
    try:
        names = {name: None for path in index_entries(found) for name in (path, *map(str, PurePosixPath(path).parents))}
    except FAILURES:
        return None
    return lambda path: str(path.relative_to(found.parent)) in names


PATHSPEC = re.compile(r"[*?\[]|\A:")
"""What makes a pathspec name more than a file or a folder."""

EXCLUDED = re.compile(r":(?:[!^]|\(exclude\))")
"""How a pathspec begins that leaves paths out."""


def pathspec_filter(paths: Sequence[Arg], base: str, root: str) -> Callable[[str], bool]:
    """Return what tells whether pathspecs choose a path from the root of the repository; in doubt they do."""
    chosen, left_out = set[str](), set[str]()
    for path in paths:
        excluded = EXCLUDED.match(path.text)
        text = path.text[excluded.end() :] if excluded else path.text
        if not path.static or re.search(r"[\[\\]|\A:", text):
            chosen |= set() if excluded else {"."}
            continue
        whole = os.path.join(os.path.realpath(base), text)  # noqa: PTH118
        places = {
            os.path.relpath(place, os.path.realpath(root)) for place in (os.path.normpath(whole), os.path.realpath(whole))
        }
        (left_out if excluded else chosen).update(places if not excluded or len(places) == 1 else ())

    def choose(name: str) -> bool:
        out = any(_is_below(name, place) or fnmatchcase(name, place) for place in left_out)
        return not out and (
            not chosen or any(_is_below(name, p) or fnmatchcase(name, p) or fnmatchcase(name, f"{p}/*") for p in chosen)
        )

    return choose


def _is_below(name: str, place: str) -> bool:
    return place == "." or f"{name}/".startswith(f"{place}/")

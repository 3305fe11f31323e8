"""What a folder brings: moved, copied or removed, every path below it is judged, where it was and where it arrives."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from moryflow_sdk import Target

from .files import judge_file
from .judgement import Judgement
from .policy import Policy

MAX_PATHS = 5_000
"""More paths below a folder than this are not looked at: the folder asks."""

MAX_ASKED = 20
"""How many paths of one folder are judged in full; more of them change neither the decision nor what a person reads."""


class TooManyPaths(Exception):
    """A folder holds more than is looked at."""


def paths_below(folder: str) -> list[str]:
    """Return every file and folder below `folder`, relative to it; links are not followed.

    :raises TooManyPaths: there are more than :data:`MAX_PATHS`.
    :raises OSError: some of it cannot be read.
    """
    found: list[str] = []
    todo = [""]
    while todo:
        below = todo.pop()
        with os.scandir(f"{folder}/{below}") as entries:
            for entry in entries:
                path = f"{below}{entry.name}"
                found.append(path)
                if len(found) > MAX_PATHS:
                    raise TooManyPaths(folder)
                if entry.is_dir(follow_symlinks=False):
                    todo.append(f"{path}/")
    return found


def is_folder(target: Target) -> bool:
    """Whether `target` is a folder that is there."""
    if target.kind != "file" or target.identity is None or not target.path:
        return False
    try:
        return stat.S_ISDIR(os.lstat(target.path).st_mode)
    except OSError:
        return False


def judge_folder(policy: Policy, source: Target, goals: Sequence[Target] = (), domain: str = "edit") -> Iterator[Judgement]:
    """Yield an answer for each path below the folder `source` that is not simply allowed.

    :param goals: where the folder arrives, itself and not the folder that will hold it.
    :param domain: what happens to the paths where they are: ``edit`` when they go away, ``read`` when they are copied.
    """
    try:
        below = paths_below(source.path or "")
    except TooManyPaths:
        reason = f"{_shown(source)} holds more than {MAX_PATHS:,} files and folders; what is among them was not looked at"
        yield Judgement(domain, source.text, "ask", reason)
        return
    except OSError as error:
        reason = f"{_shown(source)} cannot be looked into ({error.strerror or error}), so what it brings is not known"
        yield Judgement(domain, source.text, "ask", reason)
        return
    for place, what in ((source, domain), *((goal, "edit") for goal in goals)):
        yield from judge_paths(policy, place, below, what)


def judge_paths(policy: Policy, folder: Target, paths: Sequence[str], domain: str = "edit") -> Iterator[Judgement]:
    """Yield an answer for each of `paths` below `folder` that is not simply allowed."""
    notable = (path for path in paths if policy.by_text(domain, f"{folder.text.rstrip('/')}/{path}").decision != "allow")
    for path in islice(notable, MAX_ASKED):
        answer = judge_file(policy, _below(folder, path, domain), domain, whole=False)
        yield replace(answer, remember=None)  # what else the folder will hold by then cannot be stored


def _below(folder: Target, path: str, domain: str) -> Target:
    where = f"{folder.path.rstrip('/')}/{path}" if folder.path else None
    return Target(domain=domain, kind="file", text=f"{folder.text.rstrip('/')}/{path}", given=path, path=where)


def _shown(target: Target) -> str:
    return target.text.removeprefix("fs:").removeprefix("vault:/") or "the vault"

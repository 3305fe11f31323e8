"""Changes to files that a command does not name: folders that are moved, copied, linked or removed, archives that are unpacked.

What is read of an archive is bounded. One that cannot be read, or that the command may have changed before, asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from moryflow_sdk import Target
from moryflow_sdk.support.protected_files import RUNS_LATER, plain_names

from moryflow_builtins.permission.files import TooManyPaths, is_folder, judge_file, judge_folder, judge_paths, paths_below
from moryflow_builtins.permission.judgement import Judgement
from moryflow_builtins.permission.policy import Policy, Resolve

from .effects import BulkChange
from .folder_scan import reads_path
from .git_repository import tracked_paths
from .syntax import Arg

_HOLDERS = frozenset(
    name
    for path in (*RUNS_LATER.folders, *RUNS_LATER.files)
    if "/" in path and not set(path) & set("*?[{")
    for name in plain_names(path)[:-1]
)
"""Names of folders in which some places run later: ``.github`` holds ``workflows``."""


def judge_bulk_change(policy: Policy, resolve: Resolve, change: BulkChange, base: str, *, changed: bool) -> Iterator[Judgement]:
    """Yield an answer for each path that is not simply allowed where it arrives.

    :param changed: the command changes files before it gets there.
    """
    for source in change.sources:
        if source.static and change.goal.static:
            found = resolve(source.path, "read", base)
            name = PurePosixPath(source.text).name
            goals = [change.goal.path, *([f"{change.goal.path}/{name}"] if name not in ("", "..") else [])]
            if change.how == "unpacked":
                yield from _judge_unpacked(policy, change, found, resolve(change.goal.path, "edit", base), changed=changed)
            elif change.how == "changed":
                yield from _judge_changed(policy, change, found)
            elif change.how == "restored":
                yield from _judge_restored(policy, resolve(source.path, "edit", base))
            elif change.how == "linked":
                yield from _judge_linked(policy, resolve, source, goals, base)
            else:
                yield from _judge_copied(
                    policy, change, found, [resolve(goal, "edit", base) for goal in goals], changed=changed
                )


def _judge_copied(
    policy: Policy, change: BulkChange, source: Target, goals: Sequence[Target], *, changed: bool
) -> Iterator[Judgement]:
    if ":" in source.given.partition("/")[0] and source.identity is None:
        yield _question(goals[0], f"what {change.why} brings from another machine is not known before it runs")
    if (changed or source.identity is None) and any(_holds(goal.text) for goal in goals):
        yield _question(goals[0], f"what {change.why} brings to it is not known before it runs")
    if not is_folder(source):
        return
    try:
        below: Sequence[str] = paths_below(source.path or "")
    except (TooManyPaths, OSError):
        yield _question(goals[0], f"{source.text} holds more than can be looked at, so what it brings is not known")
        return
    if change.tree is not None:
        tree = change.tree
        below = [path for path in below if reads_path(tree, source, path)]
    for place in (*((source,) if change.how == "moved" else ()), *goals):
        yield from judge_paths(policy, place, below)


def _judge_changed(policy: Policy, change: BulkChange, folder: Target) -> Iterator[Judgement]:
    if not is_folder(folder) or (change.why == "rm" and "node_modules" in folder.text.split("/")):
        return
    if change.tree is None:
        yield from judge_folder(policy, folder)
        return
    tree, tracked = change.tree, tracked_paths(Path(folder.path or ""))
    for part in judge_folder(policy, folder):
        path = part.target.removeprefix(f"{folder.text.rstrip('/')}/")
        if reads_path(tree, folder, path) and not (tracked is not None and tracked(Path(folder.path or "") / path)):
            yield part


def _judge_restored(policy: Policy, target: Target) -> Iterator[Judgement]:
    part = judge_file(policy, target, whole=False)
    if part.decision != "allow" and target.text.startswith("vault:"):
        yield part
    elif _holds(target.text):
        yield _question(target, "what arrives there is not known before it runs")


def _judge_linked(policy: Policy, resolve: Resolve, source: Arg, goals: Sequence[str], base: str) -> Iterator[Judgement]:
    """Through a link, what it leads to is written; what a symbolic link names begins where the link is."""
    places = dict.fromkeys((source.path, *(f"{goal.rpartition('/')[0] or '.'}/{source.path}" for goal in goals)))
    for place in places if not source.text.startswith(("/", "~")) else (source.path,):
        target = resolve(place, "edit", base)
        part = judge_file(policy, target, whole=False)
        if part.decision != "allow" and target.text.startswith("vault:"):
            yield part
        elif _holds(target.text):
            yield _question(target, "it holds what runs later, which could be changed through a link to it")


def _holds(text: str) -> bool:
    return plain_names(text)[-1] in _HOLDERS


def _question(target: Target, reason: str) -> Judgement:
    return Judgement("edit", target.text, "ask", f"{target.text.removeprefix('vault:/') or 'the vault'}: {reason}")


# ------------------------------------------------------------------------------------------------
# Archives
# ------------------------------------------------------------------------------------------------


def _judge_unpacked(policy: Policy, change: BulkChange, source: Target, goal: Target, *, changed: bool) -> Iterator[Judgement]:
    from .archives import UnreadableArchive, archive_members  # the readers of archives take as long to import as the judge

    try:
        if changed:
            raise UnreadableArchive
        members = list(archive_members(source.path or ""))
    except FileNotFoundError:
        return  # it brings nothing
    except UnreadableArchive:
        yield _question(goal, f"what is unpacked from {source.text.removeprefix('vault:/')} is not known before it runs")
        return
    names = [f"/{path}" if is_goal and (_holds(path) or path in (".", "..")) else path for path, is_goal in members]
    yield from judge_paths(
        policy, goal, list(dict.fromkeys(path for name in names for path in _strip_folders(name, change.strip)))
    )
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            yield _question(goal, f"the archive holds {name!r}, which leads elsewhere")
            return


def _strip_folders(name: str, strip: int) -> Iterator[str]:
    """Yield `name` without its first folders; whether a leading ``.`` is one of them differs."""
    for text in (name, name.removeprefix("./")):
        names = [part for part in text.split("/")[strip:] if part not in ("", ".", "..")]
        yield from ("/".join(names),) if names else ()

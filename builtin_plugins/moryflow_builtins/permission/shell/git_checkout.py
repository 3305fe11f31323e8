"""What git brings without naming it (``checkout``, ``merge``, ``stash pop``), judged by the paths that differ.

Never fewer paths than git changes: for ``merge`` and ``rebase`` those in which the two commits differ at all, and for
everything that merges also those to which a change may follow a file or a folder that the other side has renamed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from moryflow_sdk.support.git_files import read_start

from .effects import Checkout
from .git_repository import FAILURES, MAX_BYTES, PATHSPEC, GitUnknown, pathspec_filter, repository, tracked_paths
from .git_store import MAX_PATHS, GitStore
from .options import CommandItem, names_of, values_of
from .syntax import Arg

_REVISION = re.compile(r"[~^:]|@\{|-g[0-9a-fA-F]+\Z")
"""What no plain path has, and the name of a commit may have; git tries that first."""
_ON_THE_WAY = frozenset({"continue", "abort", "quit", "show-current-patch", "edit-todo"})
"""What brings nothing new: ``--abort`` goes back to what was there, ``merge --continue`` is a commit."""

_GOES_ON = frozenset({"continue", "skip", "r", "resolved", "retry"})
"""What brings the rest of a list that somebody may have written, with commands in it, long before this command. The list
is a file: what it brings is judged like a cherry-pick, and what else stands in it is not understood, so it asks. Without
one the command brings nothing. Hooks that run meanwhile are those of every commit; changing them is asked about.
"""
_PICKS = frozenset({"pick", "p", "reword", "r", "edit", "e", "squash", "s", "fixup", "f", "revert"})
_HARMLESS_STEPS = frozenset({"drop", "d", "break", "b", "noop", "label", "l", "update-ref", "u"})
_MOVES_NOTHING = frozenset(
    {
        "add", "apply", "archive", "blame", "cat-file", "check-attr", "check-ignore", "clean", "count-objects", "describe",
        "diff", "diff-files", "diff-index", "diff-tree", "for-each-ref", "fsck", "grep", "help", "log", "ls-files",
        "ls-remote", "ls-tree", "merge-base", "mv", "name-rev", "restore", "rev-list", "rev-parse", "rm", "shortlog", "show",
        "show-branch", "show-ref", "sparse-checkout", "status", "var", "version", "whatchanged",
    }
)  # fmt: skip
_MOVES_HEAD = frozenset({"checkout", "switch", "reset", "merge", "rebase", "cherry-pick", "revert", "commit", "am"})


def names_moved_by(verb: str) -> Literal["", "HEAD", "all"]:
    """Return which names may mean something else after a verb."""
    return "HEAD" if verb in _MOVES_HEAD else "" if verb in _MOVES_NOTHING or verb.startswith("-") else "all"


def checkout_of(verb: str, found: Sequence[CommandItem], first_path: int, *, marked: bool) -> Checkout | None:
    """Return what a verb brings; `first_path` is the place of the ``--`` before paths, if they are `marked` with one."""
    letters = names_of(found)
    every = [(item.index, item.value) for item in found if item.operand and item.value is not None]
    operands = [value for index, value in every if index < first_path]
    paths = tuple(value for index, value in every if index > first_path or value is not operands[0])
    given = values_of(found, "s", "source", "onto")
    match verb:
        case "checkout" | "reset":
            return Checkout(verb, (operands[0],), or_path=not marked, paths=paths) if operands else None
        case "switch":
            return Checkout(verb, (operands[0],)) if operands else None
        case "restore":
            return Checkout(verb, tuple(given), paths=tuple(value for _, value in every)) if given else None
        case "rebase" | "cherry-pick" | "revert" if letters & _GOES_ON or not (
            operands or letters & _ON_THE_WAY or verb == "rebase"
        ):
            return Checkout(verb, against="list")
        case "am" if letters & _GOES_ON:
            return Checkout(verb, against="list")
        case "merge" | "rebase" | "cherry-pick" | "revert" if letters & _ON_THE_WAY:
            return None
        case "sparse-checkout" if operands and operands[0].text != "list":
            return Checkout(verb, unknown="it writes files that were left out")
        case "merge" | "rebase":
            revisions = (*operands, *(given if verb == "rebase" else ()))
            return Checkout(verb, revisions, unknown="" if operands else "which branch it follows is not looked up")
        case "cherry-pick" | "revert":
            return Checkout(verb, tuple(operands), "parents")
        case "stash" if operands and operands[0].text in ("pop", "apply"):
            return Checkout("stash", tuple(operands[1:2]), "stash")
        case "pull":
            return Checkout(verb, unknown="it is fetched first")
        case "update-ref" | "symbolic-ref" if len(operands) > 1:
            return Checkout(verb, unknown="it changes what a name means")
        case _:
            return None


def paths_brought(checkout: Checkout, base: str, moved: str) -> tuple[Path, list[str]] | None:
    """Return the folder of the repository and the paths below it that may change; ``None`` where there is no repository.

    :param moved: which names an earlier part of the command may have changed.
    :raises GitUnknown: it cannot be told.
    """
    try:
        git = repository(Path(base))
        if git is None or not (git / "HEAD").is_file():
            return None
        if checkout.unknown:
            raise GitUnknown(checkout.unknown)
        return _brought(checkout, base, moved, git)
    except FAILURES as error:
        raise error if isinstance(error, GitUnknown) else GitUnknown(f"the repository cannot be read ({error})") from None


def _brought(checkout: Checkout, base: str, moved: str, git: Path) -> tuple[Path, list[str]]:
    store = GitStore(git)
    found: dict[str, None] = {}
    revisions = checkout.revisions
    if checkout.or_path and revisions[0].static and not store.has(revisions[0].text) and _is_path(revisions[0], base):
        return store.root, []  # from the index, which holds what was looked at when it got there
    if moved == "all":
        raise GitUnknown("an earlier part of the command changes what names mean")
    for revision in revisions:
        if not revision.static:
            raise GitUnknown(revision.why)
        if moved and (set(revision.text) & set("~^@-{") or revision.text.endswith("HEAD")):
            raise GitUnknown(f"an earlier part of the command changes what {revision.text} means")
    if checkout.against == "stash":
        return store.root, list(store.stash_changes(*(revision.text for revision in revisions)))
    if checkout.against == "list":
        return store.root, [path for commit in _unfinished_commits(git) for path in store.own_changes(store.commit(commit))]
    for commit in [store.commit(revision.text) for revision in revisions]:
        before = store.parents(commit) or [""] if checkout.against == "parents" else [store.commit("HEAD")]
        for other in before:
            found |= dict.fromkeys(store.changes(other, commit))
        if checkout.verb in _MERGES:
            found |= dict.fromkeys(_renamed_paths(store, checkout.verb, commit))
    return store.root, list(filter(pathspec_filter(checkout.paths, base, str(store.root)), found))


def _unfinished_commits(git: Path) -> Iterator[str]:
    """Yield the commits in the list of an unfinished rebase, cherry-pick or revert."""
    if (git / "rebase-apply").exists():
        raise GitUnknown("the patches that are left are not looked into")
    for name in filter(lambda name: (git / name).exists(), ("rebase-merge/git-rebase-todo", "sequencer/todo")):
        for line in read_start(git / name, MAX_BYTES).decode("utf-8", "surrogateescape").splitlines():
            step, _, rest = line.strip().partition(" ")
            if step in _PICKS and rest:
                yield rest.split()[0]
            elif step and not step.startswith("#") and step not in _HARMLESS_STEPS:
                raise GitUnknown(f"{step!r} stands in the list of what it does")


_MERGES = frozenset({"merge", "rebase", "cherry-pick", "revert"})


def _renamed_paths(store: GitStore, verb: str, commit: str) -> Iterator[str]:
    """Yield where a change may arrive because the other side has renamed what it changes."""
    ours = store.commit("HEAD")
    if verb in ("merge", "rebase"):
        sides = [(base, commit) for base in store.bases(ours, commit)]
    else:
        sides = [(parent, commit) if verb == "cherry-pick" else (commit, parent) for parent in store.parents(commit)]
    for base, theirs in sides:
        changed = store.changes(base, theirs)
        new = [path for path in changed if not store.hash_of(base, path)]
        gone = {above for path in changed for above in _above(path) if not store.hash_of(theirs, above)}
        follows = [path for path in changed if store.hash_of(theirs, path) and not store.hash_of(ours, path)]
        follows = [path for path in follows if any(store.hash_of(base, one) for one in (path, *_above(path)))]
        if not gone and not follows:
            continue
        renamed = [path for path in store.changes(base, ours) if not store.hash_of(base, path)]
        lost = {above for path in follows for above in _above(path) if not store.hash_of(ours, above)}
        yield from renamed if set(follows) - set(new) else ()
        yield from _in_folders(new, lost, renamed)
        yield from _in_folders(renamed, gone, new)


def _in_folders(paths: Sequence[str], folders: set[str], goals: Sequence[str]) -> Iterator[str]:
    """Yield `paths` of `folders` in each folder that one of `goals` is in."""
    places = {above for goal in goals for above in _above(goal)}
    rests = {path.removeprefix(f"{above}/") for path in paths for above in _above(path) if above in folders}
    if len(places) * len(rests) > MAX_PATHS:
        raise GitUnknown("a folder was renamed in which many files are new")
    yield from (f"{place}/{rest}" for place in places for rest in rests)


def _above(path: str) -> list[str]:
    return [str(folder) for folder in PurePosixPath(path).parents][:-1]


def _is_path(word: Arg, base: str) -> bool:
    if _REVISION.search(word.text):
        return False
    tracked = tracked_paths(Path(base))
    there = (Path(base) / word.text).exists() or PATHSPEC.search(word.text) is not None
    return there or (tracked is not None and tracked(Path(os.path.realpath(base)) / word.text))

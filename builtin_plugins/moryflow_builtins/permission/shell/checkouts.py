"""What git brings without naming it (``checkout``, ``merge``, ``stash pop``), judged by the paths that differ.

Never fewer paths than git changes: for ``merge`` and ``rebase`` those in which the two commits differ at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .git_store import FAILURES, GitStore, Unknown
from .options import Found
from .repositories import repository, selected, tracked_paths
from .words import Arg

_PATTERN = re.compile(r"[*?\[]|\A:")
_REVISION = re.compile(r"[~^:]|@\{|-g[0-9a-fA-F]+\Z")
"""What no plain path has, and the name of a commit may have; git tries that first."""
Against = Literal["HEAD", "parents", "stash"]


@dataclass(frozen=True, slots=True)
class Checkout:
    """Commits whose content a command brings.

    :param against: what they are compared with; ``parents``: only what each commit changed itself.
    :param revisions: the commits, or the stash.
    :param or_path: the first of them may be a path instead.
    :param paths: only what is below them; without any, everything.
    :param unknown: why nothing can be told before it runs.
    """

    verb: str
    revisions: tuple[Arg, ...] = ()
    against: Against = "HEAD"
    or_path: bool = False
    paths: tuple[Arg, ...] = ()
    unknown: str = ""


_ON_THE_WAY = frozenset({"continue", "abort", "skip", "quit", "show-current-patch", "edit-todo"})
_MOVES_NOTHING = frozenset(
    {
        "add", "apply", "archive", "blame", "cat-file", "check-attr", "check-ignore", "clean", "count-objects", "describe",
        "diff", "diff-files", "diff-index", "diff-tree", "for-each-ref", "fsck", "grep", "help", "log", "ls-files",
        "ls-remote", "ls-tree", "merge-base", "mv", "name-rev", "restore", "rev-list", "rev-parse", "rm", "shortlog", "show",
        "show-branch", "show-ref", "sparse-checkout", "status", "var", "version", "whatchanged",
    }
)  # fmt: skip
_MOVES_HEAD = frozenset({"checkout", "switch", "reset", "merge", "rebase", "cherry-pick", "revert", "commit", "am"})


def moved_by(verb: str) -> Literal["", "HEAD", "all"]:
    """Return which names may mean something else after a verb."""
    return "HEAD" if verb in _MOVES_HEAD else "" if verb in _MOVES_NOTHING or verb.startswith("-") else "all"


def checkout_of(verb: str, found: Sequence[Found], first_path: int, *, marked: bool) -> Checkout | None:
    """Return what a verb brings; `first_path` is the place of the ``--`` before paths, if they are `marked` with one."""
    letters = {item.name for item in found if not item.operand}
    every = [(item.index, item.value) for item in found if item.operand and item.value is not None]
    operands = [value for index, value in every if index < first_path]
    paths = tuple(value for index, value in every if index > first_path or value is not operands[0])
    given = [item.value for item in found if item.name in ("s", "source", "onto") and item.value is not None]
    match verb:
        case "checkout" | "reset":
            return Checkout(verb, (operands[0],), or_path=not marked, paths=paths) if operands else None
        case "switch":
            return Checkout(verb, (operands[0],)) if operands else None
        case "restore":
            return Checkout(verb, tuple(given), paths=tuple(value for _, value in every)) if given else None
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


def brought(checkout: Checkout, base: str, moved: str) -> tuple[Path, list[str]] | None:
    """Return the folder of the repository and the paths below it that may change; ``None`` where there is no repository.

    :param moved: which names an earlier part of the command may have changed.
    :raises Unknown: it cannot be told.
    """
    try:
        git = repository(Path(base))
        if git is None or not (git / "HEAD").is_file():
            return None
        if checkout.unknown:
            raise Unknown(checkout.unknown)
        return _brought(checkout, base, moved, GitStore(git))
    except FAILURES as error:
        raise error if isinstance(error, Unknown) else Unknown(f"the repository cannot be read ({error})") from None


def _brought(checkout: Checkout, base: str, moved: str, store: GitStore) -> tuple[Path, list[str]]:
    found: dict[str, None] = {}
    revisions = checkout.revisions
    if checkout.or_path and revisions[0].static and not store.has(revisions[0].text) and _is_path(revisions[0], base):
        return store.root, []  # from the index, which holds what was looked at when it got there
    if moved == "all":
        raise Unknown("an earlier part of the command changes what names mean")
    for revision in revisions:
        if not revision.static:
            raise Unknown(revision.why)
        if moved and (set(revision.text) & set("~^@-{") or revision.text.endswith("HEAD")):
            raise Unknown(f"an earlier part of the command changes what {revision.text} means")
    if checkout.against == "stash":
        return store.root, list(store.stash_changes(*(revision.text for revision in revisions)))
    for commit in [store.commit(revision.text) for revision in revisions]:
        before = store.parents(commit) or [""] if checkout.against == "parents" else [store.commit("HEAD")]
        for other in before:
            found |= dict.fromkeys(store.changes(other, commit))
    return store.root, list(filter(selected(checkout.paths, base, str(store.root)), found))


def _is_path(word: Arg, base: str) -> bool:
    if _REVISION.search(word.text):
        return False
    tracked = tracked_paths(Path(base))
    there = (Path(base) / word.text).exists() or _PATTERN.search(word.text) is not None
    return there or (tracked is not None and tracked(Path(os.path.realpath(base)) / word.text))

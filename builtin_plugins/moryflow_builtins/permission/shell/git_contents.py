"""The paths of files that git prints, or writes into the working folder, although the command does not name them.

git prints differences, commits and whole trees. The paths returned here are never fewer than those it prints, with two
exceptions, which would be costly to avoid: a revision that is not understood stands for every file that is tracked now, and of
a long history only the last :data:`MAX_COMMITS` commits are read.

``checkout``, ``merge``, ``stash pop`` … write the paths that differ, and never fewer are returned. For ``merge`` and ``rebase``
these are all paths in which the two commits differ; for every verb that merges, also the paths that a change may move to
because the other side has renamed a file or a folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha1
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from moryflow_sdk.support.protected_files import read_start

from .effects import Checkout, CommandItem, EffectUnknown, GitOutput, names_of, placed_operands, values_of
from .git_repository import FAILURES, MAX_BYTES, PATHSPEC, index_entries, pathspec_filter, repository, tracked_paths
from .git_store import MAX_PATHS, GitStore
from .syntax import Arg

# ---------------------------------------------------------------- paths that git prints


MAX_COMMITS = 100
"""How many commits of a history are read; that takes a fifth of a second."""


_LARGEST = 1 << 22
"""The largest file whose content is compared."""


_PATCH = frozenset(
    {
        "p", "u", "U", "c", "m", "W", "patch", "unified", "cc", "dd", "patch-with-stat", "patch-with-raw", "binary",
        "word-diff", "word-diff-regex", "color-words", "function-context", "remerge-diff", "diff-merges", "check",
    }
)  # fmt: skip
"""Options that make a verb print content."""

_NAMES_ONLY = frozenset(
    {
        "stat", "numstat", "shortstat", "dirstat", "compact-summary", "name-only", "name-status", "summary", "raw", "s",
        "no-patch", "quiet", "q",
    }
)  # fmt: skip
_NO_FILTERS = frozenset({*_PATCH, *_NAMES_ONLY, "n", "max-count", "oneline", "color", "no-color", "stdout", *"0123456789"})
"""Options beside which ``-3`` means the last three commits and no older ones."""

_SEVERAL_ROOTS = frozenset({"all", "branches", "tags", "remotes", "glob", "g", "walk-reflogs", "reflog", "stdin", "bisect"})
_INTERACTIVE = frozenset({"add", "stage", "checkout", "restore", "reset", "commit", "stash"})


def output_of(verb: str, args: Sequence[Arg], found: Sequence[CommandItem], first_path: int) -> GitOutput | None:
    """Return the content that a verb prints, if any; `first_path` is the index of the ``--`` before the paths."""
    letters = names_of(found)
    written = {arg.text[2:].partition("=")[0] for arg in args[:first_path] if arg.text[:2] == "--"} - letters
    letters |= {name for name in _PATCH for part in written if name.startswith(part)}
    operands = placed_operands(found)
    words = tuple(value for index, value in operands if index < first_path)
    paths = tuple(value for index, value in operands if index > first_path)
    shown = _output_of_verb(verb, letters, words)
    if shown is None:
        return None
    shown = shown._replace(why=f"git {verb}", paths=(*shown.paths, *paths), most=_count(found, letters))
    if shown.how in ("history", "commits") and letters & _SEVERAL_ROOTS:
        return shown._replace(how="history", several=True)
    return shown._replace(every=True) if letters & {"merge-base", "merged"} else shown


def _output_of_verb(verb: str, letters: set[str], words: tuple[Arg, ...]) -> GitOutput | None:
    patch = bool(letters & _PATCH)
    first = words[0].text if words else ""
    match verb:
        case "diff" if "no-index" not in letters and (patch or not letters & _NAMES_ONLY):
            return GitOutput(verb, "differences", words)
        case "diff-index" | "diff-files" if patch:
            return GitOutput(verb, "differences", words)
        case "diff-tree" if patch:
            return GitOutput(verb, "differences" if len(words) > 1 else "commits", words)
        case "show" if patch or not letters & _NAMES_ONLY:
            return GitOutput(verb, "commits", words or (Arg("HEAD"),))
        case "log" | "whatchanged" if patch:
            return GitOutput(verb, "history", words)
        case "reflog" if patch:
            return GitOutput(verb, "history", several=True)
        case "format-patch":
            alone = len(words) == 1 and ".." not in first and not letters & set("0123456789n")
            return GitOutput(verb, "history", (Arg(f"{first}..HEAD", words[0].why),) if alone else words)
        case "range-diff":
            return GitOutput(verb, "history", words)
        case "stash" if first == "show" and patch:
            return GitOutput(verb, "stash", words[1:])
        case "grep":
            return GitOutput(verb, "files", words if letters & {"e", "f", "regexp", "file"} else words[1:])
        case "archive":
            return GitOutput(verb, "files", words[:1], words[1:])
        case "cat-file" if letters & {"p", "textconv", "filters"} or first == "blob":
            return GitOutput(verb, "object", words[-1:])
        case "status" | "commit" if letters & {"v", "verbose"}:
            return GitOutput(verb, "differences")
        case "rerere" if first == "diff":
            return GitOutput(verb, "differences")
        case "rebase" | "am" if "show-current-patch" in letters:
            return GitOutput(verb, "commits", every=True)
        case _ if verb in _INTERACTIVE and letters & {"p", "patch"}:
            return GitOutput(verb, "differences", words if verb in ("checkout", "reset") else ())
        case _:
            return None


def _count(found: Sequence[CommandItem], letters: set[str]) -> int:
    """Return how many commits are shown if only a number selects them; else :data:`MAX_COMMITS`."""
    digits = "".join(item.name for item in found if not item.operand and item.name.isdecimal())
    given = [value.text for value in values_of(found, "n", "max-count")]
    text = (given or [digits])[-1]
    plain = letters <= _NO_FILTERS and text.isdecimal() and len(text) < 4
    return min(int(text), MAX_COMMITS) if plain else MAX_COMMITS


class ShownPaths(NamedTuple):
    """Paths below the folder `root` that may be printed; `same` returns whether a path has no difference to print."""

    root: Path
    paths: list[str]
    same: Callable[[str], bool]


def paths_in_output(shown: GitOutput, base: str, moved: str, *, changed: bool) -> ShownPaths | None:
    """Return the paths that a verb may print; ``None`` when there is no repository.

    :param moved: the names that an earlier part of the command may have moved; `changed`: it may have changed files.
    :raises EffectUnknown: the paths cannot be determined.
    """
    try:
        git = repository(Path(base))
        if git is None or not (git / "HEAD").is_file():
            return None
        reading = _GitOutputReader(shown, base, git)
        names = reading.everything() if moved or shown.every else reading.names()
        chosen = pathspec_filter(reading.paths, base, str(reading.store.root))
        surely = shown.how == "differences" and not (changed or moved)
        same = reading.same if surely else lambda _: False
        return ShownPaths(reading.store.root, [name for name in names if chosen(name)], same)
    except FAILURES as error:
        raise EffectUnknown(
            str(error) if isinstance(error, EffectUnknown) else f"the repository cannot be read ({error})"
        ) from None


_RANGE = re.compile(r"(.*?)(\.\.\.?)(.*)")
_PATTERN = re.compile(r"[*?]|\A:[!^(]")


class _GitOutputReader:
    """Reads the paths that one verb may print in one repository."""

    def __init__(self, shown: GitOutput, base: str, git: Path) -> None:
        self._how, self._most, self._several, self._base, self._git = shown.how, shown.most, shown.several, base, git
        self.store = GitStore(git)
        self._last = ""
        count = next((place for place, word in enumerate(shown.words) if self._is_path(word)), len(shown.words))
        left_out = "" if shown.how == "history" else "^"
        self._words = [word.text.removeprefix(left_out) if word.static else "?" for word in shown.words[:count]]
        self.paths = (*shown.words[count:], *shown.paths)

    @cached_property
    def _index(self) -> dict[str, str]:
        return index_entries(self._git)

    def _is_path(self, word: Arg) -> bool:
        if not word.static or self.store.has(word.text) or _RANGE.fullmatch(word.text):
            return False
        return _PATTERN.search(word.text) is not None or (Path(self._base) / word.text).exists()

    def everything(self) -> Iterable[str]:
        """Return all paths that are tracked now, in the index or in the last commit."""
        try:
            return {**self._index, **dict.fromkeys(self.store.files(self.store.commit("HEAD")))}
        except FAILURES:
            return self._index

    def names(self) -> Iterable[str]:
        """Return the paths that may be printed; all tracked paths if a revision is not understood."""
        try:
            named = () if self._how in ("history", "stash") else self._words
            objects = [self.store.object(word) for word in named if ".." not in word and ":" not in word]
            blobs = [name for kind, name in objects if kind == "blob"]
            return self._of_blobs(blobs) if blobs else self._names([name for _, name in objects])
        except _NotTracked as problem:
            raise EffectUnknown(str(problem)) from None
        except FAILURES:
            return self.everything()

    def _names(self, objects: list[str]) -> Iterable[str]:
        store = self.store
        match self._how:
            case "files":
                return self._files() if self._words else self._index
            case "stash":
                return store.stash_changes(*self._words)
            case "commits":
                ranges = [word for word in self._words if ".." in word]
                return [*self._history(ranges), *(name for one in objects for name in store.own_changes(one))]
            case "differences" if any("..." in word for word in self._words):
                return self._history(self._words)
            case "differences" if any(":" in word for word in self._words):
                return self._files()
            case "differences":
                ends = [end for word in self._words for end in word.split("..")]
                return self._differences([store.object(end or "HEAD")[1] for end in ends])
            case "history":
                return self._history(self._words or ["HEAD"], store.tips() if self._several else ())
            case _:
                return ()

    def _files(self) -> Iterable[str]:
        """Return all files of the revisions, also of one that names a single path (``HEAD:a``)."""
        starts = dict.fromkeys(word.partition(":")[0] or "HEAD" for word in self._words)
        return {**self._index, **dict.fromkeys(name for one in starts for name in self.store.files(self.store.object(one)[1]))}

    def _of_blobs(self, blobs: Sequence[str]) -> list[str]:
        if not set(blobs) <= set(self._index.values()):
            raise _NotTracked(f"which file has the content {blobs[0][:12]} is not looked up")
        return [path for path, content in self._index.items() if content in blobs]

    def _differences(self, objects: list[str]) -> Iterable[str]:
        if len(objects) > 1:
            return [name for other in objects[1:] for name in self.store.iter_changes(objects[0], other)]
        self._last = objects[0] if objects else self.store.commit("HEAD") if self.store.has("HEAD") else ""
        return {**self._index, **dict.fromkeys(self.store.files(self._last) if objects else ())}

    def same(self, path: str) -> bool:
        """Whether a file has the same content in the folder, the index and the commit, so git prints nothing of it."""
        if not self._last or not self._index.get(path):
            return False
        try:
            content = read_start(self.store.root / path, _LARGEST + 1)
        except OSError:
            return False
        name = sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        plain = len(content) <= _LARGEST and b"\r" not in content
        return plain and self._index[path] == name == self.store.hash_of(self._last, path)

    def _history(self, words: Sequence[str], more: Iterable[str] = ()) -> Iterable[str]:
        """Return the paths that the commits named by `words` changed; for a long history also all tracked paths."""
        tips, without = list(more), list[str]()
        for word in words:
            found = _RANGE.fullmatch(word)
            one, dots, other = found.groups() if found else ("", "", word.removeprefix("^"))
            last = self.store.commit(other or "HEAD")
            (without if word.startswith("^") else tips).append(last)
            if dots == ".." or (dots and self._how == "differences"):
                without.append(self.store.commit(one or "HEAD"))
            elif dots:
                tips.append(self.store.commit(one or "HEAD"))
        commits = self.store.history(tips, without, most=self._most)
        found_names = dict.fromkeys(name for one in commits for name in self.store.own_changes(one))
        return {**found_names, **dict.fromkeys(self.everything())} if len(commits) == MAX_COMMITS else found_names


class _NotTracked(Exception):
    """The content belongs to no file that is tracked now."""


# ---------------------------------------------------------------- paths that git writes


_REVISION = re.compile(r"[~^:]|@\{|-g[0-9a-fA-F]+\Z")
"""Text that the name of a commit may hold, but no plain path; git tries the commit first."""
_WRITE_NOTHING = frozenset({"continue", "abort", "quit", "show-current-patch", "edit-todo"})
"""Options that write no new files: ``--abort`` restores the old ones, ``merge --continue`` only commits."""

_CONTINUE = frozenset({"continue", "skip", "r", "resolved", "retry"})
"""Options that apply the rest of a list of commits, a file that may have been written long before, with commands in it. Its
commits are judged like a cherry-pick; any other step is asked about. Without a list the command writes nothing. The hooks that
run meanwhile are those of every commit; changing them is asked about.
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


def moved_names(verb: str) -> Literal["", "HEAD", "all"]:
    """Return which names may mean another commit after a verb."""
    return "HEAD" if verb in _MOVES_HEAD else "" if verb in _MOVES_NOTHING or verb.startswith("-") else "all"


def checkout_of(verb: str, found: Sequence[CommandItem], first_path: int, *, marked: bool) -> Checkout | None:
    """Return the commits whose files a verb writes; `first_path` is the index of the ``--`` before paths, if `marked`."""
    letters = names_of(found)
    every = placed_operands(found)
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
        case "rebase" | "cherry-pick" | "revert" if letters & _CONTINUE or not (
            operands or letters & _WRITE_NOTHING or verb == "rebase"
        ):
            return Checkout(verb, against="list")
        case "am" if letters & _CONTINUE:
            return Checkout(verb, against="list")
        case "merge" | "rebase" | "cherry-pick" | "revert" if letters & _WRITE_NOTHING:
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


def paths_written(checkout: Checkout, base: str, moved: str) -> tuple[Path, list[str]] | None:
    """Return the folder of the repository and the paths below it that may change; ``None`` when there is no repository.

    :param moved: the names that an earlier part of the command may have moved (``HEAD`` or ``all``).
    :raises EffectUnknown: the paths cannot be determined.
    """
    try:
        git = repository(Path(base))
        if git is None or not (git / "HEAD").is_file():
            return None
        if checkout.unknown:
            raise EffectUnknown(checkout.unknown)
        return _paths_written(checkout, base, moved, git)
    except FAILURES as error:
        raise error if isinstance(error, EffectUnknown) else EffectUnknown(f"the repository cannot be read ({error})") from None


def _paths_written(checkout: Checkout, base: str, moved: str, git: Path) -> tuple[Path, list[str]]:
    store = GitStore(git)
    found: dict[str, None] = {}
    revisions = checkout.revisions
    if checkout.or_path and revisions[0].static and not store.has(revisions[0].text) and _is_path(revisions[0], base):
        return store.root, []  # from the index, whose files were judged when they were added
    if moved == "all":
        raise EffectUnknown("an earlier part of the command changes what names mean")
    for revision in revisions:
        if not revision.static:
            raise EffectUnknown(revision.why)
        if moved and (set(revision.text) & set("~^@-{") or revision.text.endswith("HEAD")):
            raise EffectUnknown(f"an earlier part of the command changes what {revision.text} means")
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
        raise EffectUnknown("the patches that are left are not looked into")
    for name in filter(lambda name: (git / name).exists(), ("rebase-merge/git-rebase-todo", "sequencer/todo")):
        for line in read_start(git / name, MAX_BYTES).decode("utf-8", "surrogateescape").splitlines():
            step, _, rest = line.strip().partition(" ")
            if step in _PICKS and rest:
                yield rest.split()[0]
            elif step and not step.startswith("#") and step not in _HARMLESS_STEPS:
                raise EffectUnknown(f"{step!r} stands in the list of what it does")


_MERGES = frozenset({"merge", "rebase", "cherry-pick", "revert"})


def _renamed_paths(store: GitStore, verb: str, commit: str) -> Iterator[str]:
    """Yield the paths that a change may move to because the other side has renamed the file or its folder."""
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
    """Yield those of `paths` that are in `folders`, moved to each folder that holds one of `goals`."""
    places = {above for goal in goals for above in _above(goal)}
    rests = {path.removeprefix(f"{above}/") for path in paths for above in _above(path) if above in folders}
    if len(places) * len(rests) > MAX_PATHS:
        raise EffectUnknown("a folder was renamed in which many files are new")
    yield from (f"{place}/{rest}" for place in places for rest in rests)


def _above(path: str) -> list[str]:
    return [str(folder) for folder in PurePosixPath(path).parents][:-1]


def _is_path(word: Arg, base: str) -> bool:
    if _REVISION.search(word.text):
        return False
    tracked = tracked_paths(Path(base))
    there = (Path(base) / word.text).exists() or PATHSPEC.search(word.text) is not None
    return there or (tracked is not None and tracked(Path(os.path.realpath(base)) / word.text))

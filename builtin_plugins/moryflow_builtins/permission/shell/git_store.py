"""The commits of a git repository and the paths in them, read without git, whose configuration could run programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import islice
from pathlib import Path

from moryflow_sdk.support.protected_files import read_start

from .effects import EffectUnknown
from .git_repository import FAILURES, MAX_BYTES, GitObjects

MAX_PATHS = 5_000
"""How many paths may differ between two commits."""

MAX_TREES = 20_000
"""How many pairs of folders are compared; a few objects can describe any number of folders."""

MAX_COMMITS = 1_000
"""How many commits are followed to find where two branches part."""

_NAME = re.compile(r"[\w./+#-]+", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{4,40}")
_REVISION = re.compile(r"(.*?)((?:~\d*|\^\d*)*)", re.DOTALL)
_MOVED = re.compile(rb"\tcheckout: moving from (\S+) to ")
_STASH = re.compile(r"(?:stash@\{)?(\d{1,4})\}?|stash")
_PLACES = ("{}", "refs/{}", "refs/tags/{}", "refs/heads/{}", "refs/remotes/{}", "refs/remotes/{}/HEAD")


class GitStore:
    """The objects and names of the repository whose git directory is `git`."""

    def __init__(self, git: Path) -> None:
        self._git = git
        linked = git / "commondir"
        self._common = (git / linked.read_text().strip()).resolve() if linked.is_file() else git
        self._objects = GitObjects(self._common)
        self._trees: dict[str, dict[str, tuple[str, bool]]] = {}
        self._heads: dict[str, list[bytes]] = {}
        self._visited = 0

    @property
    def root(self) -> Path:
        """The working folder of the repository."""
        back = self._git / "gitdir"
        if self._git.name != ".git" and not back.is_file():
            raise EffectUnknown("its working folder is not known")
        return self._git.parent if self._git.name == ".git" else Path(back.read_text().strip()).parent

    # ---------------------------------------------------------------------------------------- names

    def commit(self, text: str) -> str:
        """Return the commit that a revision names: a branch, a tag, a hash or its beginning, maybe with ``~2`` or ``^``."""
        kind, found = self.object(text)
        if kind != "commit":
            raise EffectUnknown(f"{text!r} is not a commit")
        return found

    def object(self, text: str) -> tuple[str, str]:
        """Return the kind and the hash of the object that a revision names; tags are followed."""
        match = _REVISION.fullmatch(text)
        assert match is not None
        kind, found = self._resolve({"@": "HEAD"}.get(match.group(1), match.group(1)))
        for step in re.findall(r"[~^]\d*", match.group(2)):
            count = int(step[1:] or 1)
            for _ in range(count if step[0] == "~" else min(count, 1)):
                found = self._nth(self.parents(found), 0 if step[0] == "~" else count - 1)
        return kind, found

    def stash_commit(self, text: str = "stash") -> str:
        """Return the commit of a stash: ``stash@{1}``, or ``1``."""
        match = _STASH.fullmatch(text)
        if match is None:
            raise EffectUnknown(f"{text} names no stash that is known")
        lines = self._read("logs/refs/stash").splitlines()
        return self._nth([line.split(b" ")[1].decode() for line in reversed(lines)], int(match.group(1) or 0))

    def tips(self) -> list[str]:
        """Return the commits of all local and remote branches, of all tags, and of the last stash."""
        loose = {path.relative_to(self._common).as_posix() for path in (self._common / "refs").rglob("*") if path.is_file()}
        packed = re.findall(rb"^[0-9a-f]{40} (refs/\S+)$", self._read("packed-refs"), re.MULTILINE)
        return [self.commit(name) for name in ("HEAD", *sorted(loose | {name.decode() for name in packed})) if self.has(name)]

    def has(self, text: str) -> bool:
        """Whether `text` names a commit that can be found."""
        try:
            return bool(self.commit(text))
        except FAILURES:
            return False

    def _resolve(self, name: str) -> tuple[str, str]:
        if name == "-":
            moves = _MOVED.findall(read_start(self._git / "logs" / "HEAD", MAX_BYTES))
            return self._resolve(self._nth([move.decode() for move in reversed(moves)], 0))
        if not _NAME.fullmatch(name) or ".." in name:
            raise EffectUnknown(f"{name!r} is not a commit name that is understood here")
        found = next(filter(None, (self._ref(place.format(name)) for place in _PLACES)), "") or self._remote_branch(name)
        if not found and _HASH.fullmatch(name.lower()):
            found = self._nth(sorted(self._objects.hashes(name.lower())), 0, only=True)
        if not found:
            raise EffectUnknown(f"{name!r} is not known")
        kind, content = self._objects.read(found)
        while kind == "tag":
            kind, content = self._objects.read(found := content[7:47].decode())
        return kind, found

    def _ref(self, name: str, depth: int = 0) -> str:
        for folder in (self._git, self._common):
            if (folder / name).is_file():
                text = (folder / name).read_text(errors="surrogateescape")
                if text.startswith("ref: ") and depth < 5:
                    return self._ref(text[5:].strip(), depth + 1)
                return text[:40] if re.match(r"[0-9a-f]{40}\s", text) else ""
        packed = re.search(rb"^([0-9a-f]{40}) %s$" % re.escape(name.encode()), self._read("packed-refs"), re.MULTILINE)
        return packed.group(1).decode() if packed else ""

    def _remote_branch(self, name: str) -> str:
        """Return the branch `name` of a remote, if only one remote has it: ``git switch`` would create a branch from it."""
        remotes = {path.name for path in (self._common / "refs" / "remotes").glob("*")}
        remotes |= {found.decode() for found in re.findall(rb" refs/remotes/([^/\s]+)/", self._read("packed-refs"))}
        found = {self._ref(f"refs/remotes/{remote}/{name}") for remote in remotes} - {""}
        return found.pop() if len(found) == 1 else ""

    def _read(self, name: str) -> bytes:
        try:
            return read_start(self._common / name, MAX_BYTES)
        except FileNotFoundError:
            return b""

    @staticmethod
    def _nth(found: list[str], place: int, *, only: bool = False) -> str:
        if place < 0 or place >= len(found) or (only and len(found) > 1):
            raise EffectUnknown("it names no commit that is there")
        return found[place]

    # ---------------------------------------------------------------------------------------- commits and trees

    def parents(self, commit: str) -> list[str]:
        """Return the parents of a commit; a shallow clone does not hold all of them."""
        if commit.encode() in self._shallow:
            return []
        return [line[7:47].decode() for line in self._head(commit) if line.startswith(b"parent ")]

    def tree(self, name: str) -> str:
        """Return the tree of a commit; `name` itself if it is a tree."""
        head = self._head(name)
        return head[0][5:45].decode() if head[0].startswith(b"tree ") else name

    def history(self, tips: Sequence[str], without: Sequence[str] = (), *, most: int) -> list[str]:
        """Return the ancestors of `tips`, with these, newest first, without the ancestors of `without`.

        If clocks were wrong, or there are more than `most`, some ancestors of `without` may be included.
        """
        excluded, seen, found = set(without), {*tips, *without}, dict[str, int]()
        waiting = [(-self._date(one), one) for one in seen]
        heapify(waiting)
        while waiting and len(found) < most:
            if all(one in excluded for _, one in waiting) and -waiting[0][0] < min(found.values(), default=1 << 62):
                break
            age, commit = heappop(waiting)
            if commit not in excluded:
                found[commit] = -age
            else:
                self._exclude_ancestors(commit, excluded, found)
            for one in self.parents(commit):
                if one not in seen:
                    seen.add(one)
                    heappush(waiting, (-self._date(one), one))
        return [one for one in found if one not in excluded]

    def _exclude_ancestors(self, commit: str, excluded: set[str], found: dict[str, int]) -> None:
        """Add the ancestors of a commit to `excluded`, as far as they have been visited."""
        todo = [commit]
        while todo:
            for one in self.parents(todo.pop()):
                if one in found and one not in excluded:
                    todo.append(one)
                excluded.add(one)

    def _date(self, commit: str) -> int:
        line = next(line for line in self._head(commit) if line.startswith(b"committer "))
        return int(line.rsplit(b" ", 2)[1])

    def own_changes(self, name: str) -> Iterator[str]:
        """Yield the paths in which a commit differs from each of its parents; none for a tree."""
        if self.tree(name) != name:
            for parent in self.parents(name) or [""]:
                yield from self.iter_changes(parent, name)

    def stash_changes(self, text: str = "stash") -> Iterator[str]:
        """Yield the paths that a stash holds; none if there is no stash."""
        if not self._read("logs/refs/stash"):
            return
        stash = self.stash_commit(text)
        parents = self.parents(stash)
        yield from self.iter_changes(parents[0], stash)
        if len(parents) > 2:
            yield from self.files(parents[2])

    def files(self, name: str) -> Iterator[str]:
        """Yield every path of a commit or a tree."""
        return self.iter_changes("", name)

    def hash_of(self, name: str, path: str) -> str:
        """Return the hash of a file or a folder in a commit or a tree; empty if it is not there."""
        found, folder = self.tree(name), True
        for part in path.split("/"):
            found, folder = self._entries(found).get(part, ("", False)) if folder else ("", False)
        return found[:40]

    def bases(self, one: str, other: str) -> list[str]:
        """Return the merge bases: the commits where the histories of `one` and `other` part."""
        new = self.history([other], [one], most=MAX_COMMITS)
        bases = {parent for commit in new for parent in self.parents(commit)} - set(new)
        if len(new) == MAX_COMMITS or (new and not bases):
            raise EffectUnknown("where the two histories part is not found")
        return sorted(bases)

    def _head(self, commit: str) -> list[bytes]:
        if commit not in self._heads:
            self._heads[commit] = self._objects.read(commit)[1].partition(b"\n\n")[0].split(b"\n")
        return self._heads[commit]

    @cached_property
    def _shallow(self) -> bytes:
        return self._read("shallow")

    def changes(self, one: str, other: str) -> list[str]:
        """Return the paths that differ between two commits or trees; ``""`` stands for an empty tree.

        :raises EffectUnknown: there are more than :data:`MAX_PATHS`, or an object is missing.
        """
        found = list(islice(self.iter_changes(one, other), MAX_PATHS + 1))
        if len(found) > MAX_PATHS:
            raise EffectUnknown(f"it changes more than {MAX_PATHS:,} files")
        return found

    def iter_changes(self, one: str, other: str) -> Iterator[str]:
        """Yield the same paths, without a limit on their number."""
        return self._iter_changes(self.tree(one) if one else "", self.tree(other) if other else "", "")

    def _iter_changes(self, one: str, other: str, above: str) -> Iterator[str]:
        self._visited += 1
        if self._visited > MAX_TREES:
            raise EffectUnknown(f"more than {MAX_TREES:,} folders differ")
        first, second = self._entries(one), self._entries(other)
        for name in sorted(first.keys() | second.keys()):
            was, now = first.get(name, ("", False)), second.get(name, ("", False))
            if was == now:
                continue
            if was[1] or now[1]:
                yield from self._iter_changes(was[0] if was[1] else "", now[0] if now[1] else "", f"{above}{name}/")
            if any(one[0] and not one[1] for one in (was, now)):
                yield above + name

    def _entries(self, tree: str) -> dict[str, tuple[str, bool]]:
        """Return the entries of a tree: name → (hash, with the mode of a file; whether it is a folder)."""
        if not tree:
            return {}
        if tree not in self._trees:
            found: dict[str, tuple[str, bool]] = {}
            kind, content = self._objects.read(tree)
            start = 0
            while start < len(content) and kind == "tree":
                blank, end = content.index(b" ", start), content.index(b"\0", start)
                mode, name = content[start:blank].decode(), content[blank + 1 : end].decode("utf-8", "surrogateescape")
                folder = mode == "40000"
                found[name] = (content[end + 1 : end + 21].hex() + ("" if folder else f" {mode}"), folder)
                start = end + 21
            self._trees[tree] = found
        return self._trees[tree]

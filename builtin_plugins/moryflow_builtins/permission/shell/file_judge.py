"""Judge the files that a command names, in every folder it may run in, and those that it changes without naming them.

The second kind are in folders that it moves, copies, links or removes, and in archives that it unpacks. Reading an archive is
bounded; if it cannot be read, or the command may have changed it before, the judge asks.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import dropwhile, product
from pathlib import Path, PurePosixPath

from moryflow_sdk import Rule, Target
from moryflow_sdk.calls import UNKNOWN_FOLDER
from moryflow_sdk.support.protected_files import RUNS_LATER, plain_names

from moryflow_builtins.permission.files import (
    TooManyPaths,
    hard_limit,
    is_folder,
    judge_file,
    judge_folder,
    judge_paths,
    judge_pattern,
    paths_below,
)
from moryflow_builtins.permission.policy import Judgement, Policy, Resolve

from .command_line import changed_file, contents_of
from .effects import BulkChange, Checkout, CommandEffects, EffectUnknown, GitOutput, Patch, Tree
from .folder_scan import TreeFiles, reads_path
from .syntax import Arg
from .walk import UNKNOWN, Bases

MAX_MOVES = 100
"""How many changes of folder are followed in one script; after more of them the folder counts as unknown."""

NEUTRAL = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/zero"})
HOME = re.compile(r"\A\$(?:HOME|\{HOME(?:[^A-Za-z0-9_}][^}]*)?\})(?=/|\Z)")
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class FileJudge:
    """Judges the paths of a command that starts in `folder`, and passes each judgement to `add`."""

    def __init__(self, policy: Policy, folder: str, add: Callable[[Judgement], None]) -> None:
        self._policy = policy
        self._folder = folder
        self._add = add
        self._targets: dict[tuple[str, str, str | None], Target] = {}
        self._trees = TreeFiles(policy, self.resolve)
        self._repositories: dict[str, str] = {}
        self._moves = 0

    def file(
        self, path: Arg, domain: str, bases: Bases, *, whole: bool = False, asks: bool = False, replaced: bool = False
    ) -> None:
        """Judge a file in every folder the command may run in.

        :param asks: what a default denies is asked about instead.
        :param replaced: the command puts another file at the path; ``mv a /dev/null`` takes the device away from everyone.
        """
        if path.static and path.text in NEUTRAL and not (whole or replaced):
            return
        known = path if path.static else _known_part(path)
        if known is None:
            return
        for base in sorted(bases, key=str):
            if base is None and not (known.tilde or known.text.startswith("/")):
                self._add(_unknown_folder(domain, known))
                continue
            target = self.resolve(known.path, domain, base)
            part = judge_file(self._policy, target, domain, whole=whole)
            part = _as_question(part) if asks else part
            if path.static or part.decision == "deny":
                self._add(with_target(part))

    def tree(self, tree: Tree, bases: Bases) -> None:
        """Ask if a command reads a folder and a file below it that is asked about."""
        roots = [root.path for root in tree.roots if root.static] if tree.roots else ["."]
        for base, root in product(sorted(filter(None, bases)), roots):
            target = self.resolve(root, "read", base)
            part = self._trees.judge(target, tree)
            if part is not None:
                self._add(part)

    def bulk_change(self, change: BulkChange, bases: Bases, *, changed: bool, exact: bool) -> None:
        """Judge every path in a folder or an archive at its new place; an exact rule covers what is not known of it."""
        for base in sorted(filter(None, bases)):
            for part in judge_bulk_change(self._policy, self.resolve, change, base, changed=changed):
                if part.decision == "deny" or part.rule is not None or not exact:
                    self._add(part)

    def checkout(self, checkout: Checkout, bases: Bases, moved: str) -> None:
        """Judge the files that a checkout, a merge or the like changes.

        :raises EffectUnknown: the files cannot be determined before git runs.
        """
        from .git_contents import paths_written

        for base in sorted(filter(None, bases)):
            found = paths_written(checkout, base, moved)
            if found is not None:
                for part in judge_paths(self._policy, self.resolve(str(found[0]), "edit", None), found[1]):
                    self._add(_as_question(part))

    def output(self, shown: GitOutput, bases: Bases, moved: str, *, changed: bool) -> None:
        """Ask if git prints the content of a file that is asked about.

        :raises EffectUnknown: the files cannot be determined before git runs.
        """
        from .git_contents import paths_in_output

        for base in sorted(filter(None, bases)):
            found = paths_in_output(shown, base, moved, changed=changed)
            if found is not None:
                root = self.resolve(str(found.root), "read", None)
                part = self._trees.judge_output(root, shown.why, found.paths, found.same)
                if part is not None:
                    self._add(part)

    def paths_of_patch(self, patch: Patch, bases: Bases) -> list[str]:
        """Return the paths that a patch changes.

        :raises EffectUnknown: the patch does not exist, may not be read without a question, or is not understood.
        """
        from .payloads import GIT_CONFIGURATION, merges_by_configuration, paths_in

        if patch.may_merge and merges_by_configuration(self.resolve(one, "read", None).path for one in GIT_CONFIGURATION):
            raise EffectUnknown("am.threeWay is set, which lets it follow renames")
        if patch.text is not None:
            if not patch.text.static:
                raise EffectUnknown(patch.text.why)
            return paths_in(patch.text.text, patch)
        found: dict[str, None] = {}
        for file, base in product(patch.files, sorted(bases, key=str)):
            if not file.static or base is None:
                raise EffectUnknown(file.why or f"{file.text!r} is in a folder that is not known before it runs")
            found.update(dict.fromkeys(paths_in(self._content(file, base), patch)))
        return list(found)

    def _content(self, file: Arg, base: str) -> str:
        """Return the content of a file that may be read without a question.

        :raises EffectUnknown: it may not, it cannot be read, or it is too long.
        """
        from .payloads import MAX_BYTES

        target = self.resolve(file.path, "read", base)
        if target.path is None or judge_file(self._policy, target, "read", whole=False).decision != "allow":
            raise EffectUnknown(f"{file.text} is asked about")
        try:
            with os.fdopen(os.open(target.path, _OPEN), "rb") as stream:
                regular = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
                content = stream.read(MAX_BYTES + 1) if regular else b""
        except OSError as error:
            raise EffectUnknown(f"{file.text} cannot be read ({error.strerror})") from None
        if not regular or len(content) > MAX_BYTES:
            raise EffectUnknown(f"{file.text} is not a file of at most {MAX_BYTES // 1024 // 1024} MiB")
        return content.decode("utf-8", "surrogateescape")

    def working_folder(self, bases: Bases) -> None:
        """Judge the folder that a command works in: the vault is allowed, any other folder counts as read."""
        for base in sorted(bases, key=str):
            if base is None:
                self._add(_unknown_folder("read", Arg(".")))
            elif base != str(self._policy.vault):
                part = judge_file(self._policy, self.resolve(".", "read", base), "read", whole=False)
                if part.decision != "allow":
                    self._add(with_target(part))

    def repository(self, bases: Bases) -> str:
        """Return a git directory, not the vault's own, that git would use in one of `bases`; empty when there is none."""
        from .git_repository import foreign_repository

        for base in sorted(filter(None, bases)):
            if base not in self._repositories:
                self._repositories[base] = foreign_repository(base, str(self._policy.vault))
            if self._repositories[base]:
                return self._repositories[base]
        return ""

    def folder(self, base: str | None) -> str:
        """Return the name of the folder `base` in rules, with links followed."""
        if base == str(self._policy.vault):
            return "vault:/"
        target = self.resolve(".", "read", base) if base is not None else None
        return UNKNOWN_FOLDER if target is None or target.error is not None else target.text

    def folder_named(self, text: str) -> str:
        """Return the canonical name of a folder that a rule names as ``vault:/…`` or ``fs:/…``, with links followed."""
        place, _, path = text.partition(":")
        return self.folder(f"{self._policy.vault}{path}".rstrip("/") if place == "vault" else path)

    def contents(self, args: Sequence[Arg], effects: CommandEffects, base: str | None) -> Mapping[str, str] | None:
        """Return the state of the files whose content a command runs, by name; ``None`` when it is unknown."""
        inner = {base} if effects.base is None else self.after_cd(effects.base, frozenset((base,)))
        where = min(filter(None, inner), default=None) if len({*map(self.folder, inner)}) == 1 else None
        return contents_of(args, effects, base, where, str(self._policy.vault))

    def changed_file(self, rule: Rule) -> str:
        """Return which file has changed since `rule` was stored; empty when none has."""
        return changed_file(rule.contents, str(self._policy.vault))

    def possible_file(self, path: Arg, bases: Bases, *, known: bool, exact: bool) -> None:
        """Judge a word that may name a file. A word that names no file, or that an exact rule names, raises no question.

        :param known: the program is known and only reads; an unknown one may write the files that its words name.
        """
        if not path.static or "://" in path.text or "\n" in path.text or not path.text:
            return
        for base in bases:
            target = self.resolve(path.path, "read", base if base is not None else self._folder)
            if target.error is not None:
                continue
            part = judge_file(self._policy, target, "read", whole=False)
            if part.decision == "deny" or (part.decision == "ask" and not exact):
                self._add(with_target(part))
            elif not (known or exact) and re.search("[./]", path.text) and target.text.startswith("vault:"):
                part = judge_file(self._policy, target, "edit", whole=False)
                if part.decision != "allow":
                    self._add(with_target(part._replace(decision="ask")))

    def resolved_paths(self, path: Arg, bases: Bases) -> list[str]:
        """Return where a path leads from each folder, with links followed."""
        targets = (self.resolve(path.path, "read", base) for base in sorted(filter(None, bases)))
        return [target.path for target in targets if target.path]

    def surely_moves(self, path: Arg, base: str | None) -> bool:
        """Whether ``cd path`` surely succeeds: the folder exists, and no name before a ``..`` could be missing."""
        if ".." in dropwhile(lambda name: name == "..", path.text.split("/")):
            return False
        target = self.resolve(path.path, "read", base) if path.static and base is not None else None
        return target is not None and target.identity is not None and os.access(f"{target.path}/.", os.X_OK)

    def resolve(self, path: str, domain: str, base: str | None) -> Target:
        """Return the target that a path leads to from the folder `base`."""
        key = (path, domain, base)
        if key not in self._targets:
            self._targets[key] = self._policy.resolve(path, domain, base)
        return self._targets[key]

    def after_cd(self, path: Arg, bases: Bases) -> Bases:
        """Return the folders that ``cd path`` leads to from `bases`: each with its links followed, and as it is named.

        After it the shell resolves ``..`` from the name, but programs resolve it from the folder that the links lead to.
        """
        self._moves += 1
        if not path.static or self._moves > MAX_MOVES:
            return UNKNOWN
        absolute = path.tilde or path.text.startswith("/")
        moved: set[str | None] = set()
        for base in bases:
            target = self.resolve(path.path, "read", base) if base is not None or absolute else None
            moved.add(target.path if target is not None else None)
            if target is not None and target.lexical:
                kind, _, rest = target.lexical.partition(":")
                moved.add(f"{self._policy.vault}{rest}" if kind == "vault" else rest)
        return frozenset(moved)


def with_target(part: Judgement) -> Judgement:
    """Add the file to the reason of a rule that asks: the command does not show where its names lead."""
    if part.decision != "ask" or part.rule is None or part.rule.source == "default":
        return part
    return part._replace(reason=f"{part.target}: {part.reason}")


def _as_question(part: Judgement) -> Judgement:
    """Return `part`, with the denial of a default rule turned into a question."""
    if part.decision != "deny" or part.rule is None or part.rule.source != "default":
        return part
    return part._replace(decision="ask", reason=part.reason.partition(";")[0], next_step="")


def _known_part(path: Arg) -> Arg | None:
    """Return the part of `path` that is known for certain, with ``$HOME`` as ``~``; ``None`` when there is none."""
    text = HOME.sub("~", path.text)
    special = min((text.find(char) for char in "*?[$`{<>" if char in text), default=-1)
    if special < 0:
        return Arg(text, tilde=text.startswith("~"))
    folder = text[:special].rpartition("/")[0]
    if folder:
        return Arg(folder, tilde=folder.startswith("~"))
    if text[special] in "*?[":  # a pattern without a slash before it matches in this folder, or in the root
        return Arg("/" if text.startswith("/") else ".")
    return Arg("/") if text.startswith("/") else None


def _unknown_folder(domain: str, path: Arg) -> Judgement:
    return Judgement(domain, f"vault:/{path.text}", "ask", f"{path.text!r} is in a folder that is not known before it runs")


# ---------------------------------------------------------------- files that a command does not name


_HOLDERS = frozenset(
    name
    for path in (*RUNS_LATER.folders, *RUNS_LATER.files)
    if "/" in path and not set(path) & set("*?[{")
    for name in plain_names(path)[:-1]
)
"""Names of folders that may hold a file which runs later, such as ``.github``, which may hold ``workflows``."""


def judge_bulk_change(policy: Policy, resolve: Resolve, change: BulkChange, base: str, *, changed: bool) -> Iterator[Judgement]:
    """Yield a judgement for each path that is not allowed at its new place.

    :param changed: an earlier part of the command changes files.
    """
    for source in change.sources:
        source = Arg("~", tilde=True) if HOME.fullmatch(source.text) else source
        if change.how == "linked" and not source.static:
            part = judge_pattern(policy, resolve("~", "read", None).path or "", source.text)
            yield from (part,) if part is not None else ()
        if source.static and change.goal.static:
            found = resolve(source.path, "read", base)
            name = PurePosixPath(source.text).name
            goals = [change.goal.path, *([f"{change.goal.path}/{name}"] if name not in ("", "..") else [])]
            if change.how == "unpacked":
                yield from _judge_unpacked(policy, change, found, resolve(change.goal.path, "edit", base), changed=changed)
            elif change.how == "changed":
                limit = hard_limit(policy, found, "edit", whole=True) if found.error is None else None
                yield from (limit,) if limit is not None else ()
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
        yield _question(goals[0], f"what {change.why} copies from another machine is unknown until it runs")
    if (changed or source.identity is None) and any(_may_hold_guarded(goal.text) for goal in goals):
        yield _question(goals[0], f"the files that {change.why} puts there are unknown until it runs")
    if not is_folder(source):
        return
    try:
        below: Sequence[str] = paths_below(source.path or "")
    except (TooManyPaths, OSError):
        yield _question(goals[0], f"the files in {source.text} cannot all be checked")
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
    from .git_repository import tracked_paths

    tree, tracked = change.tree, tracked_paths(Path(folder.path or ""))
    for part in judge_folder(policy, folder):
        path = part.target.removeprefix(f"{folder.text.rstrip('/')}/")
        if reads_path(tree, folder, path) and not (tracked is not None and tracked(Path(folder.path or "") / path)):
            yield part


def _judge_restored(policy: Policy, target: Target) -> Iterator[Judgement]:
    part = judge_file(policy, target, whole=False)
    if part.decision != "allow" and target.text.startswith("vault:"):
        yield part
    elif _may_hold_guarded(target.text):
        yield _question(target, "what arrives there is not known before it runs")


def _judge_linked(policy: Policy, resolve: Resolve, source: Arg, goals: Sequence[str], base: str) -> Iterator[Judgement]:
    """Judge the file that a link leads to as if it were written: the link lets that happen.

    A relative path is judged from `base`, as a hard link resolves it, and from the folder of the symbolic link.
    """
    places = dict.fromkeys((source.path, *(f"{goal.rpartition('/')[0] or '.'}/{source.path}" for goal in goals)))
    for place in places if not source.text.startswith(("/", "~")) else (source.path,):
        target = resolve(place, "edit", base)
        part = judge_file(policy, target, whole=True)
        if part.cause == "hard_limit" or (part.decision != "allow" and target.text.startswith("vault:")):
            yield part
        elif _may_hold_guarded(target.text):
            yield _question(target, "it holds files that run later; a link would let them be changed")


def _may_hold_guarded(text: str) -> bool:
    return plain_names(text)[-1] in _HOLDERS


def _question(target: Target, reason: str) -> Judgement:
    return Judgement("edit", target.text, "ask", f"{target.text.removeprefix('vault:/') or 'the vault'}: {reason}")


# ---------------------------------------------------------------- archives


def _judge_unpacked(policy: Policy, change: BulkChange, source: Target, goal: Target, *, changed: bool) -> Iterator[Judgement]:
    from .payloads import UnreadableArchive, archive_members

    try:
        if changed:
            raise UnreadableArchive
        members = list(archive_members(source.path or ""))
    except FileNotFoundError:
        return  # there is nothing to unpack
    except UnreadableArchive:
        yield _question(goal, f"what is unpacked from {source.text.removeprefix('vault:/')} is not known before it runs")
        return
    names = [f"/{path}" if is_goal and (_may_hold_guarded(path) or path in (".", "..")) else path for path, is_goal in members]
    yield from judge_paths(
        policy, goal, list(dict.fromkeys(path for name in names for path in _strip_folders(name, change.strip)))
    )
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            yield _question(goal, f"the archive holds {name!r}, which leads elsewhere")
            return


def _strip_folders(name: str, strip: int) -> Iterator[str]:
    """Yield `name` without its first folders. Programs differ in whether a leading ``.`` is one: both results are yielded."""
    for text in (name, name.removeprefix("./")):
        names = [part for part in text.split("/")[strip:] if part not in ("", ".", "..")]
        yield from ("/".join(names),) if names else ()

"""The files below a folder that are asked about: a bounded walk, and the files that the program skips."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

from moryflow_sdk import Target
from moryflow_sdk.support.patterns import TooMany, braces
from moryflow_sdk.support.protected_files import read_start, sensitive_among, without_git_credentials

from moryflow_builtins.permission.files import judge_file
from moryflow_builtins.permission.policy import Judgement, Policy, Resolve

from .effects import Tree

_LONGEST = 256 * 1024
_MOST_STARS = 3


def _ignore_decision(root: str, path: str, *, of_rg: bool) -> bool | None:
    """Return whether ignore files exclude the file at `path` below `root`: ``None`` when no line matches it.

    Ignore files above and below the root count, as git or ``rg`` reads them. A line that includes the file again wins.
    """
    top, whole = _top(root), Path(root, path)
    files = [*((".ignore", ".rgignore", ".agignore") if of_rg else ()), *((".gitignore",) if top is not None else ())]
    top = top or Path(root)
    parts = whole.relative_to(top).parts if whole.is_relative_to(top) else Path(path).parts
    decisions = set[bool]()
    for end in range(1, len(parts) + 1):
        for start, name in product(range(end), files):
            text = _text(top.joinpath(*parts[:start], name))
            decisions |= set([*_line_decisions(text, parts[start:end], folder=end < len(parts))][-1:])
    return None if not decisions else False not in decisions


def _top(root: str) -> Path | None:
    """Return the top folder of the repository that `root` is in; ``None`` if it is in none."""
    from .git_repository import repository

    found = repository(Path(root))
    return found.parent if found is not None and found.name == ".git" else None


def _text(file: Path) -> str:
    """Return the content of an ignore file; empty if it cannot be read, is no ordinary file, or is too long."""
    try:
        text = read_start(file, _LONGEST + 1)
    except OSError:
        return ""
    return "" if len(text) > _LONGEST else text.decode("utf-8", "replace")


def _line_decisions(text: str, parts: tuple[str, ...], *, folder: bool) -> Iterator[bool]:
    """Yield, for each line of an ignore file that matches the path `parts` below it, whether it excludes the path."""
    for line in (raw.rstrip(" \t") for raw in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        back = line.startswith("!")
        body = line.removeprefix("!").removeprefix("**/")
        bare = body.rstrip("/").removeprefix("/")
        plain = (
            bool(bare)
            and "**" not in (line if back else bare)
            and not set(bare) & set("[\\")
            and bare.count("*") <= _MOST_STARS
        )
        names, wanted = parts if "/" in body.rstrip("/") else parts[-1:], bare.split("/")
        here = plain and len(wanted) == len(names) and (folder or not body.endswith("/"))
        if here and all(map(fnmatchcase, names, wanted)) if plain else back:  # many stars take long to match
            yield not back


MAX_ENTRIES = 50_000
"""How many files and folders below the folders that one command reads are walked; with more, the judge asks. The walk
takes a third of a second."""

MAX_JUDGED = 2_000
"""How many files are judged one by one: those whose names suggest secrets, or that a rule matches."""

NAMED = 3
"""How many files a question names."""

_STORE = "/.git/objects"
"""Git's own store is not walked: it may hold very many files, and their names say nothing."""


_TEMPLATE = re.compile(r"(?i)(?:\A|/)\.env(?:\.[\w-]+)*\.(?:example|sample|template|dist|tpl)\Z")
"""Templates of ``.env`` files. A command that names one is asked about; one below a folder that is read is not."""


class TreeFiles:
    """Finds the files below folders that are asked about. Each command has one, with one budget for all its folders."""

    def __init__(self, policy: Policy, resolve: Resolve) -> None:
        self._policy = policy
        self._resolve = resolve
        self._left = MAX_ENTRIES
        self._known: dict[tuple[str, tuple[str, ...], int | None], tuple[list[tuple[str, Judgement]], list[str]] | None] = {}
        every = (compiled for layer in policy.layers for compiled in layer.of("read"))
        self._rules = [one for one in every if one.rule.decision != "allow" and one.rule.source != "default"]

    def judge(self, root: Target, tree: Tree) -> Judgement | None:
        """Return the question about the files that `tree` reads below `root`; ``None`` when there is none."""
        if not root.path or not os.path.isdir(root.path):  # noqa: PTH112
            return None
        key = (root.path, tuple(sorted(filter(_plain_name, tree.without_folders))), tree.depth)
        if key not in self._known:
            listing = self._walk(*key)
            self._known[key] = None if listing is None else ([*self._judge_paths(root, listing[0])], listing[1])
        known = self._known[key]
        if known is None:
            reason = f"{tree.why} reads more than {MAX_ENTRIES} files below {root.text}; not all of them were checked"
            return Judgement("read", root.text, "ask", reason)
        asking, links = known
        found = [part for path, part in asking if reads_path(tree, root, path)]
        found += [part for _, part in self._judge_paths(root, links, every=True)] if tree.links else []
        return _question(tree.why, found) if found else None

    def judge_output(self, root: Target, why: str, paths: Iterable[str], same: Callable[[str], bool]) -> Judgement | None:
        """Return the question about the `paths` below `root` that git prints from its store, which no sandbox hides."""
        found = [part for path, part in self._judge_paths(root, paths, in_store=True) if not same(path)]
        return _question(why, found) if found else None

    def _judge_paths(
        self, root: Target, paths: Iterable[str], *, every: bool = False, in_store: bool = False
    ) -> Iterator[tuple[str, Judgement]]:
        """Yield each path that is not allowed, with its judgement; without `every`, only suspects are judged."""
        texts = {f"{root.text.rstrip('/')}/{path}" if root.text != "vault:/" else f"vault:/{path}": path for path in paths}
        suspects = texts.keys() if every else self._suspects(texts, root)
        for count, text in enumerate(sorted(suspects)):
            whole = f"{root.path}/{texts[text]}"
            if count >= MAX_JUDGED:
                yield texts[text], Judgement("read", text, "ask", "more files need a question than are checked")
                return
            part = judge_file(self._policy, self._resolve(whole, "read", None), "read", whole=False)
            if (
                part.decision != "allow"
                and (in_store or not self._policy.hides(whole))
                and not _is_plain_git_config(whole, part)
            ):
                yield texts[text], part

    def _suspects(self, texts: dict[str, str], root: Target) -> set[str]:
        """Return the targets whose names suggest secrets, those that a rule matches, and those in Moryflow's folder."""
        secrets = sensitive_among(texts.values())
        suspects = {text for text, path in texts.items() if path in secrets and not _TEMPLATE.search(path)}
        if self._rules:
            suspects |= {text for text in texts if any(rule.matches(text) for rule in self._rules)}
        home = f"{self._policy.home}/"
        if home.startswith(f"{root.path}/") or (root.path or "").startswith(home):
            suspects |= {text for text, path in texts.items() if f"{root.path}/{path}".startswith(home)}
        return suspects

    def _walk(self, root: str, without: tuple[str, ...], depth: int | None) -> tuple[list[str], list[str]] | None:
        """Return the files and the links below a folder, relative to it; ``None`` when there are too many."""
        files: list[str] = []
        links: list[str] = []
        todo: list[tuple[str, int]] = [("", 0)]
        while todo:
            below, level = todo.pop()
            try:
                entries = list(os.scandir(f"{root}/{below}"))
            except OSError:
                continue  # the command cannot read this folder either
            self._left -= len(entries)
            if self._left < 0:
                return None
            for entry in entries:
                path = below + entry.name
                if entry.is_symlink():
                    links.append(path)
                elif not entry.is_dir(follow_symlinks=False):
                    files.append(path)
                elif (
                    (depth is None or level + 1 < depth)
                    and not f"/{path}".endswith(_STORE)
                    and not _name_matches(entry.name, without)
                ):
                    todo.append((f"{path}/", level + 1))
        return files, links


def _is_plain_git_config(path: str, part: Judgement) -> bool:
    """Whether `path` is a ``.git/config`` without credentials, which only its name would ask about; repositories have one."""
    if not path.endswith("/.git/config") or part.decision != "ask" or part.rule is None or part.rule.source != "default":
        return False
    try:
        content = read_start(path, _LONGEST + 1)
    except OSError:
        return False
    text = content.decode("utf-8", "surrogateescape")
    return len(content) <= _LONGEST and without_git_credentials(text) == text


def _question(why: str, found: list[Judgement]) -> Judgement:
    worst = max(found, key=lambda part: part.severity)
    names = [part.target.removeprefix("vault:/").removeprefix("fs:") for part in found]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return worst._replace(reason=f"{why} also reads {', '.join(names[:NAMED])}{more}: {worst.reason}", remember=None)


# ---------------------------------------------------------------- files that a program skips


def reads_path(tree: Tree, root: Target, path: str) -> bool:
    """Whether `tree` reads the file at `path` below its root; true in doubt."""
    names = path.split("/")
    if tree.repository and ".git" in names:
        return False
    if tree.only and any(_matches(glob, names[-1].lower(), sure=False) for glob in map(str.lower, tree.only)):
        return True
    given = "/".join(filter(None, (root.given.removeprefix("./").strip("/"), path))).removeprefix("./")
    if tree.whole_path and any(fnmatchcase(given, glob) for glob in tree.without if "[" not in glob and "\\" not in glob):
        return False
    if not tree.whole_path and any(_matches(glob, name, sure=True) for glob in tree.without for name in names):
        return False
    if any(_name_matches(name, tree.without_folders) for name in names[:-1]):
        return False
    if tree.only and not tree.others:
        return False
    return not _is_ignored(tree, root, path)


def _is_ignored(tree: Tree, root: Target, path: str) -> bool:
    """Whether the program skips `path` because it is hidden, or because an ignore file names it."""
    shown = tree.hidden or not any(name.startswith(".") for name in path.split("/"))
    if tree.follows == "nothing":
        return not shown
    if tree.follows == "docker":
        return not shown or excluded_from_image(root.path or "", path)
    if tree.follows == "npm" and _chooses_files(root.path or "", path):
        return not shown
    verdict = _ignore_decision(root.path or "", path, of_rg=tree.follows == "rg")
    return verdict is True or (verdict is None and not shown)


def _chooses_files(root: str, path: str) -> bool:
    """Whether npm does not use ``.gitignore``: ``files`` or ``.npmignore`` decides, or `root` is not a package."""
    folders = [Path(root, folder) for folder in (".", *Path(path).parents)]
    if any((folder / ".npmignore").exists() or '"files"' in _text(folder / "package.json") for folder in folders):
        return True
    return not (Path(root) / "package.json").is_file()


def excluded_from_image(root: str, path: str) -> bool:
    """Whether ``.dockerignore`` surely excludes the file at `path` from the build context."""
    names = ("Dockerfile.dockerignore", "Containerfile.dockerignore", ".containerignore")
    if any((Path(root) / name).exists() for name in names):
        return False
    lines = [line.strip() for line in _text(Path(root, ".dockerignore")).splitlines()]
    globs = [line.removeprefix("./").strip("/") for line in lines if line and not line.startswith("#")]
    if any(line.startswith("!") for line in lines):
        return False
    return any(_in_image_glob(glob, path.split("/")) for glob in globs)


def _in_image_glob(glob: str, parts: list[str]) -> bool:
    wanted = glob.removeprefix("**/").removesuffix("/**").split("/")
    if any(not _plain_name(one) for one in wanted) or "**" in wanted:
        return False
    last = len(parts) - len(wanted) if glob.startswith("**/") else 0
    return any(all(map(fnmatchcase, parts[start:], wanted)) for start in range(last + 1) if len(parts) - start >= len(wanted))


def _matches(glob: str, name: str, *, sure: bool) -> bool:
    """Whether a glob matches a file or folder name. If the glob is not plain: ``not sure``."""
    plain = glob.removeprefix("**/").rstrip("/")
    try:
        alternatives = list(braces(plain))
    except TooMany:
        return not sure
    if any(not _plain_name(one) for one in alternatives):
        return not sure
    return any(fnmatchcase(name, one) for one in alternatives)


def _name_matches(name: str, globs: Iterable[str]) -> bool:
    return any(_plain_name(glob) and fnmatchcase(name, glob.rstrip("/")) for glob in globs)


def _plain_name(glob: str) -> bool:
    """Whether a glob is for one name, without syntax that programs read differently."""
    return bool(glob.rstrip("/")) and not any(char in glob.rstrip("/") for char in "/[\\") and glob.count("*") <= 3

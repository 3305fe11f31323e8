"""Programs that read everything below a folder, and what their options leave out of it.

A tree that is read holds whatever it holds: a file that is asked about when it is named is asked about here too. What
cannot be told surely from the options is taken for read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .git_repository import PATHSPEC
from .options import CommandItem
from .syntax import Arg

Follows = Literal["nothing", "git", "rg", "npm", "docker"]
"""Whose ignore files a program follows."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Folders that a command reads with what is below them.

    :param why: the program and the option, for the question.
    :param roots: where it begins; without any, the folder it runs in.
    :param only: globs of files; others are left out, unless `others`.
    :param without: globs of files and folders that are left out; `whole_path`: matched against the path as it was given.
    :param hidden: names that begin with a dot are read too.
    :param depth: how many folders down it reads.
    :param links: links are followed.
    :param repository: it never reads git's own folder.
    """

    why: str
    roots: tuple[Arg, ...] = ()
    only: tuple[str, ...] = ()
    others: bool = False
    without: tuple[str, ...] = ()
    without_folders: tuple[str, ...] = ()
    whole_path: bool = False
    hidden: bool = True
    depth: int | None = None
    links: bool = False
    follows: Follows = "nothing"
    repository: bool = False


_GREPS = frozenset({"grep", "egrep", "fgrep", "zgrep", "rgrep", "bzgrep", "xzgrep", "zstdgrep"})
_RECURSIVE = frozenset({"r", "R", "recursive", "dereference-recursive"})
_DEEP_LETTERS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("cp", "gcp"), frozenset({"r", "R", "a", "recursive", "archive"})),
    **dict.fromkeys(("scp", "sftp"), frozenset({"r"})),
    "rsync": frozenset({"r", "a", "recursive", "archive", "d", "dirs", "files-from"}),
    "zip": frozenset({"r", "R", "recurse-paths", "recurse-patterns"}),
    **dict.fromkeys(("gzip", "bzip2", "xz", "zstd", "lzma", "compress"), frozenset({"r", "recursive"})),
}
_ALWAYS = frozenset({"ack", "ag", "ugrep", "rga", "7z", "7za", "7zr", "rar"})
_FOLLOW_LINKS = frozenset({"R", "dereference-recursive", "L", "H", "h", "dereference", "copy-links", "follow"})
_TYPES: dict[str, tuple[str, ...]] = {
    "py": ("*.py", "*.pyi"), "python": ("*.py", "*.pyi"), "js": ("*.js", "*.jsx", "*.mjs", "*.cjs", "*.vue"), "rust": ("*.rs",),
    "ts": ("*.ts", "*.tsx", "*.mts", "*.cts"), "go": ("*.go",), "java": ("*.java", "*.jsp"), "c": ("*.c", "*.h"),
    "cpp": ("*.cpp", "*.cc", "*.hpp", "*.h", "*.cxx"), "md": ("*.md", "*.markdown", "*.mdx"), "html": ("*.html", "*.htm"),
    "css": ("*.css", "*.scss"), "ruby": ("*.rb", "*.erb", "Gemfile", "Rakefile"), "rb": ("*.rb",), "php": ("*.php",),
    "markdown": ("*.md", "*.markdown", "*.mdx"),
}  # fmt: skip
"""Types of files that ``rg -t`` and its like know, and that no file of secrets has."""


def leaves_out(name: str, option: CommandItem) -> bool:
    """Whether the value of `option` surely is a glob of what is not read, in every version of the program."""
    if name in ("diff", "zip", "rsync") and option.name in ("x", "exclude"):
        return True
    left_out = option.value is not None and option.value.text.startswith("!")
    return option.name in ("exclude", "exclude-dir") or (name == "rg" and option.name in ("g", "glob", "iglob") and left_out)


def trees_of(name: str, found: Sequence[CommandItem], files: Sequence[Arg], *, pattern: bool = False) -> list[Tree]:
    """Return what a program of the tables reads below folders.

    :param files: its operands.
    :param pattern: an option held the pattern, so that no operand does.
    """
    operands = tuple(files if pattern else files[1:])
    letters = {option.name for option in found if not option.operand}
    if name in _GREPS:
        return _grep(name, found, letters, operands)
    if name in ("rg", "ripgrep"):
        return [] if letters & {"files", "type-list"} else [_rg(found, letters, operands)]
    if name in ("diff", "colordiff", "gdiff"):
        depth = None if letters & {"r", "recursive"} else 1
        without = _values(found, "x", "exclude")
        links = "no-dereference" not in letters
        return [Tree("diff -r" if depth is None else "diff", tuple(files), without=without, depth=depth, links=links)]
    if name in _ALWAYS:
        return [
            Tree(name, tuple(files[1:]) if name in ("7z", "7za", "7zr", "rar") else operands, repository=name in ("ag", "ack"))
        ]
    deep = letters & _DEEP_LETTERS.get(name, frozenset())
    return [_copied(name, found, letters, files, min(deep))] if deep else []


_REVISION = re.compile(r"[~^:@]|\AHEAD")


def git_trees(verb: str, found: Sequence[CommandItem]) -> list[Tree]:
    """Return what a verb of git reads below folders: into its store, from where it can be shown, or to search it."""
    letters = {option.name for option in found if not option.operand}
    operands = [option.value for option in found if option.operand and option.value is not None]
    paths = tuple(arg for arg in operands if not PATHSPEC.search(arg.text)) if operands else ()
    paths = paths if len(paths) == len(operands) else (Arg("."),)
    match verb:
        case "add" | "stage" if operands or letters & {"A", "all", "no-ignore-removal", "pathspec-from-file"}:
            forced = letters & {"f", "force"}
            return [Tree(f"git {verb}", paths, follows="nothing" if forced else "git", repository=True)]
        case "stash" if letters & {"a", "all", "u", "include-untracked"}:
            every = letters & {"a", "all"}
            return [Tree(f"git stash {'-a' if every else '-u'}", follows="nothing" if every else "git", repository=True)]
        case "grep":
            return _git_grep(letters, operands)
        case "diff" if "no-index" in letters:
            return [Tree("git diff --no-index", paths)]
        case _:
            return []


def _git_grep(letters: set[str], operands: Sequence[Arg]) -> list[Tree]:
    """Return what it reads besides the files that git tracks."""
    patterns = letters & {"e", "f", "regexp", "file"}
    paths = tuple(arg for arg in (operands if patterns else operands[1:]) if not _REVISION.search(arg.text))
    roots = () if any(PATHSPEC.search(arg.text) for arg in paths) else paths
    if "no-index" in letters:
        follows = "git" if "exclude-standard" in letters else "nothing"
        return [Tree("git grep --no-index", roots, follows=follows, repository=True)]
    if "untracked" in letters:
        follows = "nothing" if "no-exclude-standard" in letters else "git"
        return [Tree("git grep --untracked", roots, follows=follows, repository=True)]
    return []


def _grep(name: str, found: Sequence[CommandItem], letters: set[str], operands: tuple[Arg, ...]) -> list[Tree]:
    values = _values(found, "d", "directories")
    deep = letters & _RECURSIVE or name == "rgrep" or any("recurse".startswith(value) and value != "r" for value in values)
    if not deep:
        return []
    choices = [option.name for option in found if option.name in ("include", "exclude")]
    tree = Tree(
        f"{name} -r",
        operands,
        only=_values(found, "include"),
        others=choices[:1] == ["exclude"],
        without=_values(found, "exclude"),
        without_folders=_values(found, "exclude-dir"),
        links=bool(letters & {"R", "dereference-recursive"}),
    )
    return [tree]


def _rg(found: Sequence[CommandItem], letters: set[str], operands: tuple[Arg, ...]) -> Tree:
    import os

    unrestricted = sum(option.name in ("u", "unrestricted") for option in found)
    configured = "RIPGREP_CONFIG_PATH" in os.environ
    hidden = bool(letters & {"hidden", "."}) or unrestricted > 1 or configured
    all_ignored = unrestricted or configured or any(letter.startswith("no-ignore") for letter in letters)
    globs = _values(found, "g", "glob", "iglob")
    types = _values(found, "t", "type")
    known = () if "type-add" in letters else tuple(glob for kind in types for glob in _TYPES.get(kind, ("*",)))
    return Tree(
        "rg",
        operands,
        only=tuple(glob for glob in globs if not glob.startswith("!")) or known,
        without=tuple(glob[1:] for glob in globs if glob.startswith("!")),
        hidden=hidden or any(not glob.startswith("!") for glob in globs),
        links=bool(letters & {"L", "follow"}),
        follows="nothing" if all_ignored or any(not glob.startswith("!") for glob in globs) else "rg",
    )


def _copied(name: str, found: Sequence[CommandItem], letters: set[str], files: Sequence[Arg], deep: str) -> Tree:
    into = letters & {"t", "target-directory"} or name not in ("cp", "gcp", "scp", "sftp", "rsync")
    sources = files[1:] if name == "zip" else files if into else files[:-1]
    left_out = _values(found, "exclude", "x") if name in ("rsync", "zip") else ()
    why = f"{name} -{deep}" if len(deep) == 1 else f"{name} --{deep}"
    links = bool(letters & _FOLLOW_LINKS)
    return Tree(why, tuple(sources), without=left_out, whole_path=name == "zip", links=links)


def _values(found: Sequence[CommandItem], *names: str) -> tuple[str, ...]:
    return tuple(
        option.value.text for option in found if option.name in names and option.value is not None and option.value.static
    )

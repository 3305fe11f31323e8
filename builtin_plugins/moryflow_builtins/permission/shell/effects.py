"""What one command does: what it reads, writes and runs, and the words that a wildcard does not cover."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .options import GUARDED, CommandItem
from .syntax import Arg, Word, argument


class Patch(NamedTuple):
    """A patch that a command applies.

    :param files: the files that hold it; `outside`: named by a redirection, so in the folder of the shell.
    :param text: a here-document that holds it.
    :param strip: how many names are taken off the front of a path; ``None`` when it is not said.
    :param given: the file that is changed is an operand, whatever the patch says.
    :param may_merge: git may merge it where it does not apply, if that is configured.
    """

    files: tuple[Arg, ...] = ()
    text: Arg | None = None
    strip: int | None = None
    directory: str = ""
    by_git: bool = False
    given: bool = False
    outside: bool = False
    may_merge: bool = False


Follows = Literal["nothing", "git", "rg", "npm", "docker"]
"""Whose ignore files a program follows."""


class Tree(NamedTuple):
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


class BulkChange(NamedTuple):
    """Something whose content arrives somewhere.

    :param why: the program.
    :param sources: folders, or an archive.
    :param goal: where it arrives, or the folder that it arrives in.
    :param how: what becomes of the sources.
    :param strip: how many names are taken off the front of a path in an archive.
    :param tree: says what is left out.
    :param outside: the paths begin in the folder of the shell, not in the one that an option names.
    """

    why: str
    sources: tuple[Arg, ...]
    goal: Arg = Arg(".")
    how: str = "copied"
    strip: int = 0
    tree: Tree | None = None
    outside: bool = False


class Checkout(NamedTuple):
    """Commits whose content a command brings.

    :param against: what they are compared with; ``parents``: only what each commit changed itself; ``list``: the commits
        are those that an unfinished command has still to bring.
    :param revisions: the commits, or the stash.
    :param or_path: the first of them may be a path instead.
    :param paths: only what is below them; without any, everything.
    :param unknown: why nothing can be told before it runs.
    """

    verb: str
    revisions: tuple[Arg, ...] = ()
    against: Literal["HEAD", "parents", "stash", "list"] = "HEAD"
    or_path: bool = False
    paths: tuple[Arg, ...] = ()
    unknown: str = ""


class GitOutput(NamedTuple):
    """Content that a verb of git prints.

    :param why: the verb, for the question.
    :param how: ``files``: all of the revisions, or of the index; ``differences``: between revisions, the index and the
        files; ``commits``: what each of them changed; ``history``: the same for those before them; ``stash``; ``object``.
    :param words: revisions, then paths, as git tells them apart; `paths` stand behind ``--``.
    :param most: how many commits of a history; `several`: of all branches and tags, whatever is named.
    :param every: it may show everything that is tracked.
    """

    why: str
    how: Literal["files", "differences", "commits", "history", "stash", "object"]
    words: tuple[Arg, ...] = ()
    paths: tuple[Arg, ...] = ()
    most: int = 0
    several: bool = False
    every: bool = False


@dataclass(frozen=True, slots=True)
class UncoveredWords:
    """Words that a wildcard does not cover.

    :param index: the last word that a rule has to spell out.
    :param why: what they do.
    :param unseen: no rule can spell it out, because it is not in the command.
    """

    index: int
    why: str
    unseen: bool = False


class InnerCommand(NamedTuple):
    """A command that another one runs, in the folder that the outer one works in.

    :param same_shell: it runs in this shell, so its ``cd`` counts.
    """

    args: tuple[Arg, ...]
    same_shell: bool = False


class InnerText(NamedTuple):
    """A shell text that a command runs; `elsewhere` on another machine, where no path and no allow of ours counts.

    :param fed: it is not among the words of the command, so that no rule for the command covers it.
    """

    text: Arg
    same_shell: bool = False
    elsewhere: bool = False
    fed: bool = False


class WrittenFile(NamedTuple):
    """A file that is changed.

    :param whole: everything below a folder is.
    :param asks: outside the vault it is asked about, not denied; the command is one that is always asked about.
    """

    path: Arg
    whole: bool = False
    asks: bool = False


class SoughtFiles(NamedTuple):
    """Files that a program looks for by itself and runs, in its order: ``make`` its makefile.

    :param upward: also in the folders above, up to the vault; `every`: not only the first that is there.
    """

    names: tuple[str, ...]
    upward: bool = False
    every: bool = False


@dataclass
class CommandEffects:
    """Collected while a command is looked at.

    :ivar known: the program's operands are understood, so other words of it are not looked at as paths or commands.
    :ivar perhaps: words of a program that is not understood; they may be files.
    :ivar views: other ways to write the command, for rules that deny.
    :ivar base: a folder it works in instead of the current one.
    :ivar reads_here: it reads the folder it runs in; `trusts_here`: and takes configuration from it.
    :ivar brings_files: it makes files that the command does not name, as a checkout does.
    :ivar trees: folders that it reads with everything below them.
    :ivar refusals: why no rule and no mode lets it run; `insists`: why it is asked about in every mode.
    :ivar moves: where ``cd`` leads; `moved` when the folder changes in a way that is not known.
    :ivar patches: texts that say what it changes; `bulk_changes`: folders and archives whose content arrives somewhere.
    :ivar checkout: commits whose content it brings; `moves_names`: which names of git mean something else afterwards.
    :ivar shown: content that it prints from git's store.
    :ivar stdin: a here-document or here-string that is fed in; `stdin_file`: a file that is.
    :ivar runs: files whose content is run; `sought` those that the program finds by itself.
    :ivar code: texts in other languages that are run; only what no mode opens is looked for in them.
    """

    known: bool = False
    guards: list[UncoveredWords] = field(default_factory=list[UncoveredWords])
    reads: list[Arg] = field(default_factory=list[Arg])
    perhaps: list[Arg] = field(default_factory=list[Arg])
    writes: list[WrittenFile] = field(default_factory=list[WrittenFile])
    inner: list[InnerCommand] = field(default_factory=list[InnerCommand])
    texts: list[InnerText] = field(default_factory=list[InnerText])
    views: list[tuple[Arg, ...]] = field(default_factory=list[tuple[Arg, ...]])
    base: Arg | None = None
    reads_here: bool = False
    trusts_here: bool = False
    brings_files: bool = False
    refusals: list[str] = field(default_factory=list[str])
    insists: list[str] = field(default_factory=list[str])
    trees: list[Tree] = field(default_factory=list[Tree])
    moves: Arg | None = None
    moved: bool = False
    patches: list[Patch] = field(default_factory=list[Patch])
    bulk_changes: list[BulkChange] = field(default_factory=list[BulkChange])
    checkout: Checkout | None = None
    shown: GitOutput | None = None
    moves_names: str = ""
    stdin: Word | None = None
    stdin_file: Arg | None = None
    code: list[Arg] = field(default_factory=list[Arg])
    runs: list[Arg] = field(default_factory=list[Arg])
    sought: list[SoughtFiles] = field(default_factory=list[SoughtFiles])

    @property
    def stdin_text(self) -> Arg:
        """What a here-document or here-string feeds in."""
        assert self.stdin is not None
        return argument(self.stdin)

    def guard(self, index: int, why: str) -> None:
        """Note that a rule must spell out the words up to `index`."""
        self.guards.append(UncoveredWords(index, why))

    def guard_unseen(self, why: str) -> None:
        """Note that something is run that the command does not show."""
        self.guards.append(UncoveredWords(0, why, unseen=True))


Inspector = Callable[[Sequence[Arg], CommandEffects], None]
"""What looks at one command and fills in its effects."""


_WHAT = {
    "R": "names a file that says what to read",
    "w": "writes a file",
    "x": "runs a program",
    "h": "names another host",
    "c": "runs what it is given",
    "g": "is not covered by a wildcard",
    "i": "changes files",
}


def take_option(option: CommandItem, effects: CommandEffects, args: Sequence[Arg]) -> None:
    """Note what an option means."""
    if option.operand or not option.role:
        return
    value = option.value
    shown = f"-{option.name}" if len(option.name) == 1 else f"--{option.name}"
    if option.role in GUARDED:
        effects.guards.append(UncoveredWords(option.index, f"{args[0].text} {shown} {_WHAT[option.role]}"))
    if value is None or value.text == "-":
        return
    match option.role:
        case "r" | "R":
            effects.reads.append(value)
        case "w":
            effects.writes.append(WrittenFile(value))
        case "d":
            effects.base = value
        case "x" | "t":
            effects.texts.append(InnerText(value))
        case _:
            pass


_TELLING = frozenset(
    {
        "exec", "execute", "command", "cmd", "program", "prog", "shell", "script", "pager", "editor", "viewer", "browser",
        "hook", "hooks", "plugin", "plugins", "preload", "loader", "rsh", "ssh", "wrapper", "helper", "askpass", "config",
        "rcfile", "rc", "proxy", "registry", "eval", "interpreter", "launcher", "linker", "runner", "driver", "compiler",
        "token", "helpers", "daemon", "agent", "unzip", "pre", "preprocessor", "filter-command", "remote-cmd", "rpath",
    }
)  # fmt: skip
_NEGATED = frozenset({"no", "ignore", "skip", "without", "disable", "list", "show", "print"})


def guard_telling_name(option: CommandItem, effects: CommandEffects, args: Sequence[Arg]) -> None:
    """Guard an option that is not in the table when its name says that it names a program, a host or what to configure."""
    parts = re.split(r"[-.:_]", option.name.lower())
    if not option.operand and not option.role and len(option.name) > 1 and parts[0] not in _NEGATED and _TELLING & set(parts):
        effects.guard(option.index, f"{args[0].text} --{option.name} may name a program, a host or what to configure")

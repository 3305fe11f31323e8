"""What one command does: options and operands, what it reads, writes and runs, and the words that a wildcard does not cover.

A table line lists the options of a program that matter: ``o=w output=w`` says that the value of ``-o`` or ``--output`` is a
file that is written. The letters:

======  =======================================================================================
``v``   a value that is neither a file nor a program
``m``   a text that people read
``r``   a file that is read
``R``   the same, but its content says what is read or run next; a wildcard does not cover the option
``w``   a file that is written; a wildcard does not cover the option
``d``   a folder to work in
``t``   a shell text that is run; it is judged like a command of its own
``x``   the same, but a wildcard over the outer program does not cover it either
``c``   text in another language that is run; a wildcard does not cover it
``h``   a host that the program connects to, or a value that selects one; a wildcard does not cover it
``g``   no value, but a wildcard does not cover the option
``i``   like ``g``, and text directly after the letter belongs to it (``-i.bak``)
``a``   has no effect, and text directly after the letter belongs to it (``-Iseconds``)
======  =======================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from .syntax import Arg, Word, argument

# ---------------------------------------------------------------- options and operands


TAKES_VALUE = frozenset("vrRwdtxchm")
GUARDED = frozenset("Rwxchgi")


class OptionTable(NamedTuple):
    """The options of a program that matter, by letter and by name."""

    short: dict[str, str]
    long: dict[str, str]
    single_dash: bool = False


class CommandItem(NamedTuple):
    """An option or an operand.

    :param place: the index of its last word.
    :param role: a letter of the table; empty for an operand and for an option that is not in the table.
    """

    place: int
    name: str
    role: str
    value: Arg | None = None

    @property
    def operand(self) -> bool:
        return not self.name


@lru_cache(maxsize=512)
def spec(text: str) -> OptionTable:
    """Return the table line `text` as a value; ``-long`` options with one dash are written ``-name=…``."""
    short: dict[str, str] = {}
    long: dict[str, str] = {}
    single = False
    for item in text.split():
        name, _, role = item.partition("=")
        single |= name.startswith("-") and len(name) > 2
        name = name.lstrip("-")
        (short if len(name) == 1 else long)[name] = role or "g"
    return OptionTable(short, long, single)


def read_options(
    args: Sequence[Arg], table: OptionTable, start: int = 1, *, stop_at_operand: bool = False, files: bool = False
) -> Iterator[CommandItem]:
    """Yield the options and operands of a command.

    :param stop_at_operand: stop after the first operand: another command begins there, as after ``env``.
    :param files: operands are files, so the word after an abbreviated option counts as an operand if it could be one.
    """
    index, only_operands = start, False
    while index < len(args):
        text = args[index].text
        if only_operands or not text.startswith("-") or text == "-":
            yield CommandItem(index, "", "", args[index])
            if stop_at_operand:
                return
        elif text == "--":
            only_operands = True
        else:
            for found in _option(args, index, table, files=files):
                yield found
                index = found.place
        index += 1


def names_of(found: Iterable[CommandItem]) -> set[str]:
    return {item.name for item in found if not item.operand}


def placed_operands(found: Iterable[CommandItem]) -> list[tuple[int, Arg]]:
    """Return the operands, each with its index."""
    return [(item.place, item.value) for item in found if item.operand and item.value is not None]


def operands_of(found: Iterable[CommandItem]) -> list[Arg]:
    return [value for _, value in placed_operands(found)]


def values_of(found: Iterable[CommandItem], *names: str) -> list[Arg]:
    """Return the values of the options called one of `names`."""
    return [item.value for item in found if item.name in names and item.value is not None]


def small_number(found: Iterable[CommandItem], *names: str) -> int | None:
    """Return the value of the last option called one of `names`, if it is a number of up to three digits; else ``None``."""
    given = [value.text for value in values_of(found, *names)]
    return int(given[-1]) if given and given[-1].isdecimal() and len(given[-1]) < 4 else None


def _option(args: Sequence[Arg], index: int, table: OptionTable, *, files: bool) -> Iterator[CommandItem]:
    text = args[index].text
    one_dash = table.single_dash and len(text) > 2 and _lookup(text[1:].partition("=")[0], table.long)
    if text.startswith("--") or one_dash:
        yield _long(args, index, table, 2 if text.startswith("--") else 1, files=files)
    else:
        yield from _cluster(args, index, table)


def _long(args: Sequence[Arg], index: int, table: OptionTable, dashes: int, *, files: bool) -> CommandItem:
    name, equals, _ = args[index].text[dashes:].partition("=")
    known = _lookup(name, table.long)
    role = table.long.get(known, "")
    if files and role == "v" and known != name and not equals:
        # The program may have another option of this exact name that takes no value; the next word is then an operand.
        return CommandItem(index, known, role)
    if equals:
        return CommandItem(index, known or name, role, args[index].cut(dashes + len(name) + 1))
    if role in TAKES_VALUE and role and index + 1 < len(args):
        # Another option may have this exact name (``git update-index --add``), so an option that follows is read as one too.
        again = known != name and args[index + 1].text.startswith("-")
        return CommandItem(index if again else index + 1, known, role, args[index + 1])
    return CommandItem(index, known or name, role)


def _lookup(name: str, names: dict[str, str]) -> str:
    """Return the option that `name` is or abbreviates; of several, the one that matters most."""
    if name in names:
        return name
    meant = [known for known in names if known.startswith(name)] if name else []
    return max(meant, key=lambda known: (names[known] in GUARDED, names[known] in "rd"), default="")


def _cluster(args: Sequence[Arg], index: int, table: OptionTable) -> Iterator[CommandItem]:
    """Read ``-abc``; the first letter that takes a value takes the rest of the word."""
    word = args[index]
    for position, letter in enumerate(word.text[1:], 1):
        role = table.short.get(letter, "")
        takes = role != "" and role in TAKES_VALUE
        if takes and position + 1 == len(word.text):
            value = args[index + 1] if index + 1 < len(args) else None
            yield CommandItem(index + 1 if value else index, letter, role, value)
        elif takes or (role and role in "ia"):
            yield CommandItem(index, letter, role, word.cut(position + 1))
            return
        else:
            yield CommandItem(index, letter, role)


def table_rows(table: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, operands, options) for every name of `table`."""
    logical: list[str] = []
    for line in filter(str.strip, table.splitlines()):
        if line[0].isspace():
            logical[-1] += f" {line.strip()}"
        else:
            logical.append(line)
    for line in logical:
        names, operands, options = (part.strip() for part in line.split("|"))
        yield from ((name, operands, options) for name in names.split())


MAX_COMMANDS = 64
"""How many commands inside one command are judged; a command with more of them is not understood."""


# ---------------------------------------------------------------- effects


class EffectUnknown(Exception):
    """The effect of a command cannot be determined before it runs; the text says why."""


class Patch(NamedTuple):
    """A patch that a command applies.

    :param files: the files that hold the patch; `outside`: a redirection names them, so they are in the folder of the shell.
    :param text: a here-document that holds the patch.
    :param strip: how many names are removed from the front of a path (``-p``); ``None`` when the command does not say.
    :param given: an operand names the file to change, whatever the patch says.
    :param may_merge: git may be configured to merge the patch where it does not apply.
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
"""The kind of ignore files that a program respects."""


class Tree(NamedTuple):
    """Folders that a command reads with everything below them.

    :param why: the program and the option, for the question.
    :param roots: the folders; if empty, the folder that the command runs in.
    :param only: globs of the files that are read; with `others`, other files are read too.
    :param without: globs of files and folders that are skipped; `whole_path`: they match the path as it was given.
    :param hidden: names that begin with a dot are read too.
    :param depth: how many levels of folders are read; ``None`` for all.
    :param links: links are followed.
    :param repository: the folder ``.git`` is never read.
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
    """Folders or an archive that a command copies, moves, unpacks, links or changes as a whole.

    :param why: the program.
    :param sources: the folders, or the archive.
    :param goal: the new path, or the folder that holds it.
    :param how: what happens to the sources: ``copied``, ``moved``, ``unpacked``, ``linked``, ``changed`` or ``restored``.
    :param strip: how many names are removed from the front of a path in an archive.
    :param tree: says which files are skipped.
    :param outside: relative paths start in the folder of the shell, not in a folder that an option names.
    """

    why: str
    sources: tuple[Arg, ...]
    goal: Arg = Arg(".")
    how: str = "copied"
    strip: int = 0
    tree: Tree | None = None
    outside: bool = False


class Checkout(NamedTuple):
    """Commits whose files a command of git writes into the working tree.

    :param against: what the commits are compared with; ``parents``: each commit with its parents; ``list``: the commits
        are those that an unfinished command (a rebase, for example) still has to apply.
    :param revisions: the commits, or the stash.
    :param or_path: the first revision may be a path instead.
    :param paths: only files below these paths; if empty, all files.
    :param unknown: why the files cannot be determined before the command runs.
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
    :param words: revisions, then paths, which git distinguishes by itself; `paths`: those after ``--``.
    :param most: how many commits of a history; `several`: of all branches and tags, whatever is named.
    :param every: the verb may print every tracked file.
    """

    why: str
    how: Literal["files", "differences", "commits", "history", "stash", "object"]
    words: tuple[Arg, ...] = ()
    paths: tuple[Arg, ...] = ()
    most: int = 0
    several: bool = False
    every: bool = False


class UncoveredWords(NamedTuple):
    """Words that a wildcard does not cover.

    :param place: the index of the last word that a rule has to spell out.
    :param why: what the words do.
    :param unseen: no rule can spell it out: what runs is not in the command.
    """

    place: int
    why: str
    unseen: bool = False


class InnerCommand(NamedTuple):
    """A command that another one runs, in the folder that the outer one works in.

    :param same_shell: it runs in this shell, so its ``cd`` changes the folder of later commands.
    """

    args: tuple[Arg, ...]
    same_shell: bool = False


class InnerText(NamedTuple):
    """A shell text that a command runs.

    :param elsewhere: it runs on another machine, so its folder is unknown.
    :param fed: it is not among the words of the command, so no rule for the command covers it.
    """

    text: Arg
    same_shell: bool = False
    elsewhere: bool = False
    fed: bool = False


class WrittenFile(NamedTuple):
    """A file that is changed.

    :param whole: if it is a folder, everything below it is changed.
    :param asks: outside the vault the change is asked about, not denied, because the command is always asked about.
    """

    path: Arg
    whole: bool = False
    asks: bool = False


class SoughtFiles(NamedTuple):
    """Files that a program looks for by itself and runs, in this order, as ``make`` does with its makefile.

    :param upward: it also looks in the folders above, up to the vault; `every`: it runs all of them, not only the first.
    """

    names: tuple[str, ...]
    upward: bool = False
    every: bool = False


class CommandEffects:
    """The effects of one command; an inspector fills them in.

    :ivar known: the program's operands are understood, so its other words are not tried as paths or commands.
    :ivar possible_files: words of an unknown program that may be files; `may_write`: the program may change these files.
    :ivar views: other spellings of the command, for rules that ask or deny.
    :ivar base: the folder that the command works in, if not the current one.
    :ivar reads_here: it reads the folder it runs in; `trusts_here`: it also takes configuration from there.
    :ivar brings_files: it writes files that the command does not name, as a checkout does.
    :ivar trees: folders that it reads with everything below them.
    :ivar refusals: why no rule and no mode lets it run; `always_asks`: why it is asked about in every mode.
    :ivar moves: where ``cd`` leads; `folder_unknown`: the folder changes to an unknown one.
    :ivar patches: patches that it applies; `bulk_changes`: folders and archives that it copies, unpacks and so on.
    :ivar checkout: commits whose files it writes; `moves_names`: which names of git mean another commit afterwards.
    :ivar git_output: content that it prints from git's store.
    :ivar stdin: the here-document or here-string on its standard input; `stdin_file`: the file there.
    :ivar harmless: ids of words that surely name no file it may write: a message, a script that is understood.
    :ivar runs: files whose content is run; `sought`: files that the program finds by itself and runs.
    :ivar code: texts in other languages that are run; they are searched only for what no mode allows.
    """

    base: Arg | None = None
    moves: Arg | None = None
    checkout: Checkout | None = None
    git_output: GitOutput | None = None
    moves_names = ""
    reads_here = trusts_here = may_write = brings_files = folder_unknown = False

    def __init__(self, *, known: bool = False, stdin: Word | None = None, stdin_file: Arg | None = None) -> None:
        self.known = known
        self.guards: list[UncoveredWords] = []
        self.reads: list[Arg] = []
        self.possible_files: list[Arg] = []
        self.writes: list[WrittenFile] = []
        self.inner: list[InnerCommand] = []
        self.texts: list[InnerText] = []
        self.views: list[tuple[Arg, ...]] = []
        self.refusals: list[str] = []
        self.always_asks: list[str] = []
        self.trees: list[Tree] = []
        self.patches: list[Patch] = []
        self.bulk_changes: list[BulkChange] = []
        self.stdin = stdin
        self.stdin_file = stdin_file
        self.harmless: set[int] = set()
        self.code: list[Arg] = []
        self.scripts: list[Arg] = []
        self.runs: list[Arg] = []
        self.sought: list[SoughtFiles] = []

    @property
    def stdin_text(self) -> Arg:
        """The text of the here-document or here-string; only valid if `stdin` is set."""
        assert self.stdin is not None
        return argument(self.stdin)

    def guard(self, index: int, why: str) -> None:
        """Record that a rule must spell out the words up to `index`."""
        self.guards.append(UncoveredWords(index, why))

    def guard_unseen(self, why: str) -> None:
        """Record that the command runs something that its text does not show."""
        self.guards.append(UncoveredWords(0, why, unseen=True))


Inspector = Callable[[Sequence[Arg], CommandEffects], None]
"""A function that reads the words of one command and fills in its effects."""


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
    if option.operand or not option.role:
        return
    value = option.value
    shown = f"-{option.name}" if len(option.name) == 1 else f"--{option.name}"
    if option.role in GUARDED:
        effects.guards.append(UncoveredWords(option.place, f"{args[0].text} {shown} {_WHAT[option.role]}"))
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


def note_messages(found: Sequence[CommandItem], args: Sequence[Arg], effects: CommandEffects) -> None:
    """Record which words are messages for people. The word after an unknown option is not: it may be that option's value."""
    for before, item in zip((None, *found), found, strict=False):
        if item.role == "m" and item.place < len(args) and (before is None or before.operand or before.role):
            effects.harmless.add(id(args[item.place]))


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
    """Guard an option that is not in the table if its name suggests a program, a host or configuration."""
    parts = re.split(r"[-.:_]", option.name.lower())
    if not option.operand and not option.role and len(option.name) > 1 and parts[0] not in _NEGATED and _TELLING & set(parts):
        effects.guard(option.place, f"{args[0].text} --{option.name} may name a program, a host or what to configure")

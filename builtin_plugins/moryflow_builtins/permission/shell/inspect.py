"""Look at one command: which program, which options, which files, which commands inside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from moryflow_sdk.sensitive import sensitive

from . import interpreters, scripts, state, wrappers
from .facts import Facts, Guard, Inner, InnerText, Write
from .find import inspect_find
from .git import inspect_dashed_git, inspect_git
from .options import GUARDED, Found, read_options, spec
from .programs import PROGRAMS, RUNNERS, VERBS_THAT_RUN
from .words import Arg

Inspector = Callable[[Sequence[Arg], Facts], None]

SPECIAL: dict[str, Inspector] = {
    **wrappers.INSPECTORS,
    **interpreters.INSPECTORS,
    **state.INSPECTORS,
    **scripts.INSPECTORS,
    "find": inspect_find,
    "git": inspect_git,
}
"""Programs whose words follow rules of their own."""

_WHAT = {
    "R": "names a file that says what to read",
    "w": "writes a file",
    "x": "runs a program",
    "c": "runs what it is given",
    "g": "is not covered by a wildcard",
    "i": "changes files",
}


def basename(word: Arg) -> str:
    """Return a word without its folder."""
    return word.text.rstrip("/").rpartition("/")[2]


def name_of(args: Sequence[Arg]) -> str:
    """Return the name of the program without its folder; empty when it is not known."""
    return basename(args[0]) if args and args[0].static else ""


def inspect(args: Sequence[Arg], facts: Facts) -> None:
    """Fill `facts` with what is known about the command `args`."""
    name = name_of(args)
    special = SPECIAL.get(name) or _by_family(name)
    if special is not None:
        facts.known = True
        special(args, facts)
    elif name in PROGRAMS:
        facts.known = True
        operands, options = PROGRAMS[name]
        by_table(args, facts, operands, options)
        _running(name, args, facts)
        if name in _PAGERS:
            _first_commands(args, facts)
    else:
        _unknown(name, args, facts)
    facts.reads += [arg.cut(7) for arg in args[1:] if arg.text.startswith("file://")]


def _by_family(name: str) -> Inspector | None:
    """Return what looks at programs whose names carry a version."""
    if interpreters.is_language(name):
        return interpreters.inspect_language
    if wrappers.is_loader(name):
        return wrappers.inspect_loader
    return inspect_dashed_git if name.startswith("git-") else None


def by_table(args: Sequence[Arg], facts: Facts, operands: str, options: str) -> None:
    """Look at a command whose operands and options stand in the table."""
    found = list(read_options(args, spec(options), files=True))
    patterns = False
    after_operand = False
    for option in found:
        patterns |= option.name in ("e", "f", "regexp", "file", "files", "type-list")
        take_option(option, facts, args)
        value = option.value
        if option.role == "v" and value is not None and value is args[option.index] and (after_operand or operands[0] != "p"):
            _no_value_after_all(value, facts)
        after_operand |= option.operand
        facts.perhaps += [option.value] if not option.operand and not option.role and option.value is not None else []
    files = [item.value for item in found if item.operand and item.value is not None]
    _take_operands(operands, files, facts, args, has_pattern=patterns)


def take_option(option: Found, facts: Facts, args: Sequence[Arg]) -> None:
    """Note what an option means."""
    if option.operand or not option.role:
        return
    value = option.value
    shown = f"-{option.name}" if len(option.name) == 1 else f"--{option.name}"
    if option.role in GUARDED:
        facts.guards.append(Guard(option.index, f"{args[0].text} {shown} {_WHAT[option.role]}"))
    if value is None or value.text == "-":
        return
    match option.role:
        case "r" | "R":
            facts.reads.append(value)
        case "w":
            facts.writes.append(Write(value))
        case "d":
            facts.base = value
        case "x" | "t":
            facts.texts.append(InnerText(value))
        case _:
            pass


def _take_operands(kind: str, files: list[Arg], facts: Facts, args: Sequence[Arg], *, has_pattern: bool) -> None:
    files = [arg for arg in files if arg.text != "-"]
    facts.reads_here |= kind.endswith(".") and len(files) < (1 if kind == "r." or has_pattern else 2)
    match kind:
        case "r" | "r.":
            facts.reads += files
        case "p" | "p.":
            facts.reads += files if has_pattern else files[1:]
        case "w":
            # With a folder to work in and no file, as for patch, what is changed there is said by what it reads.
            facts.writes += [Write(arg) for arg in files or ([Arg(".")] if facts.base else [])]
        case "W":
            facts.writes += [Write(arg, whole=True) for arg in files]
        case "rw" | "Ww":
            _copied(kind, files, facts)
        case "r1w":
            facts.reads += files[:1]
            if len(files) > 1:
                facts.writes += [Write(arg) for arg in files[1:]]
                facts.guard(len(args) - 1, f"the second operand of {args[0].text} is written")
        case "rw1":
            facts.writes += [Write(arg) for arg in files[:1]]
            facts.reads += files[1:]
        case "1w":
            facts.writes += [Write(arg, whole=True) for arg in files[1:] or files]
        case _:
            pass


def _copied(kind: str, files: list[Arg], facts: Facts) -> None:
    """Take the last operand as the destination, unless an option named one."""
    sources, last = (files, None) if facts.writes or len(files) < 2 else (files[:-1], files[-1])
    sources = [arg for arg in sources if not _remote(arg)]
    if kind == "Ww":
        facts.writes += [Write(arg, whole=True) for arg in sources]
    facts.reads += sources
    if last is not None and not _remote(last):
        facts.writes.append(Write(last))


def _remote(arg: Arg) -> bool:
    """Whether `arg` names a file of another machine, as for ``scp`` and ``rsync``."""
    host, colon, _ = arg.text.partition(":")
    return bool(colon) and "/" not in host


def _first(args: Sequence[Arg], verbs: frozenset[str]) -> int:
    """Return where one of `verbs` stands as the subcommand, or anywhere as an option; 0 where none does."""
    heads = [arg.text.partition("=")[0] for arg in args]
    option = next((index for index, head in enumerate(heads) if head.startswith("-") and head in verbs), 0)
    return option or next((index for index in _subcommands(heads) if heads[index] in verbs), 0)


def _subcommands(words: Sequence[str]) -> Iterator[int]:
    """Yield where the subcommand may stand: what follows an option may be its value, a group has subcommands of its own."""
    after_option = in_group = False
    for index, word in enumerate(words[1:], 1):
        if word.startswith("-"):
            after_option = True
            continue
        yield index
        if not after_option and not in_group and word not in _GROUPS:
            return
        in_group = word in _GROUPS
        after_option = False


_GROUPS = frozenset({"compose", "container", "image", "service", "exec", "tool", "project"})


_OUTSIDE = re.compile(r"/.|~|\.\.(?:/|\Z)")


def _no_value_after_all(word: Arg, facts: Facts) -> None:
    """Versions of a program differ in which letters take a value and where options end; the word may be a file."""
    if len(word.text) > 1 and (_OUTSIDE.match(word.text) or "/" in word.text or sensitive(word.text)):
        facts.perhaps.append(word)


_PAGERS = frozenset({"less", "more", "most", "pg"})
_MOVES = re.compile(r"\+\+?(?:[Fg]|\d*G?|/[ -~]*)")


def _first_commands(args: Sequence[Arg], facts: Facts) -> None:
    """``less +command``: what is not a place in the file can be a program."""
    for index, arg in enumerate(args):
        if arg.text.startswith("+") and not _MOVES.fullmatch(arg.text):
            facts.guard(index, f"{args[0].text} {arg.text} gives the pager a command")


def _running(name: str, args: Sequence[Arg], facts: Facts) -> None:
    running = _first(args, VERBS_THAT_RUN.get(name, frozenset()))
    if running:
        facts.guard(len(args) - 1, f"{name} {args[running].text} runs or configures what the rule does not show")


def _unknown(name: str, args: Sequence[Arg], facts: Facts) -> None:
    """Take every word that looks like a path for one, and every group of words for what may be a command."""
    facts.known = name in VERBS_THAT_RUN or name in RUNNERS
    _running(name, args, facts)
    runner = _first(args, RUNNERS.get(name, frozenset()))
    if runner:
        words = [index for index in range(runner + 1, len(args)) if not args[index].text.startswith("-")]
        facts.inner += [Inner(tuple(args[index:])) for index in words[:1]]
        if words and args[words[0]].text.endswith(".py"):
            facts.guard(words[0], f"{name} runs the code in {args[words[0]].text}")
    for arg in args[1:]:
        value = arg.cut(arg.text.index("=") + 1) if "=" in arg.text else arg
        facts.perhaps += [word for word in dict.fromkeys((arg, value)) if not word.text.startswith("-")]
        if arg.text[:1] == "-" != arg.text[1:2]:
            _no_value_after_all(arg.cut(2), facts)

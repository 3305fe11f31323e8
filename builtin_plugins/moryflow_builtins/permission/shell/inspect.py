"""Find the effects of one command: its program, options and files, and the commands inside it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moryflow_sdk.support.protected_files import sensitive

from . import interpreters, moryflow_command, scripts, transfer, wrappers
from .effects import (
    BulkChange,
    CommandEffects,
    Inspector,
    WrittenFile,
    guard_telling_name,
    note_messages,
    operands_of,
    read_options,
    spec,
    take_option,
    values_of,
)
from .programs import (
    ABBREVIATED,
    ALSO_RUN,
    CLUSTERED,
    COMPILERS,
    LOOKS_FOR,
    OPTIONS_THAT_RUN,
    PROGRAMS,
    bulk_changes_of,
    is_exclusion,
    is_folder_maker,
    trees_of,
)
from .syntax import MAX_PIECES, Arg, addressed_files, file_pieces
from .transfer import inspect_upload
from .verbs import VERBS, inspect_verbs


def _inspect_git(args: Sequence[Arg], effects: CommandEffects) -> None:
    from .git import inspect_git  # with the modules that read repositories a fifth of the judge; most commands need none

    inspect_git(args, effects)


def _inspect_dashed_git(args: Sequence[Arg], effects: CommandEffects) -> None:
    from .git import inspect_dashed_git

    inspect_dashed_git(args, effects)


SPECIAL: dict[str, Inspector] = {
    **wrappers.INSPECTORS,
    **interpreters.INSPECTORS,
    **scripts.INSPECTORS,
    **transfer.INSPECTORS,
    "git": _inspect_git,
    moryflow_command.PROGRAM: moryflow_command.inspect_own_program,
}
"""Programs with an inspector of their own."""


def basename(word: Arg) -> str:
    """Return a word without its folder."""
    return word.text.rstrip("/").rpartition("/")[2]


def name_of(args: Sequence[Arg]) -> str:
    """Return the name of the program without its folder; empty when it is not known."""
    return basename(args[0]) if args and args[0].static else ""


def inspect(args: Sequence[Arg], effects: CommandEffects) -> None:
    """Fill `effects` with what is known about the command `args`."""
    if args[0].text.endswith("/"):  # bash does not run `rm/`; it is judged like `rm`
        args = (args[0]._replace(text=args[0].text.rstrip("/")), *args[1:])
    name = name_of(args)
    special = SPECIAL.get(name) or _inspector_by_name(name)
    if special is not None:
        effects.known = True
        special(args, effects)
    elif name in VERBS:
        inspect_verbs(name, args, effects)
        effects.may_write = True
        _note_words(args, effects)
    elif name in PROGRAMS:
        effects.known = True
        operands, options = PROGRAMS[name]
        inspect_by_table(args, effects, operands, options)
        _guard_running_options(name, args, effects)
        if name == "pdftotext" and not effects.writes and args[-1].text != "-":
            texts = (file._replace(text=f"{file.text.removesuffix('.pdf')}.txt") for file in effects.reads)
            effects.writes += map(WrittenFile, texts)
        for index, arg in enumerate(args if name in _PAGERS else ()):
            if arg.text.startswith("+") and not _MOVES.fullmatch(arg.text):  # a command of ``less`` can run a program
                effects.guard(index, f"{args[0].text} {arg.text} gives the pager a command")
    else:
        _inspect_unknown(name, args, effects)
    inspect_upload(name, args, effects)
    if any(_REMOVING[name].fullmatch(arg.text) for arg in args[1:] if name in _REMOVING):
        effects.writes += map(WrittenFile, effects.reads)
        effects.bulk_changes.append(BulkChange(name, tuple(effects.reads), how="changed"))
    if name == "rsync" and any(arg.text.startswith("--del") for arg in args[1:]):
        effects.writes = [write._replace(whole=True) for write in effects.writes]
    if name in wrappers.MOUNTS:
        wrappers.note_mounts(name, args, effects)
    if name in LOOKS_FOR:
        effects.sought += [] if effects.runs else [LOOKS_FOR[name]]  # a file that is named runs instead
        effects.may_write = True
    moryflow_command.inspect_carriers(args, effects)
    for index, arg in enumerate(args[1:], 1):
        _file_addresses(index, arg, effects)


_REMOVING = {
    **dict.fromkeys(("tar", "gtar"), re.compile(r"--rem[a-z-]*")),
    "rsync": re.compile(r"--remove-s(?:ource|ent)-files"),
    "zip": re.compile(r"-[A-Za-z]*m[A-Za-z]*|--mo(?:v|ve)?"),
    **dict.fromkeys(("7z", "7za", "7zr", "7zz"), re.compile(r"-sdel", re.IGNORECASE)),
    "rar": re.compile(r"-d[fr]", re.IGNORECASE),
}
"""Options that make an archiver remove the files that it has read."""

_PATTERN = re.compile(r"[\[{]")


def _file_addresses(index: int, arg: Arg, effects: CommandEffects) -> None:
    """Record the files that ``file:`` addresses in a word name."""
    for whole in addressed_files(arg.text):
        pattern = _PATTERN.search(whole)
        if pattern:
            effects.guard(index, f"{arg.text[:80]} stands for several files")
            whole = whole[: pattern.start()].rpartition("/")[0]
        effects.reads += [Arg(whole, arg.why)] if whole and "\0" not in whole else []


def _inspector_by_name(name: str) -> Inspector | None:
    """Return the inspector of a program whose name varies, as ``python3.12`` or ``git-log``."""
    if interpreters.is_language(name):
        return interpreters.inspect_language
    if moryflow_command.is_own(name):
        return moryflow_command.inspect_own_program
    if wrappers.LOADER.fullmatch(name):
        return wrappers.inspect_loader
    return _inspect_dashed_git if name.startswith("git-") else None


def inspect_by_table(args: Sequence[Arg], effects: CommandEffects, operands: str, options: str) -> None:
    """Fill in the effects of a command whose operands and options are in the table."""
    found = list(read_options(args, spec(options), files=True))
    patterns = False
    after_operand = False
    for option in found:
        patterns |= option.name in ("e", "f", "regexp", "file", "files", "type-list")
        take_option(option, effects, args)
        guard_telling_name(option, effects, args)
        value = option.value
        a_word = option.role == "v" and value is not None and value is args[option.place]
        if value is not None and a_word and (after_operand or operands[0] != "p") and not is_exclusion(name_of(args), option):
            _note_possible_file(value, effects)
        after_operand |= option.operand
        effects.possible_files += file_pieces(value) if value is not None and not option.operand and not option.role else []
    files = operands_of(found)
    if is_folder_maker(name_of(args), found):
        operands = "w"
    _take_operands(operands, files, effects, args, has_pattern=patterns)
    if name_of(args) in ("patch", "gpatch"):
        from .payloads import plain_patch

        plain_patch(found, effects)
    trees = trees_of(name_of(args), found, [item for item in files if item.text != "-"], pattern=patterns)
    effects.trees += trees
    effects.bulk_changes += bulk_changes_of(name_of(args), found, files, trees)


def _take_operands(kind: str, named: list[Arg], effects: CommandEffects, args: Sequence[Arg], *, has_pattern: bool) -> None:
    files = [arg for arg in named if arg.text != "-"]
    effects.reads_here |= kind.endswith(".") and len(files) < (1 if kind == "r." or has_pattern else 2)
    match kind:
        case "r" | "r.":
            effects.reads += files
        case "p" | "p.":
            effects.reads += files if has_pattern else files[1:]
        case "w":
            # With a folder to work in and no file, as for patch, the input says which files in the folder are changed.
            effects.writes += [WrittenFile(arg) for arg in files or ([Arg(".")] if effects.base else [])]
        case "W":
            effects.writes += [WrittenFile(arg, whole=True) for arg in files]
        case "rw" | "Ww":
            _take_copy(kind, files, effects)
        case "r1w":
            first = files[: 1 if named[:1] == files[:1] else 0]
            effects.reads += first
            if len(files) > len(first):
                effects.writes += [WrittenFile(arg) for arg in files[len(first) :]]
                effects.guard(len(args) - 1, f"the second operand of {args[0].text} is written")
        case "rw1":
            effects.writes += [WrittenFile(arg) for arg in files[:1]]
            effects.reads += files[1:]
        case "1w":
            effects.writes += [WrittenFile(arg, whole=True) for arg in files[1:] or files]
        case _:
            pass


def _take_copy(kind: str, files: list[Arg], effects: CommandEffects) -> None:
    """Record sources and destination; the destination is the last operand, unless an option named one."""
    sources, last = (files, None) if effects.writes or len(files) < 2 else (files[:-1], files[-1])
    elsewhere = list(filter(_remote, sources))
    sources = [arg for arg in sources if not _remote(arg)]
    if kind == "Ww":
        effects.writes += [WrittenFile(arg, whole=True) for arg in sources]
    effects.reads += sources
    if last is not None and not _remote(last):
        effects.writes += [WrittenFile(last), *(WrittenFile(transfer.path_in_folder(last, arg)) for arg in elsewhere)]


def _remote(arg: Arg) -> bool:
    """Whether `arg` names a file on another machine, as for ``scp`` and ``rsync``."""
    host, colon, _ = arg.text.partition(":")
    return bool(colon) and "/" not in host and not host.startswith("${")


_OUTSIDE = re.compile(r"/.|~|\.\.(?:/|\Z)")


def _note_possible_file(word: Arg, effects: CommandEffects) -> None:
    """Record the value of an option as a possible file: in another version the option may take no value."""
    if len(word.text) > 1 and (_OUTSIDE.match(word.text) or "/" in word.text or sensitive(word.text)):
        effects.possible_files.append(word)


_PAGERS = frozenset({"less", "more", "most", "pg"})
_MOVES = re.compile(r"\+\+?(?:[Fg]|\d*G?|/[ -~]*)")


_VALUE = re.compile(r"(?<!--codegen)[=:]")
_RUNNING = frozenset(
    {
        "exec", "execute", "command", "cmd", "eval", "hook", "hooks", "preload", "loader", "rsh", "ssh", "wrapper", "askpass",
        "interpreter", "launcher", "linker", "shell", "pager", "editor", "plugin", "plugins", "renderer",
    }
)  # fmt: skip
"""Words in the names of options that tell an unknown program which program to run."""


def _guard_running_options(name: str, args: Sequence[Arg], effects: CommandEffects) -> None:
    """Guard options that run a program or change what runs; they may be abbreviated."""
    running = OPTIONS_THAT_RUN.get(name, frozenset()) | ALSO_RUN.get(name, frozenset())
    for arg in args[1:]:
        head = _VALUE.split(arg.text, maxsplit=1)[0]
        part = name in ABBREVIATED and head.startswith("--") and len(head) > 2
        letters = running & CLUSTERED if head.startswith("-") and head[1:2] != "-" else frozenset[str]()
        inside = any(option[1] in head for option in letters if name in ABBREVIATED or head.startswith(option))
        named = head.startswith("--") and not effects.known and bool(_RUNNING & set(head[2:].lower().split("-")))
        if head in running or inside or named or (part and any(option.startswith(head) for option in running)):
            effects.guard(len(args) - 1, f"{name} {arg.text} runs or configures what the rule does not show")
            return


_MESSAGES = {
    "jj": ({"commit", "ci", "describe", "desc", "new", "split", "squash"}, "m=m message=m"),
    "glab": ({"mr", "issue", "release"}, "m=m message=m t=m title=m d=m description=m"),
}
"""Programs that are otherwise unknown → their verbs, and the options of these whose value is a message for people."""


def _inspect_unknown(name: str, args: Sequence[Arg], effects: CommandEffects) -> None:
    """Record every word of an unknown program as a possible file; the judge also tries the words as commands."""
    effects.known = name in OPTIONS_THAT_RUN
    effects.may_write = True
    _guard_running_options(name, args, effects)
    if name in COMPILERS:
        effects.writes += [WrittenFile(value) for value in values_of(list(read_options(args, spec("o=v"))), "o")]
        if any(arg.text.startswith("@") for arg in args[1:]):
            effects.guard(len(args) - 1, f"{name} takes options from a file")
    _note_words(args, effects)
    verbs, options = _MESSAGES.get(name, ((), ""))
    if len(args) > 1 and args[1].text in verbs:
        note_messages(list(read_options(args, spec(options))), args, effects)
    if name in transfer.STORES:
        transfer.inspect_store(name, args, effects)


def _note_words(args: Sequence[Arg], effects: CommandEffects) -> None:
    for index, arg in enumerate(args[1:], 1):
        found = file_pieces(arg)
        effects.possible_files += [word for word in dict.fromkeys(found) if not word.text.startswith("-")]
        if len(found) > MAX_PIECES:
            effects.guard(index, "a word has more parts than are checked")
        if arg.text[:1] == "-" != arg.text[1:2]:
            _note_possible_file(arg.cut(2), effects)

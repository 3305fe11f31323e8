"""Programs with a small language of their own, in which they may read, write or run: ``sed``, ``awk``, ``jq`` …"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from .effects import (
    MAX_COMMANDS,
    BulkChange,
    CommandEffects,
    CommandItem,
    InnerCommand,
    InnerText,
    Inspector,
    Tree,
    WrittenFile,
    names_of,
    operands_of,
    placed_operands,
    read_options,
    small_number,
    spec,
    take_option,
    values_of,
)
from .interpreters import STDIN
from .syntax import Arg, join_words

_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*[:+?!]*=")


def _options(args: Sequence[Arg], table: str, effects: CommandEffects) -> list[CommandItem]:
    found = list(read_options(args, spec(table)))
    for option in found:
        take_option(option, effects, args)
    return found


def inspect_sed(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``sed``: its script may run programs, and read and write files; with ``-i`` it changes its operands."""
    table = "e=v expression=v f=c file=c i=i in-place=i I=i l=v line-length=v"
    found = _options(args, table, effects)
    given = [(item.place, item.value) for item in found if item.name in ("e", "expression") and item.value is not None]
    operands = placed_operands(found)
    in_options = given or names_of(found) & {"f", "file"}
    from .filters import sed_dangers

    for place, program in given if in_options else operands[:1]:
        danger, reads, writes = sed_dangers(program.text)
        if danger:
            effects.guard(place, f"the sed script {danger}")
        elif program is args[place]:
            effects.harmless.add(id(program))
        effects.reads += [Arg(path) for path in reads]
        effects.writes += [WrittenFile(Arg(path)) for path in writes]
    _take_programs(args, values_of(found, "f", "file"), effects)
    paths = [path for _, path in (operands if in_options else operands[1:])]
    if any(item.role == "i" for item in found):
        effects.writes += map(WrittenFile, paths)
    effects.reads += paths


def _take_programs(args: Sequence[Arg], files: Sequence[Arg], effects: CommandEffects) -> None:
    """Record files whose content is run."""
    if any(file.text in STDIN for file in files):
        effects.guard_unseen(f"{args[0].text} runs whatever it reads")
    effects.reads += files
    effects.runs += files


def inspect_awk(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``awk``: a wildcard does not cover a script that runs programs, or reads or writes files by itself."""
    table = (
        "F=v v=v f=c file=c e=v source=v E=c exec=c i=c include=c l=c load=c W=c o=w p=w d=w dump-variables=w profile=w "
        "pretty-print=w assign=v field-separator=v debug=g D=i"
    )
    found = _options(args, table, effects)
    given = [(item.place, item.value) for item in found if item.name in ("e", "source") and item.value is not None]
    in_files = ("f", "file", "E", "exec", "i", "include")
    operands = placed_operands(found)
    from .filters import awk_is_dangerous

    # Some versions read no options after the first operand; then that is the script, even if -f follows.
    for place, program in (*given, *operands[:1]):
        effects.code.append(program)
        if awk_is_dangerous(program.text):
            effects.guard(place, "the awk program runs, reads or writes something by itself")
    _take_programs(args, values_of(found, *in_files), effects)
    files = operands if given or names_of(found).intersection(in_files) else operands[1:]
    effects.reads += [file for _, file in files if not _ASSIGNED.match(file.text)]


def inspect_jq(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``jq``: its filter may read the environment, modules and other files."""
    from . import filters

    filters.inspect_jq(args, effects)


def inspect_dd(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``dd`` reads the file of ``if=`` and writes the file of ``of=``."""
    for index, arg in enumerate(args[1:], 1):
        if arg.text.startswith("if="):
            effects.reads.append(arg.cut(3))
        elif arg.text.startswith("of="):
            effects.writes.append(WrittenFile(arg.cut(3)))
            effects.guard(index, "dd of= writes a file")


def inspect_tar(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``tar``: the mode letter decides whether the archive is read or written."""
    words = list(args)
    if len(words) > 1 and not words[1].text.startswith("-") and re.fullmatch(r"[A-Za-z]+", words[1].text):
        words[1] = Arg(f"-{words[1].text}", words[1].why)
        words = _old_style(words)
    table = (
        "f=v file=v C=d directory=d I=x use-compress-program=x to-command=x checkpoint-action=x F=x info-script=x "
        "new-volume-script=x rsh-command=x rmt-command=x T=R files-from=R X=r exclude-from=r exclude=v transform=v xform=v "
        "no-recursion=n dereference=n "
        "strip-components=v owner=v group=v mode=v mtime=v b=v g=w listed-incremental=w index-file=w volno-file=w "
        "add-file=r owner-map=r group-map=r chroot=g passphrase=v "
        "absolute-names=g P=g one-top-level=w K=v N=v L=v H=v format=v suffix=v S=n"
    )
    found = list(read_options(words, spec(table)))
    letters = names_of(found)
    writes = bool(letters & {"c", "r", "u", "A", "create", "append", "update", "catenate", "concatenate", "delete"})
    extracts = bool(letters & {"x", "extract", "get"})
    for item in found:
        if item.name in ("f", "file") and item.value is not None and item.value.text != "-":
            if ":" in item.value.text.partition("/")[0]:
                effects.guard(len(args) - 1, "tar reaches another machine through a program")
            elif writes:
                effects.writes.append(WrittenFile(item.value))
            else:
                effects.reads.append(item.value)
        elif item.operand and item.value is not None and not extracts:
            effects.reads.append(item.value)
        else:
            take_option(item, effects, words)
    if extracts:
        effects.writes.append(WrittenFile(Arg(".")))
        _note_extracted(found, letters, effects)
    elif writes and not letters & {"no-recursion", "delete"}:
        roots = tuple(operands_of(found))
        without = tuple(value.text for value in values_of(found, "exclude") if value.static)
        effects.trees += [Tree("tar", roots, without=without, links=bool(letters & {"h", "dereference"}))] if roots else []


def _note_extracted(found: Sequence[CommandItem], letters: set[str], effects: CommandEffects) -> None:
    """Record the archive that is unpacked, unless ``-O`` only prints its files."""
    if letters & {"O", "to-stdout"}:
        return
    strip = small_number(found, "strip-components") or 0
    archives = values_of(found, "f", "file")
    fed = not archives or archives[-1].text in ("-", "/dev/stdin")
    if (fed and effects.stdin_file is None) or letters & {"transform", "xform", "s"}:
        effects.guard_unseen("tar unpacks whatever it is fed")
        return
    archive = effects.stdin_file if fed else archives[-1]
    assert archive is not None
    folders = values_of(found, "C", "directory")
    if len(folders) > 1:
        effects.guard_unseen("tar unpacks into several folders")
        return
    effects.bulk_changes.append(
        BulkChange("tar", (archive,), folders[0] if folders else Arg("."), "unpacked", strip, outside=True)
    )


def _old_style(words: list[Arg]) -> list[Arg]:
    """Return ``tar xf a`` in the new style, with the value after each letter."""
    values = words[2:]
    taken: list[Arg] = []
    for letter in words[1].text[1:]:
        taken.append(Arg(f"-{letter}"))
        if letter in "fCITXFbgKNLHV" and values:
            taken.append(values.pop(0))
    return [words[0], *taken, *values]


def inspect_make(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``make``: variables on its command line may change what runs, and so may another makefile."""
    table = "f=c file=c makefile=c C=d directory=d I=R include-dir=R eval=c E=c j=n l=n o=v W=v O=n"
    if args[0].text.rpartition("/")[2] == "just":
        table += " justfile=c shell=x shell-arg=g shell-command=g c=g command=g chooser=x d=d working-directory=d"
    for found in _options(args, table, effects):
        value = found.value
        if found.operand and value is not None and _ASSIGNED.match(value.text.removeprefix(".")):
            effects.guard(found.place, f"make {value.text.partition('=')[0]}=… can change what is run")
        elif found.role == "c" and found.name != "eval" and value is not None:
            effects.reads.append(value)
            effects.runs.append(value)
        elif found.role == "d":
            effects.base = value
    effects.reads_here = True
    if any(arg.text == "-" for arg in args[1:]):
        effects.guard_unseen("make runs whatever it reads")


def inspect_date(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``date`` sets the clock when its operand is not a format."""
    found = _options(args, "d=v date=v f=r file=r r=r reference=r s=x set=x I=a iso-8601=n", effects)
    for place, operand in placed_operands(found):
        if not operand.text.startswith("+"):
            effects.guard(place, "date sets the clock")
    effects.texts.clear()


def inspect_man(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``man`` runs a pager and a browser, its prompt may add options of the pager, and a page may be any file."""
    table = (
        "P=x pager=x H=i html=g C=c config-file=c M=r manpath=r l=g local-file=g L=v m=v S=v s=v e=v E=v p=v "
        "preprocessor=v r=c prompt=c R=v B=x T=i X=i Z=g t=g K=n troff-device=g gxditview=g"
    )
    local = any(arg.text in ("-l", "--local-file") for arg in args)
    effects.reads += [page for page in operands_of(_options(args, table, effects)) if local or "/" in page.text]


def inspect_tmux(args: Sequence[Arg], effects: CommandEffects) -> None:
    """Terminals and terminal multiplexers run their words as commands in another terminal."""
    effects.guard(len(args) - 1, f"{args[0].text} runs programs in another terminal")
    if len(args) > MAX_COMMANDS:
        effects.guard_unseen(f"{args[0].text} is given more words than are checked as commands")
    for index in range(1, min(len(args), MAX_COMMANDS)):
        effects.texts += [InnerText(args[index]), InnerText(join_words(args[index:]))]


_ADDRESS = re.compile(r"(exec|system|shell|open|create|creat|file|gopen|pipe):([^,]*)", re.IGNORECASE)


def inspect_socat(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``socat``: its addresses may name commands or files."""
    for index, arg in enumerate(args[1:], 1):
        for found in _ADDRESS.finditer(arg.text):
            value = Arg(found.group(2), arg.why)
            if found.group(1).lower() in ("exec", "system", "shell"):
                effects.guard(index, f"socat {found.group(1)}: runs a program")
                effects.texts.append(InnerText(value))
            else:
                effects.writes.append(WrittenFile(value))


def inspect_rename(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``rename``: its first word may be Perl code, and the command does not show the new names of the files."""
    effects.guard(len(args) - 1, f"{args[0].text} may run code, and gives files names that the rule does not show")
    words = [arg for arg in args[1:] if not arg.text.startswith("-")]
    effects.code += words[:1]
    effects.possible_files += words[:2]
    effects.writes += [WrittenFile(arg, whole=True) for arg in words[1:]]


def inspect_queue(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``at`` and ``batch`` read commands and run them later."""
    _options(args, "f=r q=v t=v", effects)
    effects.guard_unseen(f"{args[0].text} runs later whatever it reads")


def inspect_crontab(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``crontab`` installs commands that run later."""
    found = _options(args, "e=g r=g u=v", effects)
    effects.reads += [operand for operand in operands_of(found) if operand.text != "-"]
    if not any(arg.text == "-l" for arg in args):
        effects.guard(len(args) - 1, "crontab installs commands that run later")
        effects.writes.append(WrittenFile(Arg("/var/spool/cron")))


# ---------------------------------------------------------------- find

_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_WRITES = frozenset({"-fprint", "-fprint0", "-fprintf", "-fls"})
_READS = frozenset({"-newer", "-anewer", "-cnewer", "-samefile", "-files0-from"})
_FOUND = "the files that find finds are known only when it runs"
_NO_READERS = frozenset(
    {"ls", "stat", "echo", "printf", "touch", "chmod", "chown", "rm", "rmdir", "mkdir", "basename", "dirname"}
)
"""Programs that do not read the files that their words name."""

_LEADING = re.compile(r"-[HLPEXdsx]+|-O.*|-D|-f|--")
"""Options before the first folder, of GNU and of BSD ``find``."""


def inspect_find(args: Sequence[Arg], effects: CommandEffects) -> None:
    effects.harmless.update(map(id, args))  # the files it writes and the commands it runs are judged separately
    index = _starting_points(args, effects)
    while index < len(args):
        text = args[index].text
        if len(effects.inner) == MAX_COMMANDS:
            effects.guard_unseen("find runs more commands than are checked")
            return
        if text in _RUNS:
            _run(args, index, effects)
        elif text in _WRITES and index + 1 < len(args):
            effects.writes.append(WrittenFile(args[index + 1]))
            effects.guard(index + 1, f"find {text} writes a file")
        elif text == "-delete":
            effects.guard(index, "find -delete removes files")
            effects.writes += [WrittenFile(arg, whole=True) for arg in _roots(args)]
        elif text == "-follow":
            effects.guard(index, "find -follow follows links out of the vault")
        elif (text in _READS or text.startswith("-newer")) and index + 1 < len(args):
            effects.reads.append(args[index + 1])
            if text == "-files0-from":
                effects.guard(index + 1, "find -files0-from starts wherever a file says")
        index += 1  # the value is looked at as well: in `-name -newer -exec a ;` the value of -newer is an action


def _starting_points(args: Sequence[Arg], effects: CommandEffects) -> int:
    roots = _roots(args)
    for index, arg in enumerate(args):
        if index and not _LEADING.fullmatch(arg.text):
            break
        if index and "L" in arg.text and not arg.text.startswith("-O"):
            effects.guard(index, "find -L follows links out of the vault")
    effects.reads += roots
    effects.reads_here = not roots
    first = next((index for index, arg in enumerate(args) if roots and arg is roots[0]), 1)
    return first + len(roots)


def _roots(args: Sequence[Arg]) -> list[Arg]:
    """Return the folders ``find`` starts in: the words before the first test or action."""
    index = 1
    roots: list[Arg] = []
    while index < len(args) and _LEADING.fullmatch(args[index].text):
        if args[index].text == "-f":
            roots += args[index + 1 : index + 2]
        index += 2 if args[index].text in ("-D", "-f") else 1
    while index < len(args) and not args[index].text.startswith("-") and args[index].text not in ("(", ")", "!", ","):
        roots.append(args[index])
        index += 1
    return roots


def _run(args: Sequence[Arg], index: int, effects: CommandEffects) -> None:
    """Record the command of ``-exec … ;`` or ``-exec … {} +``."""
    end = index + 1
    while end < len(args) and args[end].text != ";" and not (args[end].text == "+" and args[end - 1].text == "{}"):
        end += 1
    command = tuple(args[index + 1 : end])
    if args[index].text.endswith("dir"):
        command = (*command[:1], *(Arg(arg.text, arg.why or _FOUND) for arg in command[1:]))
    effects.guard(min(end, len(args) - 1), f"find {args[index].text} runs a program")
    effects.inner.append(InnerCommand(tuple(Arg(arg.text, _FOUND) if "{}" in arg.text else arg for arg in command)))
    if any("{}" in arg.text for arg in command[1:]) and command[0].text.rpartition("/")[2] not in _NO_READERS:
        effects.trees.append(_tree(args, index))


def _tree(args: Sequence[Arg], index: int) -> Tree:
    """Return the files that the command of ``-exec`` gets: those that a single ``-name`` matches, or all."""
    tests = [arg.text for arg in args[1:index]]
    names = [after for word, after in pairwise(tests) if word in ("-name", "-iname")]
    depths = [int(after) for word, after in pairwise(tests) if word == "-maxdepth" and after.isdecimal()]
    plain = not {"-o", "-or", "!", "-not", "(", ")", ","} & set(tests)
    links = any(arg.text in ("-L", "-follow") for arg in args)
    return Tree(
        f"find {args[index].text}",
        tuple(_roots(args)),
        only=tuple(names[:1]) if plain else (),
        depth=min(depths, default=None),
        links=links,
    )


INSPECTORS: dict[str, Inspector] = {
    "find": inspect_find,
    "sed": inspect_sed,
    "gsed": inspect_sed,
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk", "original-awk"), inspect_awk),
    **dict.fromkeys(("jq", "gojq", "jaq", "yq", "xq"), inspect_jq),
    "dd": inspect_dd,
    **dict.fromkeys(("tar", "bsdtar", "gtar", "jar"), inspect_tar),
    **dict.fromkeys(("make", "gmake", "just"), inspect_make),
    "date": inspect_date,
    "gdate": inspect_date,
    "man": inspect_man,
    **dict.fromkeys(("tmux", "screen", "xterm", "gnome-terminal", "konsole", "kitty", "alacritty"), inspect_tmux),
    **dict.fromkeys(("at", "batch"), inspect_queue),
    "crontab": inspect_crontab,
    "socat": inspect_socat,
    **dict.fromkeys(("rename", "prename", "file-rename", "perl-rename"), inspect_rename),
}

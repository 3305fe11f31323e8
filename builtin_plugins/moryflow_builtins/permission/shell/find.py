"""``find``: where it looks, what it runs, what it writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from .facts import Facts, Inner, Write
from .trees import Tree
from .words import Arg

_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_WRITES = frozenset({"-fprint", "-fprint0", "-fprintf", "-fls"})
_READS = frozenset({"-newer", "-anewer", "-cnewer", "-samefile", "-files0-from"})
_NO_READERS = frozenset(
    {"ls", "stat", "echo", "printf", "touch", "chmod", "chown", "rm", "rmdir", "mkdir", "basename", "dirname"}
)
"""Programs that do not open the files they are given."""

_LEADING = re.compile(r"-[HLPEXdsx]+|-O.*|-D|-f|--")
"""Options in front of the first folder, of GNU and of BSD."""


def inspect_find(args: Sequence[Arg], facts: Facts) -> None:
    """Look at a ``find`` command."""
    index = _starting_points(args, facts)
    while index < len(args):
        text = args[index].text
        if text in _RUNS:
            index = _run(args, index, facts)
        elif text in _WRITES and index + 1 < len(args):
            facts.writes.append(Write(args[index + 1]))
            facts.guard(index + 1, f"find {text} writes a file")
            index += 2
        elif text == "-delete":
            facts.guard(index, "find -delete removes files")
            facts.writes += [Write(arg, whole=True) for arg in _roots(args)]
            index += 1
        elif text == "-follow":
            facts.guard(index, "find -follow follows links out of the vault")
            index += 1
        elif (text in _READS or text.startswith("-newer")) and index + 1 < len(args):
            facts.reads.append(args[index + 1])
            if text == "-files0-from":
                facts.guard(index + 1, "find -files0-from starts wherever a file says")
            index += 2
        else:
            index += 1


def _starting_points(args: Sequence[Arg], facts: Facts) -> int:
    roots = _roots(args)
    for index, arg in enumerate(args):
        if index and not _LEADING.fullmatch(arg.text):
            break
        if index and "L" in arg.text and not arg.text.startswith("-O"):
            facts.guard(index, "find -L follows links out of the vault")
    facts.reads += roots
    facts.reads_here = not roots
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


def _run(args: Sequence[Arg], index: int, facts: Facts) -> int:
    """Take the command of ``-exec … ;`` or ``-exec … {} +``; return the place after it."""
    end = index + 1
    while end < len(args) and args[end].text != ";" and not (args[end].text == "+" and args[end - 1].text == "{}"):
        end += 1
    command = tuple(args[index + 1 : end])
    facts.guard(min(end, len(args) - 1), f"find {args[index].text} runs a program")
    facts.inner.append(Inner(tuple(_filled(arg) for arg in command)))
    if any("{}" in arg.text for arg in command[1:]) and command[0].text.rpartition("/")[2] not in _NO_READERS:
        facts.trees.append(_tree(args, index))
    return end + 1


def _tree(args: Sequence[Arg], index: int) -> Tree:
    """Return what the command of ``-exec`` is given: what one plain ``-name`` names, or everything."""
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


def _filled(arg: Arg) -> Arg:
    """``{}`` stands for names that are known only when it runs."""
    return Arg(arg.text, "the files that find finds are known only when it runs") if "{}" in arg.text else arg

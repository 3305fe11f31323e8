"""Options of programs: which word is one, which takes a value, and what that value is.

A table line says what counts about a program: ``o=w output=w`` — the value of ``-o`` or ``--output`` is a file that is
written. The letters:

======  =======================================================================================
``v``   a value that is neither a file nor a program
``r``   a file that is read
``R``   the same, but what stands in it says what is read or run next; a wildcard does not cover the option
``w``   a file that is written; a wildcard does not cover the option
``d``   a folder to work in
``t``   a shell text that is run; it is judged like a command of its own
``x``   the same, but a wildcard over the outer program does not cover it either
``c``   text in another language that is run; a wildcard does not cover it
``h``   a host that is talked to, or what says which; a wildcard does not cover it
``g``   no value, but a wildcard does not cover the option
``i``   like ``g``, and what follows the letter directly belongs to it (``-i.bak``)
``a``   nothing that counts, and what follows the letter directly belongs to it (``-Iseconds``)
======  =======================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .syntax import Arg

TAKES_VALUE = frozenset("vrRwdtxch")
GUARDED = frozenset("Rwxchgi")


class OptionTable(NamedTuple):
    """The options of a program that count, by letter and by name."""

    short: dict[str, str]
    long: dict[str, str]
    single_dash: bool = False


@dataclass(frozen=True, slots=True)
class CommandItem:
    """An option or an operand.

    :param index: where its last word stands.
    :param role: a letter of the table, or empty for an operand and for an option that is not in the table.
    """

    index: int
    name: str
    role: str
    value: Arg | None = None

    @property
    def operand(self) -> bool:
        """Whether it is no option."""
        return not self.name


@lru_cache(maxsize=512)
def spec(text: str) -> OptionTable:
    """Return the table line `text` as a value; ``-long`` options with one dash are written ``-name=…``."""
    short: dict[str, str] = {}
    long: dict[str, str] = {}
    single = False
    for item in text.split():
        name, _, role = item.partition("=")
        if name.startswith("-") and len(name) > 2:
            single = True
        name = name.lstrip("-")
        (short if len(name) == 1 else long)[name] = role or "g"
    return OptionTable(short, long, single)


def read_options(
    args: Sequence[Arg], table: OptionTable, start: int = 1, *, stop_at_operand: bool = False, files: bool = False
) -> Iterator[CommandItem]:
    """Yield the options and operands of a command.

    :param stop_at_operand: what follows the first operand is another command, as after ``env``.
    :param files: operands are files, so what follows an abbreviated option is taken for one where that could be.
    """
    index, only_operands = start, False
    while index < len(args):
        text = args[index].text
        if only_operands or not text.startswith("-") or text == "-":
            yield CommandItem(index, "", "", args[index])
            if stop_at_operand:
                return
            index += 1
        elif text == "--":
            only_operands = True
            index += 1
        else:
            for found in _option(args, index, table, files=files):
                yield found
                index = found.index
            index += 1


def names_of(found: Iterable[CommandItem]) -> set[str]:
    """Return the names of the options."""
    return {item.name for item in found if not item.operand}


def operands_of(found: Iterable[CommandItem]) -> list[Arg]:
    """Return the operands."""
    return [item.value for item in found if item.operand and item.value is not None]


def values_of(found: Iterable[CommandItem], *names: str) -> list[Arg]:
    """Return the values that the options called one of `names` were given."""
    return [item.value for item in found if item.name in names and item.value is not None]


def _option(args: Sequence[Arg], index: int, table: OptionTable, *, files: bool) -> Iterator[CommandItem]:
    word = args[index]
    if word.text.startswith("--"):
        yield _long(args, index, word, table, 2, files=files)
    elif table.single_dash and len(word.text) > 2 and _lookup(word.text[1:].partition("=")[0], table.long):
        yield _long(args, index, word, table, 1, files=files)
    else:
        yield from _cluster(args, index, word, table)


def _long(args: Sequence[Arg], index: int, word: Arg, table: OptionTable, dashes: int, *, files: bool) -> CommandItem:
    name, equals, _ = word.text[dashes:].partition("=")
    known = _lookup(name, table.long)
    role = table.long.get(known, "")
    if files and role == "v" and known != name and not equals:
        # An option of its own may have this name, and no value; what follows is then an operand.
        return CommandItem(index, known, role)
    if equals:
        return CommandItem(index, known or name, role, word.cut(dashes + len(name) + 1))
    if role in TAKES_VALUE and role and index + 1 < len(args):
        if known != name and args[index + 1].text.startswith("-"):
            # An option of its own may have this name (``git update-index --add``); the next word is looked at, too.
            return CommandItem(index, known, role, args[index + 1])
        return CommandItem(index + 1, known, role, args[index + 1])
    return CommandItem(index, known or name, role)


def _lookup(name: str, names: dict[str, str]) -> str:
    """Return the option that `name` is or abbreviates; of several the one that matters most."""
    if name in names:
        return name
    meant = [known for known in names if known.startswith(name)] if name else []
    return max(meant, key=lambda known: (names[known] in GUARDED, names[known] in "rd"), default="")


def _cluster(args: Sequence[Arg], index: int, word: Arg, table: OptionTable) -> Iterator[CommandItem]:
    """Read ``-abc``, in which the first letter that takes a value takes the rest."""
    for position, letter in enumerate(word.text[1:], 1):
        role = table.short.get(letter, "")
        if role and role in "ia":
            yield CommandItem(index, letter, role, word.cut(position + 1))
            return
        if role and role in TAKES_VALUE:
            if position + 1 < len(word.text):
                yield CommandItem(index, letter, role, word.cut(position + 1))
            else:
                value = args[index + 1] if index + 1 < len(args) else None
                yield CommandItem(index + 1 if value else index, letter, role, value)
            return
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


_MARKS = re.compile(r"[=@<,;]")

MAX_PIECES = 200
"""How many parts of one word are looked at as files."""


def file_pieces(arg: Arg) -> list[Arg]:
    """Return a word and the parts of it that may be files: ``a=@b,c`` holds ``@b``, ``b`` and ``c``."""
    if not _MARKS.search(arg.text):
        return [arg]
    parts = _MARKS.split(arg.text, maxsplit=MAX_PIECES)[1:]
    texts = dict.fromkeys((arg.text.partition("=")[2], arg.text.partition("@")[2], *parts))
    return [arg, *(Arg(text, arg.why, tilde=text.startswith("~/")) for text in texts if text)]

"""What the options of a program mean for the facts of its command, known from a table or told by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .facts import Facts, Guard, InnerText, Write
from .options import GUARDED, Found
from .words import Arg

_WHAT = {
    "R": "names a file that says what to read",
    "w": "writes a file",
    "x": "runs a program",
    "h": "names another host",
    "c": "runs what it is given",
    "g": "is not covered by a wildcard",
    "i": "changes files",
}


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


_TELLING = frozenset(
    {
        "exec", "execute", "command", "cmd", "program", "prog", "shell", "script", "pager", "editor", "viewer", "browser",
        "hook", "hooks", "plugin", "plugins", "preload", "loader", "rsh", "ssh", "wrapper", "helper", "askpass", "config",
        "rcfile", "rc", "proxy", "registry", "eval", "interpreter", "launcher", "linker", "runner", "driver", "compiler",
        "token", "helpers", "daemon", "agent", "unzip", "pre", "preprocessor", "filter-command", "remote-cmd", "rpath",
    }
)  # fmt: skip
_NEGATED = frozenset({"no", "ignore", "skip", "without", "disable", "list", "show", "print"})


def tells_of_a_program(option: Found, facts: Facts, args: Sequence[Arg]) -> None:
    """Guard an option that is not in the table when its name says that it names a program, a host or what to configure."""
    parts = re.split(r"[-.:_]", option.name.lower())
    if not option.operand and not option.role and len(option.name) > 1 and parts[0] not in _NEGATED and _TELLING & set(parts):
        facts.guard(option.index, f"{args[0].text} --{option.name} may name a program, a host or what to configure")

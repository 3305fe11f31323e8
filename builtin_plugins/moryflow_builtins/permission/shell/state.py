"""Builtins of the shell that change what later commands do, and those that move."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from .facts import CommandFacts, InnerText
from .interpreters import STDIN
from .words import Arg

CHANGE = (
    "export", "declare", "typeset", "local", "readonly", "unset", "set", "shopt", "alias", "unalias", "hash", "enable",
    "ulimit", "umask", "read", "mapfile", "readarray", "let", "getopts", "shift", "complete", "compgen", "compopt", "bind",
    "history", "fc", "disown", "suspend", "logout", "dirs", "times", "trap",
)  # fmt: skip
"""Builtins that change the state of the shell."""

_PLAIN = ("exit", "return", "break", "continue", "bg", "fg", "caller", "help")
_COUNTS = re.compile(r"%[-+ #0-9.*']*[hljztL]*n")
_EMBEDS = ("$(", "`", "${")


def inspect_change(args: Sequence[Arg], facts: CommandFacts) -> None:
    """A builtin that changes the state of the shell: only a rule of its own covers it."""
    name = args[0].text
    facts.guard(0, f"{name} changes what later commands do")
    inspect_embedded(args, facts)
    operands = [arg for arg in args[1:] if not arg.text.startswith("-")]
    match name:
        case "trap" if operands:
            facts.texts.append(InnerText(operands[0], same_shell=True))
        case "alias":
            facts.texts += [InnerText(arg.cut(arg.text.index("=") + 1)) for arg in operands if "=" in arg.text]
        case "mapfile" | "readarray" | "complete" | "compgen" | "bind":
            found = [after for flag, after in pairwise(args[1:]) if flag.text in _CALLBACKS]
            facts.texts += [InnerText(after.cut(after.text.find(":") + 1 if name == "bind" else 0)) for after in found]
        case _:
            pass


_CALLBACKS = frozenset({"-C", "-F", "-x"})


def inspect_eval(args: Sequence[Arg], facts: CommandFacts) -> None:
    """``eval`` joins its words and runs them in this shell."""
    words = args[2:] if len(args) > 1 and args[1].text == "--" else args[1:]
    why = next((word.why for word in words if word.why), "")
    if why:
        facts.unseen("eval runs a text that is known only when it runs")
    text = " ".join(word.text for word in words)
    facts.texts.append(InnerText(Arg(text, why), same_shell=True))


def inspect_source(args: Sequence[Arg], facts: CommandFacts) -> None:
    """``source`` runs a file in this shell."""
    if len(args) > 1 and args[1].text in STDIN:
        facts.unseen(f"{args[0].text} runs whatever it reads")
        facts.texts += [InnerText(facts.stdin_text, same_shell=True)] if facts.stdin is not None else []
    facts.guard(min(1, len(args) - 1), f"{args[0].text} runs the commands in a file")
    facts.reads += args[1:2]
    facts.runs += args[1:2]
    facts.moved = True


def inspect_cd(args: Sequence[Arg], facts: CommandFacts) -> None:
    """``cd``, ``pushd`` and ``popd`` move; where to is not always known."""
    operands = [arg for arg in args[1:] if not _is_flag(arg)]
    if not operands and args[0].text == "cd":
        facts.moves = Arg("~", tilde=True)
    elif (
        args[0].text == "popd"
        or len(operands) != 1
        or not operands[0].static
        or operands[0].text in ("-", "")
        or operands[0].text[:1] in "+"
    ):
        facts.moved = True
    else:
        facts.moves = operands[0]


def _is_flag(arg: Arg) -> bool:
    return arg.text in ("-L", "-P", "-e", "-@", "-n", "--", "-LP", "-PL", "-Pe")


def inspect_printf(args: Sequence[Arg], facts: CommandFacts) -> None:
    """``printf -v`` assigns, and so does ``%n``."""
    if len(args) > 1 and args[1].text.startswith("-v"):
        facts.guard(min(2, len(args) - 1), "printf -v changes a variable")
        inspect_embedded(args, facts)
    elif any(_COUNTS.search(arg.text.replace("%%", "")) for arg in args[1:4]):
        facts.guard(len(args) - 1, "printf %n changes a variable")


def inspect_wait(args: Sequence[Arg], facts: CommandFacts) -> None:
    """``wait -p`` assigns."""
    if any(arg.text.startswith("-") and "p" in arg.text for arg in args[1:]):
        facts.guard(len(args) - 1, "wait -p changes a variable")
        inspect_embedded(args, facts)


def inspect_embedded(args: Sequence[Arg], facts: CommandFacts) -> None:
    """Look for a substitution in literal words: arithmetic and subscripts run it although it was quoted."""
    for index, arg in enumerate(args[1:], 1):
        if arg.static and any(mark in arg.text for mark in _EMBEDS):
            facts.guard(index, f"{args[0].text} evaluates {arg.text!r}")
            facts.texts.append(InnerText(Arg(f': "{arg.text}"' if '"' not in arg.text else arg.text)))


def inspect_nothing(_: Sequence[Arg], facts: CommandFacts) -> None:
    """A builtin whose words are neither files nor commands."""


INSPECTORS: dict[str, Callable[[Sequence[Arg], CommandFacts], None]] = {
    **dict.fromkeys(CHANGE, inspect_change),
    **dict.fromkeys(_PLAIN, inspect_nothing),
    "eval": inspect_eval,
    "source": inspect_source,
    ".": inspect_source,
    "cd": inspect_cd,
    "pushd": inspect_cd,
    "popd": inspect_cd,
    **dict.fromkeys(("test", "[", "[["), inspect_embedded),
    "printf": inspect_printf,
    "wait": inspect_wait,
}

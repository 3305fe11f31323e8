"""The simple commands in a shell text, for gates of other plugins: what rules would be matched against, without any rule."""

from __future__ import annotations

from collections.abc import Iterable

from .command_line import CommandLine, assignments, fed_in
from .effects import CommandEffects
from .hidden_commands import disguised_commands, rough_commands
from .inspect import inspect, name_of
from .judge import MAX_INNER
from .parser import parse
from .syntax import Arg, NotParsed, Simple, arguments
from .walk import Bases, FoldersAfter, Walker
from .wrappers import harmless_assignment

_ANYWHERE: Bases = frozenset((None,))


def simple_commands(text: str) -> tuple[str, ...]:
    """Return the commands in `text` in every spelling that a rule may have meant, outer ones first, each once."""
    collector = _Collector()
    collector.text(text)
    return tuple(collector.found)


class _Collector:
    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self._depth = 0
        self._walker = Walker(self._simple, lambda command, bases: None, lambda redirect, bases: None)

    def text(self, text: str) -> None:
        """Read a shell text; of one that is not understood, everything that may be a command."""
        self._depth += 1
        try:
            if self._depth > MAX_INNER:
                raise NotParsed("commands run commands too deeply")
            self._walker.script(parse(text)[0], _ANYWHERE)
        except (NotParsed, RecursionError):
            self._add(rough_commands(text))
        self._depth -= 1

    def _add(self, commands: Iterable[str]) -> None:
        self.found |= dict.fromkeys(command for command in commands if command)

    def _simple(self, command: Simple, bases: Bases) -> FoldersAfter:
        text, file = fed_in(command)
        assigned = tuple(arg for arg in assignments(command) if not harmless_assignment(arg))
        self._line(assigned, tuple(arguments(command.words)), CommandEffects(stdin=text, stdin_file=file), command.raw)
        return FoldersAfter(bases, bases)

    def _line(self, assigned: tuple[Arg, ...], args: tuple[Arg, ...], effects: CommandEffects, raw: str) -> None:
        if not args:
            return
        inspect(args, effects)
        self._add(CommandLine(assigned, args, effects, " ".join(raw.split())).views)
        self._add(disguised_commands(name_of(args), [arg.text for arg in args[1:]], known=effects.known))
        for inner in effects.inner:
            self._inner(inner.args)
        for part in effects.texts:
            self.text(part.text.text)
        for code in effects.code:
            self._add(rough_commands(code.text))

    def _inner(self, args: tuple[Arg, ...]) -> None:
        raw = " ".join(arg.text for arg in args)
        self._depth += 1
        if self._depth > MAX_INNER:
            self._add(rough_commands(raw))
        else:
            self._line((), args, CommandEffects(), raw)
        self._depth -= 1

"""Enough of ``sed`` to know whether a script runs programs, or reads and writes files of its own."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"\s*(?:\d+~\d+|\d+|\$|[+~]\d+)\s*")
_ARGUMENT = re.compile(r"[ \t]*[\w.-]*[ \t]*(?=[;\n}]|\Z)", re.ASCII)
"""A label or a number; what follows it is another command to some versions."""

_WITH_ARGUMENT = frozenset("btTqQlL:v")
_PLAIN = frozenset("dDgGhHnNpPxz=F")


def dangers(script: str) -> tuple[str, list[str], list[str]]:
    """Return what `script` does beyond editing a stream (empty: nothing), and the files it reads and writes."""
    reader = _Sed(script)
    try:
        reader.run()
    except _NotUnderstood:
        return "is not understood", reader.reads, reader.writes
    return reader.danger, reader.reads, reader.writes


class _NotUnderstood(Exception):
    """The script is not one this reader knows."""


class _Sed:
    def __init__(self, script: str) -> None:
        self._script = script
        self._position = 0
        self.danger = ""
        self.reads: list[str] = []
        self.writes: list[str] = []

    def run(self) -> None:
        while self._skip(" \t\n;"):
            self._addresses()
            self._skip(" \t!")
            self._command(self._next())

    def _skip(self, chars: str) -> bool:
        while self._position < len(self._script) and self._script[self._position] in chars:
            self._position += 1
        return self._position < len(self._script)

    def _next(self) -> str:
        if self._position >= len(self._script):
            raise _NotUnderstood
        self._position += 1
        return self._script[self._position - 1]

    def _line(self) -> str:
        end = self._script.find("\n", self._position)
        end = len(self._script) if end < 0 else end
        text = self._script[self._position : end]
        self._position = end
        return text

    def _addresses(self) -> None:
        for _ in range(2):
            self._skip(" \t")
            plain = _ADDRESS.match(self._script, self._position)
            if plain:
                self._position = plain.end()
            elif self._script.startswith(("/", "\\"), self._position):
                delimiter = self._next()
                self._until(self._next() if delimiter == "\\" else delimiter)
                flags = re.compile("[IM]*").match(self._script, self._position)
                self._position = flags.end() if flags else self._position
            else:
                return
            self._skip(" \t")
            if not self._script.startswith(",", self._position):
                return
            self._position += 1

    def _until(self, delimiter: str) -> None:
        """Step over a pattern or a replacement; a delimiter between brackets is read in two ways."""
        start = self._position
        if delimiter in "\n\\":
            raise _NotUnderstood
        while (char := self._next()) != delimiter:
            if char == "\\":
                self._next()
        opened = self._script[start : self._position - 1].rpartition("[")
        if opened[1] and "]" not in opened[2][1:] and not opened[0].endswith("\\"):
            raise _NotUnderstood

    def _command(self, command: str) -> None:
        if command in "}{":
            return
        if command == "e":
            self.danger = "runs programs"
            self._line()
        elif command in "rRwW":
            path = self._line().strip()
            (self.reads if command in "rR" else self.writes).append(path)
            self.danger = self.danger or f"{'reads' if command in 'rR' else 'writes'} the file {path}"
        elif command == "s":
            self._substitute()
        elif command == "y":
            delimiter = self._next()
            self._until(delimiter)
            self._until(delimiter)
        elif command in "aic":
            self._text()
        elif command in _WITH_ARGUMENT:
            argument = _ARGUMENT.match(self._script, self._position)
            if argument is None:
                raise _NotUnderstood
            self._position = argument.end()
        elif command == "#":
            self._line()
        elif command not in _PLAIN:
            raise _NotUnderstood

    def _text(self) -> None:
        """Step over the text of ``a``, ``i`` and ``c``, whose lines go on after a backslash."""
        line = self._line()
        while (len(line) - len(line.rstrip("\\"))) % 2 and self._position < len(self._script):
            self._position += 1
            line = self._line()

    def _substitute(self) -> None:
        delimiter = self._next()
        self._until(delimiter)
        self._until(delimiter)
        while self._position < len(self._script):
            flag = self._script[self._position]
            if flag in "gpiIM0123456789":
                self._position += 1
            elif flag == "e":
                self._position += 1
                self.danger = "runs programs"
            elif flag == "w":
                self._position += 1
                path = self._line().strip()
                self.writes.append(path)
                self.danger = self.danger or f"writes the file {path}"
            else:
                return

"""A position in a text that is being read, shared by all layers of the parser."""

from __future__ import annotations

from abc import abstractmethod

from .syntax import NotParsed, Script

MAX_DEPTH = 40
"""How deeply substitutions and compound commands may be nested; bash itself goes on, a person does not."""


class Cursor:
    """A position in a text. The grammar is in :class:`~.parser.Parser`."""

    def __init__(self, text: str, outer: Cursor | None = None) -> None:
        self.text = text
        self.position = 0
        self.depth = outer.depth if outer else 0
        self.quoted_spans: list[tuple[int, int]] = []

    @abstractmethod
    def script_until(self, closing: str) -> Script:
        """Read commands up to `closing`, which is consumed; the grammar's part."""

    @abstractmethod
    def nested(self, text: str) -> Script:
        """Read `text`, which was cut out of this one, as a script of its own; the grammar's part."""

    def failure(self, message: str) -> NotParsed:
        """Return what is raised to give up."""
        return NotParsed(message)

    def deeper(self) -> None:
        """Count one more level of nesting."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.failure("it is nested too deeply")

    def peek(self, length: int = 1) -> str:
        """Return the next characters."""
        return self.text[self.position : self.position + length]

    def skip_continuations(self) -> bool:
        """Step over backslash-newline pairs; bash removes them before it looks at anything."""
        start = self.position
        while self.text.startswith("\\\n", self.position):
            self.position += 2
        return self.position > start

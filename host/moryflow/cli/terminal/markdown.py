"""Markdown on a terminal as it streams: a block is printed once, when it is complete, in the terminal's own colours.

Headings stand at the left, code has no background, and HTML is shown as text.
"""

from __future__ import annotations

import re
import shutil
from io import StringIO
from typing import TYPE_CHECKING, Any

from . import plain

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_NARROWEST = 20
# Styles of code by kind of token. None of the sixteen colours of a terminal has a contrast of 4.5 on light and on dark in every
# theme, so words have the terminal's own colour, and weight and slant tell them apart.
_CODE = {
    "Comment": "dim italic", "Keyword": "bold", "Literal.String": "italic", "Name.Function": "bold", "Name.Class": "bold",
    "Generic.Inserted": "bold", "Generic.Heading": "bold", "Generic.Subheading": "dim",
}  # fmt: skip
_STYLES = {
    "markdown.h1": "bold underline", "markdown.h2": "bold", "markdown.h3": "bold", "markdown.h4": "bold italic",
    "markdown.code": "bold", "markdown.code_block": "none", "markdown.block_quote": "italic", "markdown.list": "none",
    "markdown.item.number": "none", "markdown.item.bullet": "none", "markdown.table.border": "dim",
    "markdown.table.header": "bold", "markdown.link": "none", "markdown.link_url": "underline",
}  # fmt: skip


_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})", re.MULTILINE)
# An empty line before a line at the left edge: whatever the block before is, this line is no part of it.
_NEXT_BLOCK = re.compile(r"\n[ \t]*\n(?=[^\s])")


class MarkdownStream:
    """An answer that comes in pieces, as text for the terminal.

    :param colour: whether to use escape sequences for colour and weight.
    """

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._pending = ""
        self._printed = False

    @property
    def pending(self) -> str:
        """The Markdown of the block that is still growing, with control characters made visible."""
        return plain(self._pending)

    def feed(self, text: str) -> str:
        """Take in more of the answer; return the blocks that it completes."""
        before = max(len(self._pending) - 2, 0)
        self._pending += text
        if _NEXT_BLOCK.search(self._pending, before) is None:
            return ""
        end = [found.end() for found in _NEXT_BLOCK.finditer(self._pending)][-1]
        return "" if _in_code(self._pending[:end]) else self._take(end)

    def flush(self) -> str:
        """Return what is left; the next text begins another answer."""
        rest = self._take(len(self._pending))
        self._printed = False
        return rest

    def tail(self, rows: int) -> list[str]:
        """Return the last `rows` lines of the block that is still growing, as the model writes them."""
        from moryflow_sdk.support.texts import wrapped

        lines = plain(self._pending).rstrip().split("\n")[-rows:] if self._pending.strip() else []
        width = shutil.get_terminal_size().columns
        return [row for line in lines for row in wrapped(line, width, "")][-rows:]

    def _take(self, end: int) -> str:
        done, self._pending = self._pending[:end], self._pending[end:]
        shown, start = "", 0
        for end in [*(found.end() for found in _NEXT_BLOCK.finditer(done)), len(done)]:
            if done[start:end].strip() and not _in_code(done[start:end] if end < len(done) else ""):
                shown += ("\n" if self._printed else "") + render(done[start:end], colour=self._colour)
                start, self._printed = end, True
        return shown


def _in_code(text: str) -> bool:
    opened = ""
    for mark in _FENCE.findall(text):
        if not opened:
            opened = mark
        elif mark.startswith(opened):
            opened = ""
    return bool(opened)


def render(text: str, *, colour: bool) -> str:
    """Return Markdown as lines of text no wider than the terminal, with one empty line between two blocks."""
    from rich.console import Console
    from rich.theme import Theme

    width = max(shutil.get_terminal_size().columns, _NARROWEST)
    out = StringIO()
    console = Console(
        file=out, force_terminal=colour, color_system="standard" if colour else None, no_color=not colour, width=width,
        highlight=False, theme=Theme(_STYLES), legacy_windows=False, _environ={},
    )  # fmt: skip
    console.print(_document(plain(text)))
    lines = [_FILL.sub(lambda found: _RESET if "\x1b" in found[0] else "", line) for line in out.getvalue().split("\n")]
    seen = [place for place, line in enumerate(lines) if line not in ("", _RESET)]
    return "".join(f"{line}\n" for line in lines[seen[0] : seen[-1] + 1]) if seen else ""


# Blanks up to the edge of the terminal: a narrower window would wrap them.
_FILL = re.compile(r"(?:\x1b\[[0-9;]*m| )+$")
_RESET = "\x1b[0m"


def _document(text: str) -> Any:
    from markdown_it import MarkdownIt
    from pygments.token import string_to_tokentype
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.style import Style
    from rich.syntax import ANSISyntaxTheme, Syntax

    theme = ANSISyntaxTheme({tuple(string_to_tokentype(kind)): Style.parse(style) for kind, style in _CODE.items()})

    class Title(Heading):
        LEVEL_ALIGN = {}

    class Code(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Syntax(str(self.text).rstrip(), self.lexer_name, theme=theme, word_wrap=True, padding=(0, 2))

    class Document(Markdown):
        elements = Markdown.elements | {"heading_open": Title, "fence": Code, "code_block": Code}

    document = Document(text, hyperlinks=False)
    document.parsed = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table").parse(text)
    for part in (part for token in document.parsed for part in token.children or ()):
        part.content = plain(part.content)  # again: a character reference such as &#x202e; is a character only now
    return document

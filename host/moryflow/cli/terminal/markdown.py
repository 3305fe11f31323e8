"""Markdown on a terminal as it streams: a block is printed once, when it is complete, in the terminal's own colours.

Headings stand at the left, lists keep their numbers, code has no background, and HTML is shown as text. A list is printed
item by item, so that a long one does not have to be waited for.
"""

from __future__ import annotations

import re
import shutil
import time
from io import StringIO
from typing import TYPE_CHECKING, Any

from . import plain

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.console import Console, ConsoleOptions, RenderResult

_NARROWEST = 20
_NARROWEST_CELL = 5
"""The columns that a cell of a table needs at least; a table without so much room is shown as rows of text."""
_CODE = {
    "Comment": "dim", "Keyword": "magenta", "Literal.String": "green", "Literal.Number": "cyan",
    "Name.Function": "bold", "Name.Class": "bold", "Name.Decorator": "cyan", "Name.Builtin": "cyan", "Generic.Deleted": "red",
    "Generic.Inserted": "green", "Generic.Heading": "bold", "Generic.Subheading": "cyan",
}  # fmt: skip
"""Colours of code by kind of token; each can be read on a light and on a dark background."""
_STYLES = {
    "markdown.h1": "bold underline", "markdown.h2": "bold", "markdown.h3": "bold", "markdown.h4": "bold italic",
    "markdown.code": "cyan", "markdown.code_block": "none", "markdown.block_quote": "italic", "markdown.list": "none",
    "markdown.item.number": "none", "markdown.item.bullet": "none", "markdown.table.border": "dim",
    "markdown.table.header": "bold", "markdown.link": "none", "markdown.link_url": "underline",
}  # fmt: skip


class MarkdownStream:
    """An answer that comes in pieces, as text for the terminal.

    :param colour: whether to use escape sequences for colour and weight.
    """

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._pending = ""
        self._parse_at = 0
        """How long the block must be before it is parsed again. Parsed at each line, a table of 2,000 rows took a minute."""
        self._searched, self._may_search = 0, True
        """Up to where the next block was searched for, and whether finding one may cause a parse: the last parse found one."""
        self._before = ""
        """The kind of the block that was returned last."""
        self._tail: list[str] = []
        """The last lines of the growing block; the next attributes say what they were made from and when to make them again."""
        self._tail_of = (0, 0, 0)
        self._tail_due = 0.0

    @property
    def pending(self) -> str:
        """The Markdown of the block that is still growing, with control characters made visible."""
        return plain(self._pending)

    def feed(self, text: str) -> str:
        """Take in more of the answer; return the blocks that it completes."""
        self._pending += text
        if "\n" not in text or _end_of_code(self._pending) < 0:
            return ""
        long_enough = len(self._pending) >= self._parse_at
        begins = self._may_search and _NEXT_BLOCK.search(self._pending, self._searched)
        self._searched = len(self._pending.rstrip())
        if not long_enough and not begins:
            return ""
        self._parse_at = len(self._pending) * 17 // 16
        end = _end_of_complete(self._pending)
        self._may_search = long_enough or end > 0
        return self._take(end)

    def flush(self) -> str:
        """Return what is left; the next text begins another answer."""
        rest = self._take(len(self._pending))
        self._before = ""
        return rest

    def tail(self, rows: int) -> list[str]:
        """Return the last `rows` lines of the block that is still growing, without escape sequences.

        Rendering a table of 200 rows takes 120 ms, and this is called at each key. So lines are rendered again only when nine
        times as long has passed as the last rendering took.
        """
        made_of = len(self._pending), rows, shutil.get_terminal_size().columns
        began = time.monotonic()
        if made_of != self._tail_of and began >= self._tail_due:
            text = _last_of_code(self._pending, rows)
            self._tail = render(text, colour=False).rstrip("\n").split("\n")[-rows:] if text.strip() else []
            self._tail_of, self._tail_due = made_of, time.monotonic() + 9 * (time.monotonic() - began)
        return self._tail

    def _take(self, end: int) -> str:
        done, self._pending = self._pending[:end], self._pending[end:]
        if end:
            self._parse_at, self._searched, self._may_search = 0, 0, True
            self._tail, self._tail_of, self._tail_due = [], (0, 0, 0), 0.0
        if not done.strip():
            return ""
        blocks = _blocks(done)
        before, self._before = self._before, blocks[-1].type if blocks else "text"
        goes_on = bool(blocks) and blocks[0].type == before and before in _LISTS
        return ("" if goes_on or not before else "\n") + render(done, colour=self._colour)


def _end_of_code(text: str) -> int:
    """Return where the block of code at the beginning of `text` ends: 0 if there is none, -1 if it has no end yet."""
    fence = _FENCE.match(text)
    if fence is None:
        return 0
    end = re.compile(rf"^ {{0,3}}{fence[1]}+[ \t]*$", re.MULTILINE).search(text, fence.end())
    return end.end() if end else -1


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[^`\n]*\n")
_NEXT_BLOCK = re.compile(r"\n[ \t]*\n ?\S")
"""A line at the left edge after an empty line: whatever the last block is, this line is no part of its last item."""


def _last_of_code(text: str, rows: int) -> str:
    """Return the growing block; of code, which may be long, its first line and the last `rows`, or the text after it."""
    end = _end_of_code(text)
    if end > 0 and text[end:].strip():
        return text[end:]
    first, *code = text.split("\n")
    return "\n".join([first, *code[-rows - 1 :]]) if end else text


_LISTS = ("bullet_list_open", "ordered_list_open")


def _parser() -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


def _blocks(text: str) -> list[Token]:
    """Return the tokens that begin a block at the top level."""
    return [token for token in _parser().parse(text) if token.level == 0 and token.map is not None and token.nesting >= 0]


def _end_of_complete(text: str) -> int:
    """Return where the last block of `text` begins, or if that is a list, its last item: only that may still grow."""
    tokens = _parser().parse(text)
    tops = [token for token in tokens if token.level == 0 and token.map is not None and token.nesting >= 0]
    if not tops:
        return 0
    line = tops[-1].map[0]
    if tops[-1].type in _LISTS:
        line = [token.map[0] for token in tokens if token.level == 1 and token.type == "list_item_open" and token.map][-1]
    return sum(len(each) for each in text.splitlines(keepends=True)[:line])


def render(text: str, *, colour: bool) -> str:
    """Return Markdown as lines of text no wider than the terminal, with one empty line between two blocks."""
    lines = plain(text).split("\n")
    blocks = [token.map for token in _blocks("\n".join(lines)) if token.map]
    return "\n".join(_block("\n".join(lines[start:end]), colour) for start, end in blocks)


def _block(text: str, colour: bool) -> str:
    from rich.console import Console
    from rich.theme import Theme

    width = max(shutil.get_terminal_size().columns, _NARROWEST)
    out = StringIO()
    console = Console(
        file=out, force_terminal=colour, color_system="standard" if colour else None, no_color=not colour, width=width,
        highlight=False, theme=Theme(_STYLES), legacy_windows=False, _environ={},
    )  # fmt: skip
    console.print(_document(text))
    lines = [_FILL.sub(lambda found: _RESET if "\x1b" in found[0] else "", line) for line in out.getvalue().split("\n")]
    seen = [place for place, line in enumerate(lines) if line not in ("", _RESET)]
    return "".join(f"{line}\n" for line in lines[seen[0] : seen[-1] + 1]) if seen else ""


_FILL = re.compile(r"(?:\x1b\[[0-9;]*m| )+$")
"""Blanks up to the edge of the terminal: a narrower window would wrap them."""
_RESET = "\x1b[0m"


def _document(text: str) -> Any:
    """Return `text` as a Markdown document for rich to print."""
    from pygments.token import string_to_tokentype
    from rich.markdown import CodeBlock, Heading, ListItem, Markdown, TableElement
    from rich.segment import Segment
    from rich.style import Style
    from rich.syntax import ANSISyntaxTheme, Syntax
    from rich.text import Text

    theme = ANSISyntaxTheme({tuple(string_to_tokentype(kind)): Style.parse(style) for kind, style in _CODE.items()})

    class Title(Heading):
        LEVEL_ALIGN = {}

    class Code(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Syntax(str(self.text).rstrip(), self.lexer_name, theme=theme, word_wrap=True, padding=(0, 2))

    class Numbered(ListItem):
        def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
            mark = f"{number}. "
            lines = console.render_lines(self.elements, options.update(width=options.max_width - len(mark) - 1))
            for place, line in enumerate(lines):
                yield Segment(f" {mark}" if place == 0 else " " * (len(mark) + 1))
                yield from line
                yield Segment("\n")

    class FoldedTable(TableElement):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            head, body = self.header and self.header.row, self.body.rows if self.body else []
            rows = [[cell.content for cell in row.cells] for row in (head, *body) if row]
            for cell in (cell for row in rows for cell in row):
                cell.overflow = "fold"  # else a word that is wider than its column is cut
            if rows and len(rows[0]) * _NARROWEST_CELL > options.max_width:
                yield from (Text(" | ", overflow="fold").join(row) for row in rows)
            else:
                yield from super().__rich_console__(console, options)

    class Document(Markdown):
        elements = Markdown.elements | {
            "heading_open": Title, "fence": Code, "code_block": Code, "list_item_open": Numbered, "table_open": FoldedTable,
        }  # fmt: skip

    document = Document(text, hyperlinks=False)
    document.parsed = _parser().parse(text)
    for part in (part for token in document.parsed for part in token.children or ()):
        part.content = plain(part.content)  # again: a character reference such as &#x202e; is a character only now
    return document

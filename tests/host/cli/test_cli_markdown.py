"""Markdown as it streams to a terminal."""

from __future__ import annotations

import random
import re

import pytest
from moryflow.cli.terminal import markdown
from moryflow.cli.terminal.markdown import MarkdownStream, render

TEXT = """# Title

Some *text* with `code` and a [link](https://example.com).

1. one
2. two
   - nested

3. three

```python
def f():

    return 1
```

| a | 中文 |
|---|----:|
| 1 | 2 |

> quoted

<b>html</b> stays

last
"""


def stream(pieces: list[str]) -> str:
    made = MarkdownStream(colour=False)
    return "".join([*(made.feed(piece) for piece in pieces), made.flush()])


@pytest.fixture(autouse=True)
def eighty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_any_pieces_give_the_same_text() -> None:
    """Where the stream is cut does not show."""
    whole = stream([TEXT])
    choose = random.Random(4)
    for _ in range(30):
        cuts = sorted(choose.sample(range(1, len(TEXT)), 12))
        pieces = [TEXT[start:end] for start, end in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
        assert stream(pieces) == stream(list(TEXT)) == whole


def test_nothing_is_lost_and_nothing_is_decorated() -> None:
    """Numbers stay numbers, titles stand at the left, HTML is text, code has no background."""
    shown = stream([TEXT])
    for wanted in (
        "\nSome text with code and a link (https://example.com).\n",
        "1. one",
        "3. three",
        "<b>html</b> stays",
        "last\n",
    ):
        assert wanted in shown
    assert shown.startswith("Title\n")
    assert not re.search(r"\x1b\[[0-9;]*(4[0-9]|48|10[0-7])[;m]", render(TEXT, colour=True))
    assert not re.search(r"[ \t]\n|\n\n\n", shown)


def test_the_end_of_a_block_that_grows_is_made_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for with each key and each frame; laying a long table or code out anew each time froze the input."""
    made: list[str] = []
    render_block = markdown.render
    monkeypatch.setattr(markdown, "render", lambda text, *, colour: made.append(text) or render_block(text, colour=colour))
    growing = MarkdownStream(colour=False)
    growing.feed("```python\n" + "".join(f"print({number})\n" for number in range(1000)))
    monkeypatch.setattr("time.monotonic", lambda: 1.0)
    assert [growing.tail(3) for _ in range(5)] == [["  print(997)", "  print(998)", "  print(999)"]] * 5
    assert [text.count("\n") for text in made] == [4]
    growing.feed("```\n\nnext")
    assert growing.tail(3) == ["next"]


def test_code_is_parsed_again_only_where_it_may_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of 1,000 meant to parse all before it; a fence within a longer one is not an end."""
    parsed: list[str] = []
    end_of_complete = markdown._end_of_complete
    monkeypatch.setattr(markdown, "_end_of_complete", lambda text: parsed.append(text) or end_of_complete(text))
    growing = MarkdownStream(colour=False)
    for line in ("````\n", "a\n", "```\n", "b\n"):
        assert growing.feed(line) == ""
    assert parsed == []
    assert growing.feed("````\n") + growing.feed("\nnext") == "  a\n  ```\n  b\n"


def test_a_long_block_is_parsed_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of a table parsed all rows before it: 2,000 rows took a minute. A short block is shown with its last line."""
    parsed: list[str] = []
    end_of_complete = markdown._end_of_complete
    monkeypatch.setattr(markdown, "_end_of_complete", lambda text: parsed.append(text) or end_of_complete(text))
    growing = MarkdownStream(colour=False)
    rows = "| a | b |\n|---|---|\n" + "".join(f"| {number} | text |\n" for number in range(500))
    shown = "".join(growing.feed(line) for line in rows.splitlines(keepends=True))
    assert len(parsed) < 100
    assert shown + growing.flush() == render(rows, colour=False)
    assert growing.feed("one\n") + growing.feed("\n") + growing.feed("two\n") == "one\n"


LONG = {
    "table": "| a | b |\n|---|---|\n" + "| 1 | text |\n" * 900,
    "item": "- top\n" + "\n  - nested\n" * 900,
    "code": "```\n" + "text\n\n" * 900 + "```\n",
}


@pytest.mark.parametrize("long", LONG)
def test_a_short_block_behind_a_long_one_is_shown_when_it_is_complete(long: str) -> None:
    """It waited until the text had grown by a sixteenth: 24 paragraphs behind a table of 15 KB."""
    growing = MarkdownStream(colour=False)
    for line in LONG[long].splitlines(keepends=True):
        growing.feed(line)
    shown = [growing.feed(piece) for piece in ("\n", "one", "\n", "\n", "two\n", "\n", "three\n")]
    assert shown[2].count("\n") >= 900 and shown[4:] == ["\none\n", "", "\ntwo\n"]


def test_what_follows_code_is_not_taken_for_code() -> None:
    """Until its first line ended, a paragraph behind code was shown as a line of it."""
    growing = MarkdownStream(colour=False)
    for piece in ("```\n", "x\n", "```\n", "\n", "*next*"):
        growing.feed(piece)
    assert growing.tail(3) == ["next"]


@pytest.mark.parametrize("item", ["  - item {}\n\n", "- item {}\n\n", "[{}]: /url\n\n", "| {} |\n|---|\n\n", "    code {}\n\n"])
def test_empty_lines_do_not_parse_all_again(item: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does what stands behind them: 2,000 items took a minute."""
    parsed: list[int] = []
    end_of_complete = markdown._end_of_complete
    monkeypatch.setattr(markdown, "_end_of_complete", lambda text: parsed.append(len(text)) or end_of_complete(text))
    text = "- top\n\n" + "".join(item.format(number) for number in range(500))
    growing = MarkdownStream(colour=False)
    for line in text.splitlines(keepends=True):
        growing.feed(line)
    assert sum(parsed) < 50 * len(text)


def test_control_sequences_are_shown_and_not_obeyed() -> None:
    """In every kind of block (R3)."""
    assert "\\u202e\\u2066\\u061c\\u200f" in render("a&#x202e;&#x2066;&#1564;&rlm;b", colour=False)
    for text in ("\x1b[2J", "`\x1b[2J`", "```\n\x1b[2J\n```", "- \x1b[2J", "# \x1b[2J", "| \x1b[2J |\n|---|\n| x |"):
        assert "\\x1b[2J" in render(text, colour=False)
        assert "\x1b[2J" not in render(text, colour=True)


@pytest.mark.parametrize("cells", [2, 5, 20, 500])
def test_no_cell_of_a_table_is_lost(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that are wider than their column are broken, and a table with too many columns is shown as rows of text."""
    monkeypatch.setenv("COLUMNS", "40")
    row = [chr(0x100 + cell) * 30 for cell in range(cells)]
    shown = render("\n".join((f"|{'|'.join(line)}|") for line in (row, ["-"] * cells, row)), colour=False)
    assert all(shown.count(cell[0]) == 60 for cell in row)
    assert max(map(len, shown.split("\n"))) <= 40


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_no_line_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide characters take two columns."""
    from rich.cells import cell_len

    monkeypatch.setenv("COLUMNS", str(columns))
    shown = render(TEXT + "\n" + "汉字很宽的一行" * 20 + "\n", colour=False)
    assert max(map(cell_len, shown.split("\n"))) <= columns

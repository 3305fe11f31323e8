"""Markdown as it streams to a terminal."""

from __future__ import annotations

import random
import re

import pytest
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
        "1 one",
        "3 three",
        "<b>html</b> stays",
        "last\n",
    ):
        assert wanted in shown
    assert shown.startswith("Title\n")
    assert not re.search(r"\x1b\[[0-9;]*(4[0-9]|48|10[0-7])[;m]", render(TEXT, colour=True))
    assert not re.search(r"[ \t]\n|\n\n\n", shown)


def test_a_block_is_shown_when_the_next_begins() -> None:
    """A fence within a longer one is no end of the code; the block that grows is shown as it is written."""
    growing = MarkdownStream(colour=False)
    for line in ("````\n", "a\n", "```\n", "\n", "b\n", "````\n", "\n"):
        assert growing.feed(line) == ""
    assert growing.feed("next *one*") == "  a\n  ```\n\n  b\n"
    assert growing.tail(3) == ["next *one*"]
    assert growing.flush() == "\nnext one\n"


def test_control_sequences_are_shown_and_not_obeyed() -> None:
    """In every kind of block (R3)."""
    assert "\\u202e\\u2066\\u061c\\u200f" in render("a&#x202e;&#x2066;&#1564;&rlm;b", colour=False)
    for text in ("\x1b[2J", "`\x1b[2J`", "```\n\x1b[2J\n```", "- \x1b[2J", "# \x1b[2J", "| \x1b[2J |\n|---|\n| x |"):
        assert "\\x1b[2J" in render(text, colour=False)
        assert "\x1b[2J" not in render(text, colour=True)


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_no_line_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide characters take two columns."""
    from rich.cells import cell_len

    monkeypatch.setenv("COLUMNS", str(columns))
    shown = render(TEXT + "\n" + "汉字很宽的一行" * 20 + "\n", colour=False)
    assert max(map(cell_len, shown.split("\n"))) <= columns

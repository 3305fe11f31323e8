"""Text that a command prints, whoever chose it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_sdk.support.texts import aligned, columns_of, hung, visible, wrapped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é, 日本 and 🙂", "plain, é, 日本 and 🙂"),
        ("\x1b[31mred\r\n", r"\x1b[31mred\r\n"),
        ("a\u202eb\u200bc\u2028d\ufeff\ud800", r"a\u202eb\u200bc\u2028d\ufeff\ud800"),
        ("tag\U000e0041", r"tag\U000e0041"),
        ("c1\x9b31m\x7f", r"c1\x9b31m\x7f"),
        ("soft\xadhyphen \u3164 \u2800 \ufe01 \U000e0101", r"soft\xadhyphen \u3164 \u2800 \ufe01 \U000e0101"),
        ("a heart \u2764\ufe0f", "a heart \u2764\ufe0f"),
        ("1\ufe0f\u20e3 and \u2139\ufe0f", "1\ufe0f\u20e3 and \u2139\ufe0f"),
        ("a\ufe0f \u2764\ufe0f", "a\\ufe0f \u2764\ufe0f"),
        ("tags \U000e0200 \U000e0fff \uffff", r"tags \U000e0200 \U000e0fff \uffff"),
        (
            "e\u0301 Vie\u0302\u0323t \u0928\u093f \u05e9\u05c1\u05b8",
            "e\u0301 Vie\u0302\u0323t \u0928\u093f \u05e9\u05c1\u05b8",
        ),
        ("z" + "\u0335" * 9, "z" + "\u0335" * 4 + r"\u0335" * 5),
    ],
)
def test_what_nobody_sees_is_spelled_out(text: str, shown: str) -> None:
    """Escapes, what turns a line around, what has no width; letters stay (R3)."""
    assert visible(text) == shown


def test_lines_and_tabs_may_stay() -> None:
    """For text of several lines; nothing else stays with them (R3)."""
    assert visible("a\tb\n\x1b\x00", keep="\n\t") == "a\tb\n" + r"\x1b\x00"


def test_nothing_that_unicode_calls_unseen_is_left() -> None:
    """Each character of the kinds, variation selectors and tags (R3, R33)."""
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    unseen = [chr(one) for one in range(0x110000) if unicodedata.category(chr(one)) in kinds]
    unseen += map(chr, (*range(0xFE00, 0xFE10), *range(0xE0000, 0xE1000), *range(0x180B, 0x1810)))
    assert [one for one in unseen if visible(f"a{one}b") != f"a{ascii(one)[1:-1]}b"] == []


@given(st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp", "Lu", "Nd", "So"])))
def test_no_control_character_is_left_in_any_text(text: str) -> None:
    """By what Unicode says of a character, not by our own list (R3)."""
    assert not {unicodedata.category(one) for one in visible(text)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_a_row_goes_on_below_its_last_column_that_has_room() -> None:
    """At 80 columns the terminal broke descriptions in the middle of a word, and what pads a column filled whole lines."""
    row = "plan  primary  Looks and thinks, changes nothing but its plan"
    assert hung(row, 0) == hung(row, 80) == row
    assert hung(row, 40).split("\n") == ["plan  primary  Looks and thinks, changes", "               nothing but its plan"]
    assert hung(row, 30).split("\n")[1] == "    thinks, changes nothing"
    assert hung("a  " + "/x" * 20 + " b", 30).split("\n") == ["a", "   " + "/x" * 20, "   b"]
    assert hung(f"model{' ' * 90}default", 40) == "model\n    default"


def test_wide_characters_count_twice_where_a_row_is_wrapped() -> None:
    """A Chinese title of 50 characters was thought to fit in 80 columns, and widened no column (CLI)."""
    title = "修复登录页面的错误，" * 5
    lines = hung(f"0a1b2c  3 h  {title}", 80).split("\n")
    assert max(map(columns_of, lines)) <= 80 and len(lines) == 2
    assert lines[1].startswith(" " * 13) and "".join(line.strip() for line in lines).endswith(title)
    assert not any(line.strip().startswith("，") for line in lines)
    assert hung("a  笔记/今天的会议记录.md", 22) == "a\n    笔记/今天的会议记录.md"
    assert aligned([["中文", "x"], ["abc", "y"]], 0) == ["中文  x", "abc   y"]
    for width in range(20, 40):
        assert max(map(columns_of, wrapped(f"a {title}", width, "  "))) <= width

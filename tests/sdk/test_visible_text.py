"""Text that a command prints, whoever chose it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_sdk.texts import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é, 日本 and 🙂", "plain, é, 日本 and 🙂"),
        ("\x1b[31mred\r\n", r"\x1b[31mred\r\n"),
        ("a\u202eb\u200bc\u2028d\ufeff\ud800", r"a\u202eb\u200bc\u2028d\ufeff\ud800"),
        ("tag\U000e0041", r"tag\U000e0041"),
        ("c1\x9b31m\x7f", r"c1\x9b31m\x7f"),
    ],
)
def test_what_nobody_sees_is_spelled_out(text: str, shown: str) -> None:
    """Escapes, what turns a line around, what has no width; letters stay (R3)."""
    assert visible(text) == shown


def test_lines_and_tabs_may_stay() -> None:
    """For text of several lines; nothing else stays with them (R3)."""
    assert visible("a\tb\n\x1b\x00", keep="\n\t") == "a\tb\n" + r"\x1b\x00"


@given(st.text(st.characters(categories=["Cc", "Cs", "Zl", "Zp", "Lu", "Nd", "So"])))
def test_no_control_character_is_left_in_any_text(text: str) -> None:
    """By what Unicode says of a character, not by our own list (R3)."""
    assert not {unicodedata.category(one) for one in visible(text)} & {"Cc", "Cs", "Zl", "Zp"}

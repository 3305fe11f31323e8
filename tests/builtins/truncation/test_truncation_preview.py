"""Cutting text: the rules, and that no text breaks them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from moryflow_builtins.truncation import Limits, count_lines, exceeds, head, preview, tail

TEXTS = st.one_of(
    st.text(alphabet=st.sampled_from("ab\n\r é漢😀\udcff"), max_size=200),
    st.text(max_size=200),
    st.lists(st.text(alphabet="xé漢😀", max_size=40), max_size=30).map("\n".join),
)
LINES = st.integers(1, 20)
SIZES = st.integers(1, 120)


def size_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@given(TEXTS, LINES, SIZES)
def test_a_head_is_a_beginning_within_both_limits_and_never_empty(text, lines, size):
    """Cut by bytes at a character boundary, never to nothing (D39)."""
    kept = head(text, lines, size)
    assert text.startswith(kept)
    assert count_lines(kept) <= lines
    assert size_of(kept) <= max(size, size_of(text[:1]))
    assert kept or not text


@given(TEXTS, LINES, SIZES)
@example("\na\nb", 2, 100)
def test_a_tail_is_an_end_within_both_limits_and_never_empty(text, lines, size):
    """The last part, for tools whose end matters (D39)."""
    kept = tail(text, lines, size)
    assert text.endswith(kept)
    assert count_lines(kept) <= lines
    assert size_of(kept) <= max(size, size_of(text[-1:]))
    assert kept or not text


@given(TEXTS, LINES, SIZES)
@example("ࠀ", 2, 2)
def test_both_ends_together_stay_within_the_limits_and_do_not_overlap(text, lines, size):
    """`both` shares the limits between the ends (D39)."""
    limits = Limits(lines, size, "both")
    if not exceeds(text, limits):
        return
    shown = preview(text, text, limits)
    widest = max(map(size_of, text[:1] + text[-1:]))
    assert text.startswith(shown.head) and text.endswith(shown.tail)
    assert len(shown.head) + len(shown.tail) <= len(text)
    assert shown.lines <= lines and shown.bytes <= max(size, 2 * widest)


@given(TEXTS, LINES, SIZES)
def test_over_means_strictly_over_either_limit(text, lines, size):
    """Exactly at a limit is within it (D40)."""
    assert exceeds(text, Limits(lines, size)) == (size_of(text) > size or count_lines(text) > lines)


def test_the_default_limits_are_met_exactly():
    """2,000 lines and 51,200 bytes pass; one more of either does not (S0.51, D40)."""
    limits = Limits(2000, 51200)
    assert not exceeds("a\n" * 2000, limits) and exceeds("a\n" * 2001, limits)
    assert not exceeds("a\n" * 1999 + "a", limits) and exceeds("a\n" * 2000 + "a", limits)
    assert not exceeds("a" * 51200, limits) and exceeds("a" * 51201, limits)
    assert not exceeds("é" * 25600, limits) and exceeds("é" * 25600 + "a", limits)


def test_whole_lines_are_kept_where_that_keeps_enough():
    """A preview ends with a line unless the line is so long that little would be left (D39)."""
    assert head("one\ntwo\nthree\n", 10, 9) == "one\ntwo\n"
    assert tail("one\ntwo\nthree\n", 10, 8) == "three\n"
    assert head("a\n" + "b" * 100, 10, 50) == "a\n" + "b" * 48
    assert tail("b" * 100 + "\na", 10, 50) == "b" * 48 + "\na"


@pytest.mark.parametrize("direction", ["head", "tail", "both"])
def test_a_single_endless_line_is_cut_inside(direction):
    """One line of 1 MB gives a preview as long as the byte limit (D39)."""
    shown = preview("漢" * 400_000, "漢" * 400_000, Limits(2000, 51200, direction))
    assert 51196 <= shown.bytes <= 51200

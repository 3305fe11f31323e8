"""A conversation at terminals that are resized, stopped and closed, with keys in every state, and at plain ones."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from moryflow.cli.chat.completion import MAX_OFFERED, nearest
from moryflow.cli.terminal import cut, folded
from moryflow.cli.terminal.interrupts import catch_signals

pytestmark = pytest.mark.slow

Begin = Callable[..., Any]


def history(cli: Any) -> str:
    [file] = (cli.home / "history").iterdir()
    return file.read_text()


def test_sentences_are_folded_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a terminal is; each line is as indented as it began, and a long word stays whole."""
    sentence = f"one two three four five six\n  also: {'x' * 30} and on"
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("moryflow.cli.terminal.terminal_width", lambda: 0)
    assert folded(sentence) == sentence
    monkeypatch.setattr("moryflow.cli.terminal.terminal_width", lambda: 20)
    assert folded(sentence) == f"one two three four\nfive six\n  also:\n  {'x' * 30}\n  and on"
    assert [cut(text, 4) for text in ("abcd", "abcde", "中文", "中文字")] == ["abcd", "abc…", "中文", "中…"]


# ---------------------------------------------------------------- calls


def test_each_output_that_was_cut_is_shown_with_its_call(cli: Any, at_prompt: Begin) -> None:
    """Ctrl-O shows the newest, and pressed again the one before."""
    terminal = at_prompt("-m", cli.script(cli.listing(100, 200), "listed"))
    terminal.type("list\r")
    terminal.expect("listed")
    terminal.expect("\n>")
    terminal.type("\x0f")
    terminal.expect("• lister 200\nrow 200\n")
    terminal.expect("row 239\n")
    terminal.type("\x0f")
    terminal.expect("• lister 100\nrow 100\n")
    terminal.expect("row 139\n")
    assert terminal.quit() == 0


def test_questions_of_the_model_are_answered_by_one_key_or_in_words(cli: Any, at_prompt: Begin) -> None:
    """A number is a choice, other words are an answer; the turn goes on with both (S0.41)."""
    options = [{"label": "SQLite"}, {"label": "PostgreSQL"}]
    questions = [{"question": name, "options": options} for name in ("Which now?", "Which later?")]
    call = {"calls": [{"name": "ask_user", "arguments": {"questions": questions}}]}
    terminal = at_prompt("-m", cli.script(call, "they are chosen"))
    terminal.type("choose\r")
    terminal.expect("or your own words >")
    terminal.type("2")
    terminal.expect("→ PostgreSQL")
    terminal.expect("or your own words >")
    terminal.type("files\r")
    terminal.expect("they are chosen")
    assert terminal.quit() == 0
    assert "Which now? → PostgreSQL\\nWhich later? → files" in cli("session", "export").stdout


# ---------------------------------------------------------------- the queue


def test_lines_that_wait_come_back_one_before_the_other(cli: Any, at_prompt: Begin) -> None:
    """Each Up takes the newest back; what was typed meanwhile stays behind it."""
    terminal = at_prompt("-m", cli.script(cli.holding(), "first", "second"))
    terminal.type("go\r")
    terminal.expect("hold")
    terminal.type("one\r")
    terminal.expect("queued: one")
    terminal.type("\x1b[200~two\nmore\x1b[201~\r")
    terminal.expect("queued: two …")
    terminal.type("three\x1b[A\x01\x1b[A\x1b[A\r")
    terminal.expect("queued: one …")
    cli.let_go()
    terminal.expect("second")
    assert terminal.quit() == 0
    assert cli.prompts() == ["go", "one\ntwo\nmore\nthree"]


def test_a_stopped_turn_sends_nothing_that_waits(cli: Any, at_prompt: Begin) -> None:
    """Esc acts at once; the lines come back to be changed, and Alt-Enter is not an Esc."""
    terminal = at_prompt("-m", cli.script(cli.holding(), "never", "after all"))
    terminal.type("go\r")
    terminal.expect("hold")
    terminal.type("one\x1b\rtwo\r")
    terminal.expect("queued: one …")
    terminal.type("\x1b")
    terminal.expect("stopped; what was done so far is kept")
    terminal.expect("> one")
    terminal.type(" and more\r")
    terminal.expect("never")
    assert terminal.quit() == 0
    assert cli.prompts() == ["go", "one\ntwo and more"]


# ---------------------------------------------------------------- leaving


def test_esc_stops_at_a_question_and_leaves_a_list_first(cli: Any, at_prompt: Begin) -> None:
    """What is half typed goes first, then the question; files that are offered go before a turn is stopped."""
    (cli.vault / "notes.txt").write_text("x")
    terminal = at_prompt("-m", cli.script(cli.calls("danger", what="it"), cli.holding(), "after all"))
    terminal.type("do it\r")
    terminal.expect("[s]top  or why not >")
    terminal.type("becau")
    terminal.expect("becau")
    terminal.wait_until_it_waits()
    terminal.type("\x1b")
    terminal.rest(0.5)
    terminal.type("\x1b")
    terminal.expect("→ stop")
    terminal.expect("stopped; what was done so far is kept")
    terminal.type("go on\r")
    terminal.expect("hold")
    terminal.type("@not")
    terminal.expect("notes.txt")
    terminal.type("\x1b")
    terminal.wait_until_it_waits()
    cli.let_go()
    terminal.expect("after all")
    terminal.rest(0.5)
    terminal.type("\x15/quit\r")
    assert terminal.end() == 0


def test_ctrl_c_twice_at_an_empty_prompt_ends_the_conversation(cli: Any, at_prompt: Begin) -> None:
    """As in other tools; where a line is typed one only empties it, and says nothing of an end that it does not bring."""
    terminal = at_prompt("-m", cli.script("x"))
    terminal.type("half\x03")
    terminal.type("\x03")
    terminal.expect("Ctrl-C again, Ctrl-D or /quit")
    assert terminal.text.count("Ctrl-C again") == 1
    terminal.type("\x03")
    terminal.expect("goes on from here")
    assert terminal.end() == 0


async def test_a_second_hangup_kills_nobody_who_is_saving() -> None:
    """The system and the shell both send it when a window is closed; the second one met the default, which kills."""
    came = asyncio.Event()
    restore = catch_signals((signal.SIGHUP,), lambda _: came.set(), leave_at=2)
    try:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        await came.wait()
        restore()
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


# ---------------------------------------------------------------- what is pasted and offered


def test_a_paste_drives_nothing_and_leaves_a_few_lines(cli: Any, at_prompt: Begin) -> None:
    """Control characters are shown; tabs are blanks; many lines are one mark, and the model gets all of them (issue 41)."""
    terminal = at_prompt("-m", cli.script("read"))
    pasted = "\n".join(["a\tb\x07\x0f\x03\u202e\x9b2J", *(f"line {number}" for number in range(500))])
    terminal.type(f"\x1b[200~{pasted}\x1b[201~")
    terminal.expect("[501 lines pasted]")
    terminal.type("\r")
    terminal.expect("read")
    assert terminal.quit() == 0
    assert cli.prompts() == [pasted]
    for character in "\x07\x0f\x03\x9b":
        assert character not in terminal.raw
    assert "^I" not in terminal.text


def test_an_editor_gives_back_what_it_wrote(cli: Any, at_prompt: Begin) -> None:
    """It is sent with Enter: an editor that is left without saving must send nothing."""
    editor = cli.home / "editor"
    editor.write_text('#!/bin/sh\necho " and more" >> "$1"\n')
    editor.chmod(0o700)
    cli.environ = {"EDITOR": str(editor), "VISUAL": str(editor)}
    terminal = at_prompt("-m", cli.script("read"))
    terminal.type("draft")
    terminal.expect("draft")
    terminal.type("\x18\x05")
    terminal.expect("and more")
    terminal.type("!\r")
    terminal.expect("read")
    assert terminal.quit() == 0
    assert cli.prompts() == ["draft and more!"]


def test_files_that_fit_best_are_offered_first() -> None:
    """Together before apart, in the name before elsewhere; not more than can be drawn with every key."""
    paths = ["src/models/very/deep.py", "m/o/d.py", "src/model.py", "tests/test_model.py", "readme.md"]
    assert nearest("mod", paths) == ["src/model.py", "tests/test_model.py", "src/models/very/deep.py", "m/o/d.py"]
    assert nearest("R.M", paths) == ["readme.md"]
    assert len(nearest("", (f"file {number}" for number in range(1000)))) == MAX_OFFERED


# ---------------------------------------------------------------- plain terminals


def test_a_terminal_that_moves_no_cursor_gets_plain_lines(cli: Any, at_terminal: Begin) -> None:
    """As a screen reader reads them: no escape sequence, no key that is drawn twice, lists by number (CONTRACT §1)."""
    cli("run", "-m", cli.script("The birch is white."), "tell me of birches")
    cli.environ = {"TERM": "dumb"}
    terminal = at_terminal("chat", "-m", cli.script(cli.calls("danger", what="it"), "done that", "more"))
    terminal.expect("\n> ")
    terminal.type("do it\n")
    terminal.expect("[o]nce  [a]lways  [r]efuse  [s]top  or why not > ")
    terminal.type("once\n")
    terminal.expect("done that")
    terminal.expect("\n> ")
    terminal.type("/sessions\n")
    terminal.expect("2  ")
    terminal.expect("number, or Enter to leave > ")
    terminal.type("2\n")
    terminal.expect("The birch is white.")
    terminal.expect("\n> ")
    terminal.type("go on\n")
    terminal.expect("more")
    terminal.expect("\n> ")
    terminal.type("\x04")
    terminal.expect("\nmoryflow chat -c")
    assert terminal.end() == 0
    assert "\x1b" not in terminal.raw and "\b" not in terminal.raw
    assert not set(terminal.raw) & set("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
    assert cli.prompts() == ["tell me of birches", "go on"]

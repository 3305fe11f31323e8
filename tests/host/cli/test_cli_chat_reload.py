"""What somebody sees in ``chat`` while files are saved elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Begin = Callable[..., Any]
SOURCE = """
from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def greet(name: str{more}) -> str:
    "Greet."
    return "{word}"

@hookimpl
def tools():
    return [greet]
"""


def save(path: Path, word: str = "one", more: str = "") -> None:
    path.write_text(SOURCE.format(word=word, more=more))
    path.chmod(0o600)


def test_a_save_is_told_of_while_chat_sits_at_its_prompt(cli: Any, at_prompt: Begin) -> None:
    """One line per save, at once; the next turn begins with it (issue 5, hot reload)."""
    file = cli.home / "plugins" / "mine.py"
    save(file)
    terminal = at_prompt("-m", cli.script(cli.calls("greet", name="you"), "said"), columns=300)
    save(file, "two", ", times: int = 1")
    terminal.expect("plugin mine: code · tool greet: parameters")
    file.write_text("def broken(:\n")
    terminal.expect("kept the previous version")
    terminal.expect("SyntaxError")
    terminal.type("hello\r")
    terminal.expect("greet you")
    terminal.expect("said")
    assert terminal.quit() == 0


def test_a_new_file_with_tools_is_told_of_at_the_prompt(cli: Any, at_prompt: Begin) -> None:
    """At the save, with its path and the command; asked about before the next turn (ARCHITECTURE §7, R18)."""
    (cli.home / "tools").mkdir(mode=0o700)
    terminal = at_prompt("-m", cli.script("fine"), columns=300)
    save(cli.home / "tools" / "fresh.py")
    terminal.expect("fresh.py waits: it appeared while Moryflow ran; moryflow tool allow fresh.py")
    terminal.type("/tools\r")
    terminal.expect("tools/fresh.py is new. Did you put it there, and may it run?")
    terminal.type("n\r")
    terminal.expect("tools/fresh.py waits; moryflow tool allow fresh.py")
    assert terminal.quit() == 0


@pytest.mark.parametrize(("answer", "there"), [("y", True), ("n", False)])
def test_new_code_is_asked_about_before_the_next_turn(cli: Any, at_prompt: Begin, answer: str, there: bool) -> None:
    """A question in chat on a terminal, or it waits (ARCHITECTURE §7, R18)."""
    terminal = at_prompt("-m", cli.script("fine"), columns=300)
    save(cli.home / "plugins" / "fresh.py")
    terminal.expect("waits for your consent")
    terminal.type("/tools\r")
    terminal.expect("may it run?")
    terminal.type(f"{answer}\r")
    if there:
        terminal.expect("tool greet: added")
    else:
        terminal.expect("moryflow plugin enable fresh")
    assert terminal.quit() == 0
    assert ("greet" in cli("tool", "list", "-q").stdout) == there


def test_a_save_while_a_question_waits_leaves_the_question_alone(cli: Any, at_prompt: Begin) -> None:
    """Nothing turns beside the question: it is not the model that is waited for (issue 2, CLI; issue 5, hot reload)."""
    terminal = at_prompt("-m", cli.script("fine"), columns=300)
    save(cli.home / "plugins" / "fresh.py")
    terminal.expect("waits for your consent")
    terminal.type("hello\r")
    terminal.expect("may it run?")
    (cli.home / "tools").mkdir(mode=0o700)
    save(cli.home / "tools" / "another.py")
    terminal.expect("another.py waits")
    time.sleep(1.6)  # a spinner begins after a second
    terminal.type("n\r")
    terminal.expect("moryflow plugin enable fresh")
    assert "waiting for the model" not in terminal.raw.partition("another.py waits")[2].partition("enable fresh")[0]
    terminal.expect("fine")
    terminal.type("/quit\r")
    terminal.expect("may it run?")
    terminal.type("n\r")
    assert terminal.end() == 0

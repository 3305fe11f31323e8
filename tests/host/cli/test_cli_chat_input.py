"""The input at the bottom of a conversation: what is typed while a turn runs, files behind an @, drafts and questions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Begin = Callable[..., Any]


def prompts(cli: Any) -> list[str]:
    nodes = json.loads(cli("session", "show", "--json").stdout)["nodes"]
    return [node["payload"]["text"] for node in nodes if node["kind"] == "user"]


def test_a_line_that_is_typed_while_a_turn_runs_waits_for_its_end(cli: Any, at_terminal: Begin) -> None:
    """It is shown as queued, and what is half typed stays in the input."""
    terminal = at_terminal("chat", "-m", cli.script(cli.holding(), "first", "second", "third"))
    terminal.expect("\n>")
    terminal.type("go\r")
    terminal.expect("hold")
    terminal.type("and then?\r")
    terminal.expect("queued: and then?")
    terminal.type("draft")
    terminal.expect("draft")
    cli.let_go()
    terminal.expect("second")
    terminal.expect("> draft")
    terminal.type("ed\r")
    terminal.expect("third")
    terminal.type("/quit\r")
    assert terminal.end() == 0
    assert prompts(cli) == ["go", "and then?", "drafted"]


def test_a_draft_answers_no_question_and_comes_back(cli: Any, at_terminal: Begin) -> None:
    """Who types on when a question comes has not read it (R33)."""
    terminal = at_terminal("chat", "-m", cli.script(cli.holding(), cli.calls("danger", what="it"), "done that", "end"))
    terminal.expect("\n>")
    terminal.type("do it\r")
    terminal.expect("hold")
    terminal.type("g")
    terminal.rest(0.3)
    cli.let_go()
    terminal.expect("[o]nce  [a]lways  [n]o  [s]top >")
    terminal.type("o\r")
    terminal.rest(1.2)
    assert "done that" not in terminal.text
    terminal.type("not now\r")
    terminal.expect("denied: not now")
    terminal.expect("> g")
    terminal.type("o on\r")
    terminal.expect("end")
    terminal.type("/quit\r")
    assert terminal.end() == 0
    assert prompts(cli) == ["do it", "go on"]


def test_an_answer_is_chosen_with_the_arrow_keys(cli: Any, at_terminal: Begin) -> None:
    """None is chosen before a key is pressed: Enter alone answers nothing (R33)."""
    terminal = at_terminal("chat", "-m", cli.script(cli.calls("danger", what="it"), "done that"))
    terminal.expect("\n>")
    terminal.type("do it\r")
    terminal.expect("[o]nce")
    terminal.type("\r")
    terminal.expect("no refuses it")
    terminal.type("\x1b[C")
    terminal.expect("[o]nce")
    terminal.type("\r")
    terminal.expect("did it")
    terminal.expect("done that")
    terminal.type("/quit\r")
    assert terminal.end() == 0


def test_a_file_behind_an_at_sign_is_completed_and_attached(cli: Any, at_terminal: Begin) -> None:
    """Files that git ignores are not offered; what is named is sent along."""
    (cli.vault / "notes.txt").write_text("the word is birch\n")
    terminal = at_terminal("chat", "-m", cli.script("seen"))
    terminal.expect("\n>")
    terminal.type("look at @not")
    terminal.expect("notes.txt")
    terminal.type("\t")
    terminal.rest(0.5)
    terminal.type(" please\r")
    terminal.expect("seen")
    terminal.type("/quit\r")
    assert terminal.end() == 0
    [node] = [node for node in json.loads(cli("session", "show", "--json").stdout)["nodes"] if node["kind"] == "user"]
    assert "birch" in json.dumps(node["payload"])


def test_lines_that_come_at_once_are_one_prompt(cli: Any, at_terminal: Begin) -> None:
    """A paste never sends, also where the terminal does not mark it as one."""
    terminal = at_terminal("chat", "-m", cli.script("read"))
    terminal.expect("\n>")
    terminal.rest(0.5)
    terminal.type("one\rtwo\rthree")
    terminal.expect("three")
    terminal.rest(0.5)
    terminal.type("\r")
    terminal.expect("read")
    terminal.type("/quit\r")
    assert terminal.end() == 0
    assert prompts(cli) == ["one\ntwo\nthree"]


def test_the_result_of_a_call_is_shown_in_a_few_lines(cli: Any, at_terminal: Begin) -> None:
    """With how many more there are, and what the turn took."""
    cli.plugin(
        "lister",
        """
        from moryflow_sdk import *

        @tool(domain="read")
        def lister() -> str:
            "List."
            return "\\n".join(f"row {number}" for number in range(40))

        @hookimpl
        def tools():
            return [lister]
        """,
    )
    terminal = at_terminal("chat", "-m", cli.script(cli.calls("lister"), "listed"))
    terminal.expect("\n>")
    terminal.type("list\r")
    terminal.expect("• lister")
    terminal.expect("row 3")
    terminal.expect("+36 lines · Ctrl-O shows all")
    terminal.expect("listed")
    terminal.expect("tokens in")
    terminal.type("/quit\r")
    assert terminal.end() == 0

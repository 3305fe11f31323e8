"""The input at the bottom of a conversation: what is typed while a turn runs, files behind an @, drafts and questions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

Begin = Callable[..., Any]


def test_a_line_that_is_typed_while_a_turn_runs_waits_for_its_end(cli: Any, at_prompt: Begin) -> None:
    """It is shown as queued, and what is half typed stays in the input."""
    terminal = at_prompt("-m", cli.script(cli.holding(), "first", "second", "third"))
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
    assert terminal.quit() == 0
    assert cli.prompts() == ["go", "and then?", "drafted"]


def test_a_draft_answers_no_question_and_comes_back(cli: Any, at_prompt: Begin) -> None:
    """Who types on when a question comes has not read it (R33)."""
    terminal = at_prompt("-m", cli.script(cli.holding(), cli.calls("danger", what="it"), "done that", "end"))
    terminal.type("do it\r")
    terminal.expect("hold")
    terminal.type("g")
    terminal.rest(0.3)
    cli.let_go()
    terminal.expect("[o]nce  [a]lways  [r]efuse  [s]top  or why not >")
    terminal.type("o\r")
    terminal.rest(1.2)
    assert "done that" not in terminal.text
    terminal.type("not now\r")
    terminal.expect("denied: not now")
    terminal.expect("> g")
    terminal.type("o on\r")
    terminal.expect("end")
    assert terminal.quit() == 0
    assert cli.prompts() == ["do it", "go on"]


def test_a_file_behind_an_at_sign_is_completed_and_attached(cli: Any, at_prompt: Begin) -> None:
    """Files that git ignores are not offered; what is named is sent along."""
    (cli.vault / "notes.txt").write_text("the word is birch\n")
    terminal = at_prompt("-m", cli.script("seen"))
    terminal.type("look at @not")
    terminal.expect("notes.txt")
    terminal.type("\t")
    terminal.rest(0.5)
    terminal.type(" please\r")
    terminal.expect("seen")
    assert terminal.quit() == 0
    [node] = [node for node in json.loads(cli("session", "show", "--json").stdout)["nodes"] if node["kind"] == "user"]
    assert "birch" in json.dumps(node["payload"])


# ---------------------------------------------------------------- sessions


def test_another_session_is_picked_from_a_list_and_recalled(cli: Any, at_prompt: Begin) -> None:
    """Typing narrows the list, and what was said last is shown again."""
    cli("run", "-m", cli.script("The birch is white."), "tell me of birches")
    cli("run", "-m", cli.script("The oak is old."), "tell me of oaks")
    terminal = at_prompt("-m", cli.script("more of it"))
    terminal.type("/sessions\r")
    terminal.expect("type to search")
    terminal.expect("birches")
    terminal.type("birch")
    terminal.expect("birch")
    terminal.rest(0.3)
    terminal.type("\r")
    terminal.expect("> tell me of birches")
    terminal.expect("The birch is white.")
    terminal.expect("\n>")
    terminal.type("go on\r")
    terminal.expect("more of it")
    assert terminal.quit() == 0
    assert cli.prompts() == ["tell me of birches", "go on"]


def test_a_prompt_of_the_tree_comes_back_for_editing(cli: Any, at_terminal: Begin) -> None:
    """The conversation goes on from before it; both branches stay."""
    cli("run", "-m", cli.script("The birch is white."), "tell me of birches")
    terminal = at_terminal("chat", "-c", "-m", cli.script("The oak is old."))
    terminal.expect("> tell me of birches")
    terminal.expect("\n>")
    terminal.type("/tree\r")
    terminal.expect("type to search")
    terminal.type("user")
    terminal.rest(0.3)
    terminal.type("\r")
    terminal.expect("goes on from its beginning")
    terminal.expect("> tell me of birches")
    terminal.type(" and oaks\r")
    terminal.expect("The oak is old.")
    assert terminal.quit() == 0
    assert cli.prompts() == ["tell me of birches and oaks"]
    nodes = json.loads(cli("session", "tree", "--json").stdout)["nodes"]
    assert sum(node["kind"] == "user" for node in nodes) == 2


def test_a_conversation_says_what_it_holds_and_costs(cli: Any) -> None:
    """Without a terminal too: the window by source, tokens by model, plugins; and it is written to a file."""
    lines = "hello\n/context\n/cost\n/plugins\n/export talk.md\n/export talk.jsonl\n"
    shown = cli("chat", "-m", cli.script("# Greetings"), stdin=lines)
    assert shown.returncode == 0 and shown.stdout == "# Greetings\n"
    for part in ("tokens", "turns", "  prompts", "script", "1 turn", "$0.0000", "built in"):
        assert part in shown.stderr, part
    assert (cli.vault / "talk.md").read_text() == "# hello\n\n## You\n\nhello\n\n## Agent\n\n# Greetings\n"
    assert [json.loads(line) for line in (cli.vault / "talk.jsonl").read_text().splitlines()]


# ---------------------------------------------------------------- images


def test_the_path_of_an_image_that_is_pasted_attaches_it(cli: Any, at_prompt: Begin) -> None:
    """Terminals paste the path of a file that is dropped on them; blanks come with a backslash."""
    image = cli.vault / "a picture.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    terminal = at_prompt("-m", cli.script("seen"))
    terminal.type(f"\x1b[200~{str(image).replace(' ', chr(92) + ' ')}\x1b[201~")
    terminal.expect('a picture.png"')
    terminal.type(" what is it?\r")
    terminal.expect("seen")
    assert terminal.quit() == 0
    [node] = [node for node in json.loads(cli("session", "show", "--json").stdout)["nodes"] if node["kind"] == "user"]
    assert node["payload"]["images"] and f'@"{image}" what is it?' in node["payload"]["text"]


def test_an_image_is_pasted_from_the_clipboard(cli: Any, at_prompt: Begin) -> None:
    """A program that reads the clipboard prints a PNG, and Ctrl-V attaches it; one that prints no image is passed over."""
    programs = cli.vault.parent / "programs"
    programs.mkdir()
    (cli.vault.parent / "copied.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    for name, line in (("wl-paste", "echo text"), ("xclip", f"cat '{cli.vault.parent / 'copied.png'}'")):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o700)
    cli.environ |= {"PATH": f"{programs}:{os.environ['PATH']}", "WAYLAND_DISPLAY": "w", "DISPLAY": ":0"}
    terminal = at_prompt("-m", cli.script("seen"))
    terminal.type("\x16")
    terminal.expect(".png")
    terminal.type("what is it?\r")
    terminal.expect("seen")
    assert terminal.quit() == 0
    [node] = [node for node in json.loads(cli("session", "show", "--json").stdout)["nodes"] if node["kind"] == "user"]
    assert len(node["payload"]["images"]) == 1 and node["payload"]["text"].endswith("what is it?")

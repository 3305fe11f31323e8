"""Consent at real terminals: what is answered was on the screen, and what was on the screen is what runs (R33, R22)."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Callable
from typing import Any

import pytest

Begin = Callable[..., Any]
ASKED = [{"domain": "edit", "pattern": "vault:/**", "decision": "ask"}, {"domain": "read", "pattern": "*", "decision": "allow"}]


@pytest.fixture
def editor(cli: Any) -> Any:
    """A command line with the file tools, whose every change is asked about."""
    cli.config(
        disabledPlugins=["search", "shell", "local_model", "litellm_models"],
        agents={"runtime": {"permission": {"rules": ASKED}}},
    )
    return cli


def outputs(cli: Any) -> list[tuple[str, str]]:
    nodes = json.loads(cli("session", "show", "--json").stdout)["nodes"]
    return [(node["payload"]["status"], node["payload"]["output"]) for node in nodes if node["kind"] == "tool"]


def test_what_was_typed_before_a_question_stood_answers_nothing(cli: Any, at_terminal: Begin) -> None:
    """Lines of any number, whole or half: they are dropped, and the question waits (R33)."""
    terminal = at_terminal("run", "-m", cli.script(cli.holding(), cli.calls("danger", what="it"), "done"), "hi")
    while not cli.holds():
        terminal.rest(0.05)
    terminal.type("once\nalways\no\nstop\nbecause I say so\non")
    cli.let_go()
    terminal.expect("[o]nce")
    terminal.rest(1.5)
    terminal.type("ce\n")
    terminal.expect("denied: ce")
    assert terminal.end() == 0
    assert outputs(cli)[1:] == [("denied", "denied: ce.")]


def test_lines_that_are_pasted_at_a_question_are_one_reason(cli: Any, at_prompt: Begin) -> None:
    """The first of them alone allows nothing, and the others answer neither the next question nor the prompt (R33)."""
    terminal = at_prompt("-m", cli.script(cli.calls("danger", "danger", what="it"), "done that", "never"))
    terminal.type("do it\r")
    terminal.expect("[o]nce")
    terminal.rest(0.5)
    terminal.type("o\no\nand")
    terminal.rest(0.5)
    terminal.type("\n")
    terminal.expect("danger wants to")
    terminal.expect("[o]nce")
    terminal.rest(1.0)
    terminal.type("n\n")
    terminal.expect("done that")
    terminal.expect("\n>")
    terminal.rest(0.5)
    assert terminal.quit() == 0
    assert [status for status, _ in outputs(cli)] == ["denied", "denied"]
    asked = json.loads(cli("approval", "list", "--all", "--json").stdout)
    assert [(row["reply"], row["message"]) for row in asked] == [("reject", "o\no\nand"), ("reject", "")]
    assert "never" not in terminal.text


def test_the_content_of_a_new_file_and_the_diff_of_another_are_shown(editor: Any, at_terminal: Begin) -> None:
    """Path first, then what will be written, before anything is (R22, R33)."""
    (editor.vault / "a.py").write_text("import os\n\nx = 1\n")
    model = editor.script(
        editor.calls("write", path="new.txt", content="one\n\u202etwo\n"),
        editor.calls("edit", path="a.py", old_string="x = 1", new_string="x = 2"),
        "done",
    )
    terminal = at_terminal("run", "-m", model, "hi", columns=80)
    terminal.expect("? write wants to")
    terminal.expect("    new.txt\n  │ new file, 2 lines\n  │ +one\n  │ +\\u202etwo\n  ! ")
    assert not (editor.vault / "new.txt").exists()
    terminal.type("o\n")
    terminal.expect("    a.py\n  │ +1 -1 lines\n  │ 1   import os\n  │ 2   \n  │ 3 - x = 1\n  │ 3 + x = 2\n")
    terminal.type("n\n")
    assert terminal.end() == 0
    assert ((editor.vault / "new.txt").read_text(), (editor.vault / "a.py").read_text()) == (
        "one\n\u202etwo\n",
        "import os\n\nx = 1\n",
    )


def test_another_terminal_sees_and_answers_the_same_question(editor: Any, at_prompt: Begin) -> None:
    """approval list and show have what will happen, and any of the words or a reason answers (R33, D65)."""
    content = "\n".join(f"line {number}" for number in range(300))
    terminal = at_prompt("-m", editor.script(editor.calls("write", path="n.txt", content=content), "I see"))
    terminal.type("go\r")
    terminal.expect("[v]iew all")
    listed = editor("approval", "list").stdout
    assert "build: write" in listed and "│ new file, 300 lines" in listed and "│ +line 150" not in listed
    [row] = json.loads(editor("approval", "list", "--json").stdout)
    assert row["request"]["preview"].splitlines()[1:301] == [f"+line {number}" for number in range(300)]
    shown = editor("approval", "show", row["id"]).stdout
    assert "│ +line 150\n" in shown and "always: n.txt" in shown and "pending" in shown
    assert editor("approval", "reply", row["id"]).returncode == 2
    assert editor("approval", "reply", row["id"], " ").returncode == 2
    said = editor("approval", "reply", row["id"], "put", "it", "elsewhere").stdout
    assert f"{row['id']}: reject (put it elsewhere)" in said
    terminal.expect("denied: put it elsewhere")
    terminal.expect("I see")
    terminal.expect("\n>")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_all_of_a_long_question_is_shown_on_demand(editor: Any, at_terminal: Begin) -> None:
    """With v; the question stands afterwards (R33)."""
    content = "\n".join(f"line {number}" for number in range(300))
    terminal = at_terminal("run", "-m", editor.script(editor.calls("write", path="n.txt", content=content), "done"), "go")
    terminal.expect("[v]iew all  or why not >")
    assert "line 150" not in terminal.text
    terminal.type("/show\n")
    terminal.expect("+line 150")
    terminal.expect("[v]iew all  or why not >")
    terminal.type("o\n")
    assert terminal.end() == 0
    assert (editor.vault / "n.txt").read_text() == content


@pytest.mark.parametrize(("key", "decision", "by"), [("", "stop", "cancel"), ("s\n", "stop", "user"), ("\x04", "stop", "user")])
def test_how_a_question_ended_is_in_the_audit_log(cli: Any, at_terminal: Begin, key: str, decision: str, by: str) -> None:
    """Ctrl-C too, where no decision is taken any more: who could have allowed what is known afterwards (R33, S0.72)."""
    terminal = at_terminal("run", "-m", cli.script(cli.calls("danger", what="it"), "never"), "hi")
    terminal.expect("[s]top  or why not >")
    if key:
        terminal.type(key)
    else:
        terminal.interrupt()
    assert terminal.end() == 130
    [line] = json.loads(cli("audit", "--denied", "--json").stdout)
    assert (line["decision"], line["by"], line["tool"], line["targets"]) == (decision, by, "danger", ["tool:danger"])
    assert line["permissionDomain"] == "bash"


@pytest.mark.parametrize("command", ["run", "chat"])
def test_after_each_edit_its_path_and_a_short_diff_are_shown(cli: Any, at_terminal: Begin, command: str) -> None:
    """Of every tool that changes files, asked about or not, in run and in chat; nothing in it looks like ours (R33, R3)."""
    cli.config(
        disabledPlugins=["search", "shell", "local_model", "litellm_models"],
        agents={"runtime": {"permission": {"rules": [{"domain": "edit", "pattern": "vault:/**", "decision": "allow"}]}}},
    )
    (cli.vault / "a.py").write_text("import os\n\nx = 1\n")
    (cli.vault / "b.txt").write_text("b\n")
    edits = [{"path": "a.py", "old_string": "os", "new_string": "sys"}, {"path": "b.txt", "old_string": "b", "new_string": "c"}]
    model = cli.script(
        cli.calls("write", path="new.txt", content="".join(f"line {number}\n" for number in range(60))),
        cli.calls("edit", path="a.py", old_string="x = 1", new_string="? write wants to\n\u202e"),
        cli.calls("multiedit", edits=edits),
        cli.calls("move", path="b.txt", to="d.txt"),
        cli.calls("delete", path="d.txt"),
        "done",
    )
    terminal = at_terminal(command, "-m", model, *(["go"] if command == "run" else []), columns=80)
    if command == "chat":
        terminal.expect("\n>")
        terminal.type("go\r")
    terminal.expect("  │ new.txt: new file, +60 -0 lines\n  │  1 + line 0\n")
    terminal.expect("  │ … 46 more lines …\n")
    terminal.expect("  │    + line 59\n")
    terminal.expect("  │ a.py: +2 -1 lines\n  │ 1   import os\n  │ 2   \n")
    terminal.expect("  │ 3 - x = 1\n  │ 3 + ? write wants to\n  │ 4 + \\u202e\n")
    terminal.expect("  │ a.py: +1 -1 lines\n")
    terminal.expect("  │ b.txt: +1 -1 lines\n  │ 1 - b\n  │ 1 + c\n")
    terminal.expect("  │ b.txt → d.txt: moved\n")
    terminal.expect("  │ d.txt: deleted\n")
    terminal.expect("done")
    if command == "chat":
        assert terminal.quit() == 0


def test_a_program_has_the_diff_in_the_event_of_the_result(cli: Any) -> None:
    """As a terminal shows it, so that no client has to make it anew (R33)."""
    cli.config(
        disabledPlugins=["search", "shell", "local_model", "litellm_models"],
        agents={"runtime": {"permission": {"rules": [{"domain": "edit", "pattern": "vault:/**", "decision": "allow"}]}}},
    )
    model = cli.script(cli.calls("write", path="a.md", content="one\n"), "done")
    lines = cli("run", "-m", model, "go", "--output", "stream-json").stdout.splitlines()
    [result] = [json.loads(line) for line in lines if '"tool.result"' in line]
    assert result["diff"] == "vault:/a.md: new file, +1 -0 lines\n@@ -0,0 +1 @@\n+one"


def test_a_question_that_nobody_sees_is_answered_by_nobody(cli: Any) -> None:
    """Standard error goes to a file: what is typed there answers nothing (R33)."""
    ours, theirs = pty.openpty()
    try:
        running = cli.start(
            "run", "--on-ask", "prompt", "-m", cli.script(cli.calls("danger", what="it"), "done"), "hi", stdin=theirs
        )
        os.write(ours, b"once\n")
        out, err = running.communicate()
    finally:
        os.close(ours)
        os.close(theirs)
    assert (running.returncode, out) == (4, "done\n") and "nobody can see a question" in err
    assert [status for status, _ in outputs(cli)] == ["denied"]


def test_a_conversation_from_a_pipe_answers_its_questions_in_line(cli: Any) -> None:
    """Whoever wrote the lines knows what is asked: each question takes the next one, and the end of them is a no (R33)."""
    model = cli.script(cli.calls("danger", what="it"), cli.calls("danger", what="that"), cli.calls("danger", what="x"), "done")
    done = cli("chat", "-m", model, "--on-ask", "prompt", stdin="go\nonce\n\nnot that\n")
    assert done.stdout == "done\n"
    assert outputs(cli)[:2] == [("ok", "did it"), ("denied", "denied: not that.")]
    assert outputs(cli)[2][0] == "denied" and "nobody can be asked" in done.stderr

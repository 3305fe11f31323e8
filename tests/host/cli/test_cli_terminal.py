"""At a real terminal: Markdown, questions, Ctrl-C, and the conversation."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from typing import Any

import pytest

Begin = Callable[..., Any]


def test_the_answer_is_rendered_and_tools_are_shown(cli: Any, at_terminal: Begin) -> None:
    """Markdown on a terminal, each tool as it runs (issue 2, CLI)."""
    model = cli.script({"text": "Looking.", **cli.calls("hello", name="Ann")}, "# Title\n\n- **one**\n- two\n")
    terminal = at_terminal("run", "-m", model, "hi")
    terminal.expect("• two")
    assert terminal.end() == 0
    assert "hello Ann" in terminal.text
    assert "**one**" not in terminal.text
    assert "\x1b[1m" in terminal.raw


def test_no_color_is_honoured(cli: Any, at_terminal: Begin) -> None:
    """NO_COLOR: no colour of any kind (CONTRACT §1)."""
    cli.environ = {"NO_COLOR": "1"}
    terminal = at_terminal("run", "-m", cli.script("# Title\n\n`code` and [a link](https://x.example)\n"), "hi")
    terminal.end()
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|38|4[0-7]|48|9[0-7])[;m]", terminal.raw)


def test_control_sequences_of_a_model_do_not_reach_the_terminal(cli: Any, at_terminal: Begin) -> None:
    """They are shown, not obeyed: in the answer, in arguments, in a question (R3)."""
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    model = cli.script(cli.calls("danger", what=evil), f"text {evil}")
    terminal = at_terminal("run", "-m", model, "hi", "--on-ask", "prompt")
    terminal.expect("[o]nce")
    terminal.type("once\n")
    terminal.end()
    assert "\x1b]0;owned" not in terminal.raw
    assert "\x1b[2J" not in terminal.raw
    assert "\u202e" not in terminal.raw
    assert "\\x1b" in terminal.raw


DRIVES = "\x1b]0;a\x07 \x9b31m \x9d0;b\x9c \x7f \u061c \u202e \u2066"


@pytest.mark.parametrize(
    "command",
    ["run go --output json -m MODEL", "run go --output stream-json -m MODEL", "session show --json", "session list --json",
     "session export", "config show --json", "permission explain bash TEXT --json", "config set model TEXT"],
)  # fmt: skip
def test_no_document_drives_the_terminal_and_none_loses_a_character(cli: Any, at_terminal: Begin, command: str) -> None:
    """JSON allows the control characters from 7f on and the marks of direction; they stand there as its escapes (R3)."""
    model = cli.script(DRIVES)
    cli("run", "-m", model, DRIVES)
    if "show" in command:
        cli("config", "set", "model", DRIVES)
    terminal = at_terminal(*({"MODEL": model, "TEXT": DRIVES}.get(word, word) for word in command.split()))
    assert terminal.end() == 0
    assert not re.search("[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u202e\u2066]", terminal.raw)
    texts = [text for line in terminal.raw.splitlines() for text in re.findall(r'"(?:[^"\\]|\\.)*"', line)]
    assert re.search("set|list", command) or any(DRIVES in json.loads(text) for text in texts)


@pytest.mark.parametrize(
    ("typed", "outputs", "code"),
    [
        *(("once\n", ["did it"], 0), ("a\n", ["did it"], 0), ("s\n", [], 130), ("n\n", [], 0), ("try make\n", [], 0)),
        *(("o", ["did it"], 0), ("A", ["did it"], 0), ("s", [], 130), ("only\x7f\x7f\x7f\x7fno, later\n", [], 0)),
    ],
)
def test_a_question_is_answered_with_a_key_or_words(
    cli: Any, at_terminal: Begin, typed: str, outputs: list[str], code: int
) -> None:
    """Tool, target, arguments, reason, and what always would store; Enter alone answers nothing (R33, S0.9, D24, S0.47).

    A letter that stands alone needs no Enter; one that begins a reason answers nothing.
    """
    terminal = at_terminal("run", "-m", cli.script(cli.calls("danger", what="it"), "done"), "hi")
    terminal.expect("danger wants to")
    terminal.expect("│ what: it")
    terminal.expect("! ")
    terminal.expect("[o]nce  [a]lways  [r]efuse  [s]top  or why not >")
    terminal.type("\n")
    terminal.expect("refuse lets")
    terminal.expect("[o]nce")
    terminal.type(typed)
    assert terminal.end() == code
    nodes = json.loads(cli("session", "show", "--json").stdout)["nodes"]
    found = [node["payload"]["output"] for node in nodes if node["kind"] == "tool" and node["payload"]["status"] == "ok"]
    assert found == outputs


def test_r_asks_for_a_reason_and_the_letters_are_not_shown_twice(cli: Any, at_terminal: Begin) -> None:
    """Enter alone refuses without one; what is typed is shown, and the terminal is as it was before (R33, D24)."""
    terminal = at_terminal("run", "-m", cli.script(cli.calls("danger", "danger", what="it"), "done"), "hi")
    terminal.expect("or why not > ")
    terminal.type("r")
    terminal.expect("why not? Enter sends it > ")
    terminal.type("use make\n")
    terminal.expect("denied: use make")
    terminal.expect("or why not > ")
    terminal.type("r")
    terminal.expect("why not? Enter sends it > ")
    terminal.type("\n")
    assert terminal.end() == 0
    asked = json.loads(cli("approval", "list", "--all", "--json").stdout)
    assert [(row["reply"], row["message"]) for row in asked] == [("reject", "use make"), ("reject", "")]


def test_a_question_answered_elsewhere_is_withdrawn(cli: Any, at_terminal: Begin) -> None:
    """The turn goes on when another process replies (D65)."""
    terminal = at_terminal("run", "-m", cli.script(cli.calls("danger", what="it"), "went on"), "hi")
    terminal.expect("[o]nce")
    [question] = json.loads(cli("approval", "list", "--json").stdout)
    cli("approval", "reply", question["id"], "once")
    terminal.expect("went on")
    assert terminal.end() == 0


def test_ctrl_c_at_a_question_stops_the_turn(cli: Any, at_terminal: Begin) -> None:
    """Exit code 130 at once; nobody waits for a line that never comes."""
    terminal = at_terminal("run", "-m", cli.script(cli.calls("danger", what="it"), "never"), "hi")
    terminal.expect("[o]nce")
    terminal.interrupt()
    assert terminal.end() == 130
    assert re.search(r"\[s\]top  or why not > (\^C)?\s*\n• danger it\n.*skipped: the turn ended", terminal.text)


def test_a_spinner_turns_after_a_second_and_leaves_nothing(cli: Any, at_terminal: Begin) -> None:
    """Anything over a second moves, on standard error, and is cleared (issue 2, CLI)."""
    terminal = at_terminal("run", "-m", cli.script({"text": "late", "delay": 1.6}), "hi")
    terminal.expect("late")
    terminal.end()
    assert re.search("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] waiting for the model", terminal.raw)
    assert terminal.raw.rindex("\x1b[K") > terminal.raw.rindex("waiting for the model")


# ---------------------------------------------------------------- chat


def test_a_conversation_at_a_terminal(cli: Any, at_terminal: Begin) -> None:
    """Two turns in one session, the mode in the prompt, /help, /quit, history in the home 0600 (issue 2, CLI; S0.68)."""
    terminal = at_terminal("chat", "-m", cli.script("first answer", "second answer"))
    terminal.expect("/help")
    terminal.expect("\n>")
    terminal.type("hello there\r")
    terminal.expect("first answer")
    terminal.expect("\n>")
    terminal.type("/mode full_access\r")
    terminal.expect("Go on?")
    terminal.type("y\n")
    terminal.expect("[full access]")
    terminal.type("and again\r")
    terminal.expect("second answer")
    terminal.expect("[full access]")
    assert terminal.quit() == 0
    shown = json.loads(cli("session", "show", "--json").stdout)
    texts = [node["payload"]["text"] for node in shown["nodes"] if node["kind"] in ("user", "assistant")]
    assert texts == ["hello there", "first answer", "and again", "second answer"]
    assert shown["mode"] == "full_access"
    [history] = (cli.home / "history").iterdir()  # of this vault
    assert "+hello there" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_ctrl_c_stops_the_turn_and_not_the_program(cli: Any, at_prompt: Begin) -> None:
    """The next prompt comes, and the conversation goes on (issue 2, CLI)."""
    terminal = at_prompt("-m", cli.script({"text": "begun\n\nnever seen", "pause": 600}, "after all"))
    terminal.type("take your time\r")
    terminal.expect("begun")  # a spinner turns before the model is asked: the next prompt might get this answer
    terminal.interrupt()
    terminal.expect("stopped; what was done so far is kept")
    terminal.expect("\n>")
    terminal.type("again\r")
    terminal.expect("after all")
    terminal.expect("\n>")
    terminal.type("\x04")
    assert terminal.end() == 0


# ---------------------------------------------------------------- chat without a terminal


def test_a_conversation_from_a_pipe(cli: Any) -> None:
    """Plain lines when standard input is not a terminal: each is a prompt, slash commands work, answers alone on stdout."""
    done = cli("chat", "-m", cli.script("one", "two"), stdin="first\n\n/mode\n/nope\nsecond\n")
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n")
    assert "mode: agent" in done.stderr
    assert "there is no /nope" in done.stderr


def test_slash_commands(cli: Any) -> None:
    """/new, /model, /agent, /resume, /tools, and a hint for what is nearly right."""
    model = cli.script("one", "two")
    lines = [
        "first",
        "/new",
        "second",
        "/tools",
        "/agent",
        "/agent nobody",
        "/model",
        "/model nope",
        "/hlep",
        "/mode ask",
        "/quit",
    ]
    done = cli("chat", "-m", model, stdin="\n".join([*lines, "never sent"]))
    assert done.stdout == "one\ntwo\n"
    for wanted in ("new session", "danger hello ", "agent: build", "unknown agent 'nobody'", "unknown model 'nope'"):
        assert wanted in done.stderr
    assert "did you mean /help?" in done.stderr
    assert "mode: agent" in done.stderr
    rows = json.loads(cli("session", "list", "--json").stdout)
    assert len(rows) == 2
    done = cli("chat", "-m", model, stdin=f"/resume\n/resume {rows[1]['id'][:6]}\n/resume {rows[1]['id']}\n")
    assert f"session {rows[1]['id']}" in done.stderr
    assert "that is this session" in done.stderr


def test_the_session_is_held_for_the_whole_conversation(cli: Any) -> None:
    """Another process cannot prompt it meanwhile (ARCHITECTURE §5)."""
    talking = cli.start("chat", "-m", cli.script("one", "two"))
    talking.stdin.write("first\n")
    talking.stdin.flush()
    assert talking.stdout.readline() == "one\n"
    [row] = json.loads(cli("session", "list", "--json").stdout)
    busy = cli("run", "-r", row["id"], "-m", "script:none", "hi")
    assert (busy.returncode, "in use by process" in busy.stderr) == (1, True)
    out, _ = talking.communicate("second\n")
    assert (talking.returncode, out) == (0, "two\n")


def test_a_failed_turn_does_not_end_the_conversation(cli: Any) -> None:
    """The error is a sentence, the next line is taken, and the exit code keeps what went wrong."""
    done = cli("chat", "-m", cli.script({"error": "auth"}, "fine"), stdin="one\ntwo\n")
    assert (done.returncode, done.stdout) == (7, "fine\n")
    assert "scripted failure" in done.stderr


def test_slash_commands_of_plugins(cli: Any) -> None:
    """What a plugin contributes shows text or sends a prompt."""
    cli.plugin(
        "shout",
        """
        from moryflow_sdk import *

        async def shout(rest, turn):
            return SlashResult(text=f"shouting in {turn.vault.name}", prompt=rest.upper())

        @hookimpl
        def commands():
            return [Command("shout", "Say it louder", slash=shout)]
        """,
    )
    done = cli("chat", "-m", cli.script("heard"), stdin="/help\n/shout hello\n")
    assert done.stdout == "heard\n"
    assert "Say it louder" in done.stderr
    assert "shouting in vault" in done.stderr
    messages = json.loads(cli("session", "context", "--json").stdout)["messages"]
    assert messages[0]["text"] == "HELLO"


def test_a_slash_command_with_foreign_text_starts_no_sub_agent(cli: Any) -> None:
    """A prompt that somebody else wrote is a prompt and nothing more (R13)."""
    cli.plugin(
        "fetched",
        """
        from moryflow_sdk import *

        async def fetched(rest, turn):
            return SlashResult(prompt=f"@general {rest}", foreign=rest == "foreign")

        @hookimpl
        def commands():
            return [Command("fetched", "Send it", slash=fetched)]
        """,
    )
    done = cli("chat", "-m", cli.script("heard"), stdin="/fetched foreign\n")
    messages = json.loads(cli("session", "context", "--json").stdout)["messages"]
    assert done.stdout == "heard\n" and [one["text"] for one in messages] == ["@general foreign", "heard"]
    cli("chat", "-m", cli.script("child", "heard"), stdin="/fetched own\n")
    assert "tool" in [one["role"] for one in json.loads(cli("session", "context", "--json").stdout)["messages"]]


def test_what_a_running_tool_says_is_shown_beside_the_spinner(cli: Any, at_terminal: Begin) -> None:
    """Progress stays on the terminal and is never part of the answer (CONTRACT §2, `tool.delta`)."""
    cli.plugin(
        "worker",
        """
        from moryflow_sdk import *
        import asyncio

        @tool(domain="read")
        async def work(ctx: ToolContext) -> str:
            \"\"\"Work.\"\"\"
            ctx.progress("much\\n" * 100_000 + "half way\\x1b[2J")
            await asyncio.sleep(1.6)
            return "ready"

        @hookimpl
        def tools():
            return [work]
        """,
    )
    terminal = at_terminal("run", "-m", cli.script(cli.calls("work"), "done"), "hi")
    terminal.expect("half way")
    terminal.expect("done")
    assert terminal.end() == 0
    assert "\x1b[2J" not in terminal.raw


def test_a_hook_that_fails_is_a_visible_notice(cli: Any) -> None:
    """The turn goes on, and plugin, hook, file and line are named, also without a terminal (S0.95)."""
    file = cli.plugin(
        "bad", "from moryflow_sdk import hookimpl\n\n@hookimpl\ndef chat_params(params):\n    raise ValueError('oh')\n"
    )
    done = cli("run", "-m", cli.script("fine"), "hi")
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert "plugin bad failed" in done.stderr
    assert str(file) in done.stderr
    assert cli("-q", "run", "-m", cli.script("fine"), "hi").stderr == ""

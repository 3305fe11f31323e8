"""``chat --attach``: the conversation is the one of this process, and its turns are the server's (D, part 1; CONTRACT 1)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..cli.conftest import Terminal  # noqa: TID252
from .conftest import MORYFLOW, Server
from .test_attach import DANGER, environment, runner, script

TASK = {"calls": [{"name": "task", "arguments": {"agent": "general", "prompt": "look around"}}]}
BEHIND = {"calls": [{"name": "task", "arguments": {"agent": "helper", "prompt": "look", "background": True}}]}
_UNLIKE = re.compile(r"\b[0-9a-f]{8,}\b|\$[0-9.]+|/\S+/vault\S*|\d\d-\d\d \d\d:\d\d|reloaded in \d+ ms")


@pytest.fixture
def moryflow(shared: Server) -> Callable[..., Any]:
    """Run the command beside the server, with a script of answers of its own."""
    return runner(shared)


@pytest.fixture
def at_terminal(shared: Server) -> Iterator[Callable[..., Terminal]]:
    """Begin an attached conversation at a terminal; it is closed when the test has ended."""
    opened: list[Terminal] = []

    def begin(*arguments: str) -> Terminal:
        env = environment(shared, TERM="xterm-256color", COLUMNS="100", LINES="40")
        opened.append(Terminal([*MORYFLOW, "chat", "--attach", *arguments], shared.vault, env))
        return opened[-1]

    yield begin
    for terminal in opened:
        terminal.close()


def alike(said: str) -> str:
    """Return what a conversation said, without what differs from one to the next."""
    return _UNLIKE.sub("…", said)


@pytest.mark.parametrize(
    ("answers", "lines"),
    [
        (
            ["Hello there.", "Once more."],
            [
                "hello",
                "/mode",
                "/label start",
                "/label",
                "/label --remove start",
                "/tree",
                "/cost",
                "/new",
                "again",
                "/nothing",
            ],
        ),
        (
            ["Hello there.", "Once more."],
            [
                "hello",
                "again",
                "/switch nowhere",
                "/switch",
                "/branch",
                "/tree",
                "/plugins",
                "/tools",
                "/agent",
                "/model",
                "/undo",
            ],
        ),
        (
            ["The plan.", "Built."],
            [
                "/plan how?",
                "build",
                "/agent nobody",
                "/mode ask",
                "/mode nowhere",
                "/mode full_access",
                "/compact",
                "/export /nowhere/a",
                "/cost",
            ],
        ),
        ([TASK, "The child.", "The end."], ["go", "/children", "/parent", "/cost", "/show", "/reply", "/stop", "/context"]),
    ],
)
def test_slash_commands_say_what_they_say_in_process(moryflow: Any, answers: list[Any], lines: list[str]) -> None:
    """Every command of ``chat`` works attached, and who reads it cannot tell where the turn ran."""
    while "pending" in moryflow("chat", answers=answers, input="/plugins\n").stderr:
        pass  # the home is new, and its plugin is still being tried out
    here = moryflow("chat", answers=answers, input="\n".join(lines) + "\n")
    there = moryflow("chat", "--attach", answers=answers, input="\n".join(lines) + "\n")
    assert alike(there.stderr).splitlines() == alike(here.stderr).splitlines()
    assert (there.stdout, there.returncode) == (here.stdout, here.returncode)
    assert here.returncode == ("/switch nowhere" in lines or "/agent nobody" in lines)


def test_a_conversation_goes_to_a_sub_agent_and_back(shared: Server, moryflow: Any) -> None:
    """A prompt there is answered by the sub-agent; `/parent` leads back."""
    moryflow("chat", "--attach", answers=[TASK, "The child.", "The end."], input="go\n")
    session = shared.get("/sessions?limit=1")[0]["id"]
    [kid] = shared.get(f"/sessions/{session}/tree")["children"]
    lines = f"/children {kid['session']}\nhello\n/parent\n/parent\n"
    found = moryflow("chat", "--attach", "-r", session, answers=["I am the child."], input=lines)
    assert found.stdout == "I am the child.\n", found.stderr
    assert f"session {kid['session']} · general · /parent leads back" in found.stderr
    assert "this session has no parent" in found.stderr
    prompts = [node["payload"]["text"] for node in shared.get(f"/sessions/{kid['session']}")["nodes"] if node["kind"] == "user"]
    assert prompts == ["look around", "hello"]


def test_every_command_is_listed(moryflow: Any) -> None:
    """``/help`` of an attached conversation is that of ``chat``."""
    here, there = (moryflow("chat", *flag, answers=[], input="/help\n").stderr for flag in ([], ["--attach"]))
    assert there == here
    assert "/export" in here


def test_a_conversation_is_exported(shared: Server, moryflow: Any) -> None:
    """As Markdown to read, and as JSON Lines without loss; the files are written by the client."""
    found = moryflow("chat", "--attach", answers=["Hello there."], input="hello\n/export a.md\n/export a.jsonl\n")
    assert found.stderr.count("written to ") == 2, found.stderr
    assert "## You\n\nhello\n\n## Agent\n\nHello there.\n" in (shared.vault / "a.md").read_text()
    first = json.loads((shared.vault / "a.jsonl").read_text().splitlines()[0])
    assert first["type"] == "session"


def test_a_session_is_picked_and_goes_on(at_terminal: Callable[..., Terminal], moryflow: Any, shared: Server) -> None:
    """``/sessions`` offers a list; the last exchanges of the one that is picked are shown."""
    moryflow("chat", "--attach", answers=["About pears."], input="tell me of pears\n")
    terminal = at_terminal("-m", script(shared, "About plums."))
    terminal.expect("attached")
    terminal.expect("\n>")
    terminal.type("/sessions\r")
    terminal.expect("sessions of this folder")
    terminal.type("pears")
    terminal.rest(0.5)
    terminal.type("\r")
    terminal.expect("> tell me of pears")
    terminal.expect("About pears.")
    terminal.type("/tree\r")
    terminal.expect("go on from")
    terminal.type("About")
    terminal.rest(0.5)
    terminal.type("\r")
    terminal.expect(" goes on from ")
    terminal.type("\x04")
    assert terminal.end() == 0


@pytest.mark.parametrize("attached", [False, True])
def test_a_model_is_picked(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, attached: bool) -> None:
    """``/model`` offers those worth naming, and typing narrows the list; leaving it changes nothing."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-loopback-test")
    server = start()
    env = environment(server, TERM="xterm-256color", COLUMNS="100", LINES="40")
    flag = ["--attach"] if attached else []
    terminal = Terminal([*MORYFLOW, "chat", *flag, "-m", script(server, "Hello.")], server.vault, env)
    try:
        terminal.expect("Ctrl-D")
        terminal.expect("\n>")
        for typed, said in (("\x1b", "script:"), ("gpt-4.1-mini\r", "openai/gpt-4.1-mini")):
            terminal.type("/model\r")
            terminal.expect("Enter picks")
            terminal.type(typed)
            terminal.expect("model:")
            terminal.expect(said)
        terminal.type("/quit\r")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_a_conversation_at_a_terminal_asks_and_stops(at_terminal: Callable[..., Terminal], shared: Server) -> None:
    """Its questions are answered where the person types; Ctrl-D ends it."""
    terminal = at_terminal("-m", script(shared, DANGER, "It is done."))
    terminal.expect("attached")
    terminal.expect("\n>")
    terminal.type("go\r")
    terminal.expect("[s]top")
    terminal.type("o\r")
    terminal.expect("It is done.")
    terminal.expect("tokens in")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_background_work_is_not_waited_for_and_asks_between_two_turns(
    at_terminal: Callable[..., Terminal], shared: Server
) -> None:
    """As in process: the turn ends with its agent, the question that comes later is answered with ``/reply``."""
    files = shared.home.parent / "files"
    for name in ("did", "behind", "behind.begun"):
        (files / name).unlink(missing_ok=True)
    waits = {"calls": [{"name": "hold", "arguments": {"name": "behind"}}]}
    helper = (
        f"---\nname: helper\ndescription: helps\nmode: subagent\nmodel: {script(shared, waits, DANGER, 'Did it.')}\n---\nHelp."
    )
    (shared.home / "agents").mkdir(exist_ok=True)
    (shared.home / "agents" / "helper.md").write_text(helper)
    terminal = at_terminal("-m", script(shared, BEHIND, "Started."))
    terminal.expect("attached")
    terminal.expect("\n>")
    terminal.type("go\r")
    terminal.expect("Started.")
    terminal.expect("tokens in")
    (files / "behind").touch()
    terminal.expect("danger wants to")
    terminal.expect("answer with")
    [question] = shared.get("/approvals?state=pending")
    terminal.type(f"/reply {question['id']} once\r")
    terminal.expect("has ended: completed")
    terminal.type("/children\r")
    terminal.expect("completed, 3 steps")
    terminal.type("\x1b")  # leaves the list
    terminal.rest(0.5)
    terminal.type("/stop\r")
    terminal.expect("0 stopped")
    terminal.type("/quit\r")
    assert terminal.end() == 0
    assert (files / "did").read_text() == "a thing"


def test_the_user_is_told_of_what_was_saved(start: Callable[..., Server]) -> None:
    """A reload is told between two turns."""
    server = start()
    env = environment(server, TERM="xterm-256color", COLUMNS="100", LINES="40")
    terminal = Terminal([*MORYFLOW, "chat", "--attach", "-m", script(server, DANGER, "It is done.")], server.vault, env)
    try:
        terminal.expect("attached")
        terminal.expect("\n>")
        terminal.type("go\r")
        terminal.expect("[s]top")
        terminal.type("o\r")
        terminal.expect("It is done.")
        terminal.expect("tokens in")
        (server.home / "agents").mkdir(exist_ok=True)
        (server.home / "agents" / "critic.md").write_text("---\nname: critic\ndescription: finds fault\n---\nFind fault.")
        terminal.expect("agent critic: added")
        terminal.type("/critic\r")
        terminal.expect("agent: critic")
        terminal.type("/quit\r")
        assert terminal.end() == 0
    finally:
        terminal.close()

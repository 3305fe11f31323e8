"""What a client may do wrong: broken lines, messages out of order, and going away in the middle of anything."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import Client, Place, choosing

HOLD = {"calls": [{"name": "hold", "arguments": {}}]}
DANGER = {"calls": [{"name": "danger", "arguments": {"what": "x"}}]}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"hello", -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method"', -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "initialize\xff"}', -32700),
        (b'{"jsonrpc": "2.0", "id": NaN, "method": "initialize"}', -32700),
        (b"[" * 100_000, -32700),
        (b"9" * 10_000, -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "initialize"}]', -32600),
        (b"7", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc": "1.0", "id": 7, "method": "initialize"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 7}', -32600),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 3}', -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": "initialize"}', -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "initialize"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "initialize"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "session/new", "params": []}', -32602),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "session/new", "params": "x"}', -32602),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "no/such"}', -32601),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "__class__"}', -32601),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "fs/read_text_file", "params": {"path": "/etc/passwd"}}', -32601),
        (b'{"jsonrpc": "2.0", "id": null, "method": "no/such"}', -32601),
        (b"x" * (11 << 20), -32600),
    ],
    ids=lambda value: repr(value[:60]) if isinstance(value, bytes) else str(value),
)
def test_a_line_that_is_no_message_is_answered_and_the_next_one_counts(client: Client, line: bytes, code: int) -> None:
    """Malformed input costs one answer (SECURITY 3, R27)."""
    client.write(line + b"\n")
    reply = client.until(lambda one: "error" in one)
    assert reply["error"]["code"] == code
    assert client.ask("session/list", {})["sessions"] is not None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   ",
        b"\r",
        b'{"jsonrpc": "2.0", "method": "no/such"}',
        b'{"jsonrpc": "2.0", "method": "session/cancel"}',
        b'{"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": ["x"]}}',
        b'{"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": {"a": 1}}}',
        b'{"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": "nobody"}}',
        b'{"jsonrpc": "2.0", "id": 99999, "result": {}}',
        b'{"jsonrpc": "2.0", "id": "x", "error": 3}',
        b'{"jsonrpc": "2.0", "id": null, "result": null}',
    ],
)
def test_what_needs_no_answer_gets_none(client: Client, line: bytes) -> None:
    """Notifications and stray answers are never answered (E.3)."""
    client.write(line + b"\n")
    client.ask("session/list", {})
    assert [one for one in client.seen if "error" in one] == []


def test_a_message_may_come_in_pieces_and_two_at_once(client: Client, vault: Path) -> None:
    """Where a read ends says nothing (E.3)."""
    request = b'{"jsonrpc": "2.0", "id": %d, "method": "session/list", "params": {"cwd": "%s"}}\r\n'
    data = request % (1, str(vault).encode()) + request % (2, str(vault).encode())
    client._methods |= {1: "session/list", 2: "session/list"}
    for place in range(0, len(data), 17):
        client.write(data[place : place + 17])
    assert [client.reply(number)["result"] for number in (1, 2)] == [{"sessions": []}] * 2


def test_half_characters_and_nul_come_through_as_something_every_client_reads(client: Client, vault: Path) -> None:
    """A lone surrogate is never sent, whoever wrote it (SECURITY 3)."""
    session = client.session(vault, {"text": "half \ud83d and \x00"}, "done")
    assert client.prompt(session, "half \ud800 \x00 /\udfff") == "end_turn"
    assert client.said() == "half ? and \x00"
    client.ask("session/load", {"sessionId": session, "cwd": str(vault), "mcpServers": []})
    json.dumps(client.seen, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"cwd": "", "mcpServers": []},
        {"cwd": ".", "mcpServers": []},
        {"cwd": 3, "mcpServers": []},
        {"cwd": "/no/such/folder", "mcpServers": []},
        {"cwd": "/etc/passwd", "mcpServers": []},
        {"cwd": "/tmp/\x00", "mcpServers": []},
        {"cwd": "/tmp", "additionalDirectories": ["/etc"], "mcpServers": []},
    ],
)
def test_a_session_is_in_one_folder_that_is_there(client: Client, params: Any) -> None:
    """A client cannot widen where a session works (R20)."""
    assert client.fail("session/new", params)["code"] == -32602


@pytest.mark.parametrize("name", ["", "nobody", "../x", 7, None, "%", "0"])
def test_an_unknown_session_is_not_found(client: Client, name: Any) -> None:
    """Whichever method names it; nothing is found by the beginning of an id (E.3)."""
    for method, more in (
        ("session/prompt", {"prompt": [{"type": "text", "text": "x"}]}),
        ("session/close", {}),
        ("session/set_mode", {"modeId": "agent"}),
        ("session/set_config_option", {"configId": "mode", "value": "agent"}),
        ("session/load", {"cwd": "/tmp", "mcpServers": []}),
        ("session/resume", {"cwd": "/tmp"}),
    ):
        assert client.fail(method, {"sessionId": name, **more})["code"] in (-32002, -32602)


def test_a_file_outside_is_asked_about_whatever_the_editor_attaches(client: Client, vault: Path) -> None:
    """A link in a prompt opens nothing: the model reads it through the gates, or not at all (R20)."""
    outside = vault.parent / "outside.txt"
    outside.write_text("secret")
    session = client.session(vault, {"calls": [{"name": "read", "arguments": {"path": str(outside)}}]}, "done")
    client.answer = choosing("reject_once")
    link = {"type": "resource_link", "name": "o", "uri": f"file://{outside}"}
    client.ask("session/prompt", {"sessionId": session, "prompt": [link]})
    assert len(client.asked) == 1
    assert "secret" not in json.dumps(client.seen)


def test_nothing_begins_before_initialize(place: Place) -> None:
    """What was not agreed on is not done (E.3)."""
    client = place.start("hello")
    assert client.fail("session/new", {"cwd": str(place.vault), "mcpServers": []})["code"] == -32600
    assert client.fail("initialize", {})["code"] == -32602
    assert client.fail("initialize", {"protocolVersion": "1"})["code"] == -32602
    assert client.ask("initialize", {"protocolVersion": 99, "clientCapabilities": 3})["protocolVersion"] == 1
    client.new(place.vault)


def test_cancel_that_comes_with_the_prompt_stops_it(client: Client, vault: Path) -> None:
    """A cancel right behind a prompt is not lost, and one without a turn does nothing to the next (E.3)."""
    session = client.session(vault, "one")
    client.notify("session/cancel", {"sessionId": session})
    head = {"jsonrpc": "2.0", "id": 5, "method": "session/prompt"}
    prompt = {**head, "params": {"sessionId": session, "prompt": [{"type": "text", "text": "x"}]}}
    cancel = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}
    client._methods[5] = "session/prompt"
    client.write(json.dumps(prompt).encode() + b"\n" + json.dumps(cancel).encode() + b"\n")
    assert client.reply(5)["result"]["stopReason"] == "cancelled"
    assert (client.prompt(session), client.said()) == ("end_turn", "one")


def test_a_request_can_be_cancelled_by_its_id(client: Client, vault: Path) -> None:
    """``$/cancel_request`` of a prompt is a cancel of its session (E.3)."""
    session = client.session(vault, HOLD, "after")
    prompt = client.send_prompt(session)
    client.until(lambda one: "in_progress" in json.dumps(one))
    client.notify("$/cancel_request", {"requestId": prompt})
    assert client.reply(prompt)["result"]["stopReason"] == "cancelled"


def test_two_requests_of_one_id_are_told_apart(client: Client, vault: Path) -> None:
    """An id that is being worked on cannot be used again (E.3)."""
    session = client.session(vault, HOLD, "after")
    prompt = client.send_prompt(session)
    client.until(lambda one: "in_progress" in json.dumps(one))
    client.write(b'{"jsonrpc": "2.0", "id": %d, "method": "session/list"}\n' % prompt)
    assert client.until(lambda one: "error" in one)["error"]["code"] == -32600
    client.notify("session/cancel", {"sessionId": session})
    assert client.reply(prompt)["result"]["stopReason"] == "cancelled"


def test_closing_a_session_that_works_stops_it(client: Client, vault: Path) -> None:
    """``session/close`` cancels what runs, and the prompt is answered (E.3)."""
    session = client.session(vault, HOLD, "after")
    prompt = client.send_prompt(session)
    client.until(lambda one: "in_progress" in json.dumps(one))
    close = client.send("session/close", {"sessionId": session})
    assert client.reply(prompt)["result"]["stopReason"] == "cancelled"
    assert client.reply(close)["result"] == {}


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are looked for in /proc")
@pytest.mark.parametrize(
    ("way", "where"),
    [
        ("close", "in a call"),
        pytest.param("close", "in a question", marks=pytest.mark.slow),
        pytest.param("term", "in a call", marks=pytest.mark.slow),
        pytest.param("hup", "in a question", marks=pytest.mark.slow),
    ],
)
def test_a_client_that_dies_leaves_no_process_and_a_turn_that_goes_on_later(place: Place, way: str, where: str) -> None:
    """Whenever it goes: the process ends, the turn is interrupted, and the next client goes on with it (E.3)."""
    mark = f"1000.{abs(hash(str(place.vault)))}"
    shell = {"calls": [{"name": "bash", "arguments": {"command": f"touch begun; sleep {mark}"}}]}
    client, session = place.ready(shell)
    if where == "in a call":
        client.answer = choosing("allow_once")
        client.send_prompt(session)
        client.until(lambda one: "in_progress" in json.dumps(one))
        while not (place.vault / "begun").exists():
            time.sleep(0.01)
    else:
        client.answer = lambda _: None
        client.send_prompt(session)
        client.until(lambda one: one.get("method") == "session/request_permission")
    assert client.end() == 0 if way == "close" else client.kill({"term": signal.SIGTERM, "hup": signal.SIGHUP}[way]) == 0
    assert not [process for process in Path("/proc").glob("[0-9]*") if mark in command_of(process)]
    again = place.start("gone on with")
    again.begin()
    state = again.ask("session/load", {"sessionId": session, "cwd": str(place.vault), "mcpServers": []})
    assert state["modes"]["currentModeId"] == "agent"
    again.answer = choosing("allow_once")
    runs = json.loads(moryflow(place, "session", "show", session, "--json"))
    assert "interrupted" in json.dumps(runs)
    script = place.home.parent / "answers1.json"
    again.ask("session/set_config_option", {"sessionId": session, "configId": "model", "value": f"script:{script}"})
    assert again.prompt(session, "/continue") == "end_turn"
    assert again.said().endswith("gone on with")


@pytest.mark.slow
def test_a_client_that_does_not_read_is_given_up(place: Place) -> None:
    """What waits for a client is bounded (SECURITY 3)."""
    theirs, ours = socket.socketpair()
    script = place.home.parent / "long.json"
    script.write_text(json.dumps([{"text": "x" * 4_000_000}] * 40))
    with (place.home.parent / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "moryflow", "acp", "-m", f"script:{script}"],
            stdin=ours.fileno(), stdout=ours.fileno(), stderr=errors, env={**os.environ, "MORYFLOW_HOME": str(place.home)},
        )  # fmt: skip
    ours.close()
    with theirs, theirs.makefile("rb") as answers:
        theirs.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}\n')
        answers.readline()
        new = {"cwd": str(place.vault), "mcpServers": []}
        theirs.sendall(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": new}).encode() + b"\n")
        session = json.loads(answers.readline())["result"]["sessionId"]
        for number in range(3, 60):
            prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "More."}]}
            head = {"jsonrpc": "2.0", "id": number, "method": "session/prompt", "params": prompt}
            try:
                theirs.sendall(json.dumps(head).encode() + b"\n")
            except OSError:
                break
            if process.poll() is not None:
                break
            load = {"sessionId": session, "cwd": str(place.vault), "mcpServers": []}
            theirs.sendall(
                json.dumps({"jsonrpc": "2.0", "id": f"l{number}", "method": "session/load", "params": load}).encode() + b"\n"
            )
        theirs.shutdown(socket.SHUT_WR)
        assert process.wait(60) == 0


def test_a_tool_cannot_be_its_own_editor(place: Place) -> None:
    """Inside a tool ``moryflow acp`` is refused in every mode: it would answer its own questions (R38)."""
    done = subprocess.run(
        [sys.executable, "-m", "moryflow", "acp"],
        env={**os.environ, "MORYFLOW_HOME": str(place.home), "MORYFLOW_CALL": "1"},
        input=b"", capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"a tool" in done.stderr


def command_of(process: Path) -> str:
    """Return the command of a process, where it is still there."""
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def moryflow(place: Place, *words: str) -> bytes:
    """Run a command in the home of `place` and return what it printed."""
    command = [sys.executable, "-m", "moryflow", *words]
    return subprocess.run(command, env={**os.environ, "MORYFLOW_HOME": str(place.home)}, capture_output=True, check=True).stdout

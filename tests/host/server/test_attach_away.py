"""An attached client whose server goes away in the middle of something (D, part 1 and 3)."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from moryflow.attach.turn import AttachedTurn, TurnOrder
from moryflow.attach.wire import NoServer
from moryflow.attach.wire import RunningServer as Wire
from moryflow.cli.terminal.spinner import Awaited
from moryflow_sdk import Event

from ..cli.conftest import Terminal  # noqa: TID252
from .conftest import MORYFLOW, PATIENCE, Server
from .test_attach import environment, script

HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], Wire]]:
    """Begin a server that gives each request these bytes and closes the connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def begin(data: bytes) -> Wire:
        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    connection.sendall(data)

        threading.Thread(target=answer, daemon=True).start()
        return Wire("/nowhere", f"http://127.0.0.1:{listening.getsockname()[1]}", "token")

    yield begin
    listening.close()


@pytest.mark.parametrize(
    "cut",
    [
        b"",
        HEAD,
        HEAD + b"content-length: 20\r\n\r\n{",
        HEAD + b"transfer-encoding: chunked\r\n\r\n4\r\n{}\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nff\r\n{}",
    ],
)
def test_half_an_answer_is_none(answering: Callable[[bytes], Wire], cut: bytes) -> None:
    """An export that was cut short must not be taken for a whole one, nor half a document for that of another program."""
    with pytest.raises(ConnectionResetError):
        answering(cut).read("/sessions/1/export")


def test_half_a_document_is_a_broken_connection(answering: Callable[[bytes], Wire]) -> None:
    """It is not an answer of some other program."""
    with pytest.raises(ConnectionResetError):
        answering(HEAD + b'content-length: 20\r\n\r\n{"turn"').ask("POST", "/sessions/1/prompt", {})


def test_pieces_are_put_together(answering: Callable[[bytes], Wire]) -> None:
    """A body of unknown length comes in pieces."""
    data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nab\r\n\r\n1\r\nc\r\n0\r\n\r\n"
    assert answering(data).read("/sessions/1/export") == b"ab\r\nc"


@pytest.mark.parametrize("cut", [b"id: ", b'id: 12\ndata: {"type": "text.del', b'id: 12\ndata: {"type": "x"}'])
def test_half_an_event_ends_the_stream(answering: Callable[[bytes], Wire], cut: bytes) -> None:
    """The next connection begins after the last whole event."""
    whole = b'id: 3\ndata: {"type": "open"}\n\n'
    assert list(answering(HEAD + b"\r\n" + whole + cut).events("1", None)) == [(3, {"type": "open"})]


@pytest.fixture
def away(start: Callable[..., Server]) -> Server:
    """A server that was killed."""
    server = start()
    server.process.kill()
    server.process.wait()
    return server


def _turn(server: Server) -> AttachedTurn:
    wire = Wire(str(server.home), server.said["url"], "token")
    return AttachedTurn(wire, "1", TurnOrder(folder=str(server.vault), text="go"))


def test_a_prompt_that_nobody_took_is_no_turn(away: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error, and not a turn that was interrupted and can be continued."""
    monkeypatch.setattr("moryflow.attach.turn.PAUSES", (0.01, 0.01))
    with pytest.raises(NoServer, match="did not say that it has the prompt"):
        list(_turn(away).events())


def test_an_answer_that_came_whole_is_not_given_again(shared: Server) -> None:
    """The server was elsewhere when the prompt was sent: nothing of the answer was missed."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        wire = Wire(str(shared.home), f"http://127.0.0.1:{closed.getsockname()[1]}", shared.token)
    turn = AttachedTurn(wire, shared.session("One."), TurnOrder(folder=str(shared.vault), text="go"))
    list(turn.events())
    assert (turn.result["text"], turn.broken > 0, turn.missed) == ("One.", True, False)
    assert turn.server.url == shared.said["url"]


def test_a_call_of_a_turn_that_was_cut_off_is_not_awaited_in_the_next() -> None:
    """Its result never comes."""
    awaited = Awaited()
    awaited.note(Event(type="tool.start", session="1", data={"call_id": "1", "tool": "hold", "args": {}, "state": "running"}))
    assert "hold" in awaited.line()
    awaited.forget()
    awaited.note(Event(type="turn.start", session="1"))
    assert awaited.line().endswith("waiting for the model")


def test_a_server_that_is_away_is_not_waited_for_when_the_turn_is_stopped(
    away: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the wait."""
    monkeypatch.setattr("moryflow.attach.turn.PAUSES", (PATIENCE * 2,))
    turn, told = _turn(away), list[Any]()

    def follow() -> None:
        try:
            list(turn.events())
        except NoServer as error:
            told.append(error)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    time.sleep(0.2)
    turn.stop()
    follower.join(PATIENCE)
    assert told


def test_a_conversation_finds_the_server_that_was_started_anew_elsewhere(start: Callable[..., Server]) -> None:
    """Its slash commands work at once, without a turn that looks for the server first."""
    server = start()
    env = environment(server, TERM="xterm-256color", COLUMNS="100", LINES="40")
    terminal = Terminal([*MORYFLOW, "chat", "--attach", "-m", script(server, "One.")], server.vault, env)
    try:
        terminal.expect("attached")
        terminal.expect("\n>")
        server.process.kill()
        server.process.wait()
        assert start().said["url"] != server.said["url"]
        terminal.type("/tools\r")
        terminal.expect("danger")
    finally:
        terminal.close()


def test_a_silent_server_does_not_keep_a_conversation_from_ending(shared: Server) -> None:
    """Ctrl-C gives up what was asked, and the program does not wait for the answer at its end."""
    env = environment(shared, TERM="xterm-256color", COLUMNS="100", LINES="40")
    terminal = Terminal([*MORYFLOW, "chat", "--attach", "-m", script(shared, "One.")], shared.vault, env)
    try:
        terminal.expect("attached")
        terminal.expect("\n>")
        shared.process.send_signal(signal.SIGSTOP)
        terminal.type("/tools\r")
        terminal.expect("/tools")
        terminal.rest(1.0)
        terminal.interrupt()
        terminal.expect("stopped", 20)
        terminal.expect("\n>", 20)
        terminal.type("\x04")
        terminal.end(within=30)
    finally:
        shared.process.send_signal(signal.SIGCONT)
        terminal.close()


LISTENING = """
import os, socket
if os.geteuid() == 0: os.setuid(65534)
listening = socket.{socket}
print(listening.getsockname(), flush=True)
print(listening.accept()[0].recv(65536), flush=True)
"""


@pytest.mark.parametrize(
    "place", ["create_server(('127.0.0.1', 0))", "create_server(('::', 0), family=10, dualstack_ipv6=True)"]
)
def test_another_user_who_listens_in_the_place_of_a_server_is_not_given_its_token(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody keeps the port of a server that was killed or is started anew (R39)."""
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 12345678)
    listening = [sys.executable, "-c", LISTENING.format(socket=place)]
    with subprocess.Popen(listening, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        port = ast.literal_eval(other.stdout.readline())[1]
        with pytest.raises(NoServer, match=r"belongs to another user \(uid \d+\) and is not given the token"):
            Wire("/nowhere", f"http://127.0.0.1:{port}", "token").ask("GET", "/health")
        assert other.stdout.readline() == "b''\n"

"""An attached client whose server goes away in the middle of something (D, part 1 and 3)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable

import pytest
from moryflow.cli.attached import AttachedServer as Attached
from moryflow.cli.attached import AttachedSession
from moryflow.cli.terminal.spinner import Awaited
from moryflow_sdk import Event, MoryflowError
from moryflow_sdk.client import Client, ServerUrl

from ..cli.conftest import Terminal  # noqa: TID252
from .conftest import MORYFLOW, PATIENCE, Server
from .test_attach import HOLD, environment, script, until


@pytest.fixture
def away(start: Callable[..., Server]) -> Server:
    """A server that was killed."""
    server = start()
    server.process.kill()
    server.process.wait()
    return server


def _session(server: Server) -> AttachedSession:
    client = Client(ServerUrl.of(server.said["url"]), "token")
    return AttachedSession(Attached(client, {"home": str(server.home)}, client.url), {"id": "1"})


def test_a_prompt_that_nobody_took_is_no_turn(away: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error, and not a turn that was interrupted and can be continued."""
    monkeypatch.setattr("moryflow_sdk.client.PAUSES", (0.01, 0.01))

    async def work() -> None:
        await _session(away).run("go", {})

    with pytest.raises(MoryflowError, match="did not say that it has the prompt"):
        asyncio.run(work())


def test_a_call_of_a_turn_that_was_cut_off_is_not_awaited_in_the_next() -> None:
    """Its result never comes."""
    awaited = Awaited()
    awaited.note(Event(type="tool.start", session="1", data={"call_id": "1", "tool": "hold", "args": {}, "state": "running"}))
    assert "hold" in awaited.line()
    awaited.forget()
    awaited.note(Event(type="turn.start", session="1"))
    assert awaited.line().endswith("waiting for the model")


def test_a_server_that_is_away_is_not_waited_for_when_the_turn_is_stopped(start: Callable[..., Server]) -> None:
    """Ctrl-C ends the wait."""
    server = start()
    begun = server.home.parent / "files" / "go.begun"
    command = [*MORYFLOW, "run", "--attach", "go", "--json", "-m", script(server, HOLD, "Never.")]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=server.vault, env=environment(server), text=True, **streams) as process:
        until(begun.exists)
        server.process.kill()
        server.process.wait()
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=PATIENCE)
    assert (json.loads(printed)["end_reason"], process.returncode) == ("interrupted", 130)


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

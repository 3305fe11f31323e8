"""MCP servers that an editor names: asked about, started after a yes to what was shown, offered after a second one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import PATIENCE, Client, Place, choosing

pytest.importorskip("mcp", reason="the extra mcp is not installed")
SERVER = str(Path(__file__).parents[2] / "builtins" / "mcp" / "nasty_server.py")


def named(started: Path, **more: Any) -> dict[str, Any]:
    """A server as editors name it."""
    variables = [{"name": "EDITOR_TOKEN", "value": "s3cret"}]
    return {"name": "good", "command": sys.executable, "args": [SERVER, "good", str(started)], "env": variables, **more}


def opened(client: Client, vault: Path, *servers: Any) -> str:
    return str(client.ask("session/new", {"cwd": str(vault), "mcpServers": list(servers)})["sessionId"])


def noticed(client: Client, session: str, text: str) -> None:
    """Have what waits to be said shown, with a prompt, and wait for `text`."""
    client.send_prompt(session)
    client.until(lambda one: text in json.dumps(one, ensure_ascii=False))


def questions(client: Client) -> list[dict[str, Any]]:
    return [one["params"] for one in client.seen if one.get("method") == "session/request_permission"]


def test_a_server_is_started_and_offered_after_two_answers(place: Place, tmp_path: Path) -> None:
    """The questions show what runs and every tool, and no value of a variable; then its tools are there (R18)."""
    started = tmp_path / "started"
    client = place.start({"calls": [{"name": "mcp__good__echo", "arguments": {"text": "hi"}}]}, "done", "again")
    client.begin()
    client.answer = choosing("allow_once")
    session = opened(client, place.vault, named(started))
    while len(questions(client)) < 2:
        client.next()
    first, second = (json.dumps(one, ensure_ascii=False) for one in questions(client))
    assert SERVER in first and "EDITOR_TOKEN, as configured" in first and "s3cret" not in first
    assert "Say it" in second and "Offer these tools?" in second
    config, ending = place.home / "config.jsonc", time.monotonic() + PATIENCE
    while not (config.exists() and "good" in config.read_text()) and time.monotonic() < ending:
        time.sleep(0.01)
    assert client.prompt(session) == "end_turn"
    assert any("hi" in json.dumps(one) for one in client.updates("tool_call_update"))
    before = len(questions(client))
    opened(client, place.vault, named(started))
    assert client.prompt(session) == "end_turn" and len(questions(client)) == before


def test_an_entry_that_is_none_does_not_keep_the_others_from_being_asked_about(
    client: Client, vault: Path, tmp_path: Path
) -> None:
    client.answer = choosing("reject_once")
    session = opened(client, vault, named(tmp_path / "a", name="odd", env=5), named(tmp_path / "b"))
    client.until(lambda one: one.get("method") == "session/request_permission")
    noticed(client, session, "the MCP server odd is left out")
    assert [one["toolCall"]["title"] for one in questions(client)] == ["Start the MCP server good"]


def _cancelled(_: dict[str, Any]) -> Any:
    return {"outcome": {"outcome": "cancelled"}}


def _forged(request: dict[str, Any]) -> Any:
    return {"outcome": {"outcome": "selected", "optionId": "allow_once:" + "0" * 32}}


@pytest.mark.parametrize("answer", [choosing("reject_once"), choosing("reject_always"), _cancelled, _forged])
def test_without_a_yes_nothing_runs_and_the_command_is_named(
    client: Client, vault: Path, tmp_path: Path, answer: Callable[[dict[str, Any]], Any]
) -> None:
    """Only the option that was offered for the text that was shown is a yes (R18, S0.38)."""
    started = tmp_path / "started"
    client.answer = answer
    session = opened(client, vault, named(started))
    client.until(lambda one: one.get("method") == "session/request_permission")
    opened(client, vault)  # an answer that came before this one has been taken
    noticed(client, session, "mcp add good --")
    assert not started.exists()


def test_what_is_never_to_be_asked_again_is_not(client: Client, vault: Path, tmp_path: Path) -> None:
    client.answer = choosing("reject_always")
    opened(client, vault, named(tmp_path / "started"))
    client.until(lambda one: one.get("method") == "session/request_permission")
    opened(client, vault)
    opened(client, vault, named(tmp_path / "started"))
    opened(client, vault)
    assert len(questions(client)) == 1


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"name": "bad name", "command": "x", "args": [], "env": []}, "a name has 1 to 64 letters"),
        ({"name": "x", "command": "x", "args": ["${HOME}"], "env": []}, "it names a variable of your environment"),
        ({"name": "x", "type": "http", "url": "https://x.example/${TOKEN}", "headers": []}, "it names a variable"),
        ({"name": "x", "type": "sse", "url": "https://x.example/", "headers": []}, "mcp add x --url"),
    ],
)
def test_what_cannot_be_asked_about_is_left_out_and_named(client: Client, vault: Path, server: Any, said: str) -> None:
    """An editor may have the entry from a folder that somebody else wrote: it chooses no variable of the person's (R13)."""
    session = opened(client, vault, server)
    opened(client, vault)
    noticed(client, session, said)
    assert questions(client) == []

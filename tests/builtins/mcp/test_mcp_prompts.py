"""Prompts of a server are slash commands, and foreign text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from moryflow_builtins.mcp.prompts import arguments_in
from moryflow_sdk import ConfigError, MoryflowError

from .conftest import Servers, settings_of

PROMPT: dict[str, Any] = {"name": "greet", "arguments": [{"name": "who", "required": True}, {"name": "tone"}]}


@pytest.fixture
def shelf(servers: Servers, tmp_path: Path) -> Servers:
    """A host with a server that has a prompt."""
    servers.review({"shelf": settings_of("shelf", str(tmp_path / "started"))})
    return servers


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("Ada", {"who": "Ada"}),
        ("Ada very  kind ", {"who": "Ada", "tone": "very  kind"}),
    ],
)
def test_arguments_are_words_in_their_order(typed: str, expected: dict[str, str]) -> None:
    assert arguments_in(typed, "shelf", PROMPT) == expected


def test_a_missing_argument_is_named_with_the_usage() -> None:
    with pytest.raises(ConfigError, match="needs who") as raised:
        arguments_in("", "shelf", PROMPT)
    assert raised.value.next_step == "/shelf:greet WHO [TONE]"


def test_a_prompt_is_a_slash_command_whose_text_is_marked_as_foreign(shelf: Servers) -> None:
    """What the server wrote cannot close its own mark, and none of it counts as typed (S2.12)."""
    result = shelf.slash("/shelf:greet Ada kind")
    assert result.foreign and "Say hello to Ada (kind)" in result.prompt
    assert result.prompt.count("</mcp_prompt>") == 1 and '<mcp_prompt server="shelf" name="greet">' in result.prompt


def test_a_prompt_that_nobody_reviewed_is_no_command(shelf: Servers) -> None:
    """As for tools: only what was shown is offered (S0.38)."""
    shelf.configure({"mcp": {"servers": {"shelf": settings_of("shelf", env={"A": "b"})}}})
    assert "shelf:greet" not in shelf.host.plugin_set.commands


def test_a_prompt_that_changed_is_not_run_and_waits_for_a_review(shelf: Servers, tmp_path: Path) -> None:
    (tmp_path / "started.changed").touch()
    with pytest.raises(MoryflowError, match="not what you have reviewed"):
        shelf.slash("/shelf:greet Ada")
    assert shelf.lock()["shelf"]["withheld"] == {"/greet": "changed"}


def test_what_a_server_wrote_reads_nothing_and_starts_nobody(shelf: Servers) -> None:
    """A prompt of a server that names files or agents makes no call: the person did not type it."""
    prompt = shelf.slash("/shelf:greet Ada").prompt
    shelf.run("hi", ["done", "done"], session=(session := shelf.session()))
    shelf.wait(session.prompt(f"@general {prompt} @general", typed=0))
    assert not [event for event in shelf.events if event.type == "tool.start"]


def test_a_prompt_that_is_too_large_is_withheld_and_not_kept(shelf: Servers) -> None:
    """The pins are read at every start; a server may not make that take long."""
    (large,) = shelf.lock()["shelf"]["prompts"][1:]
    assert large == {"name": "large", "problem": "it is too large"}
    assert "shelf:large" not in shelf.command("mcp", "show", "shelf")
    assert "they were accepted" in shelf.command("mcp", "test", "shelf")


def test_the_command_line_shows_prompts(shelf: Servers) -> None:
    assert "/shelf:greet WHO [TONE]" in shelf.command("mcp", "show", "shelf")

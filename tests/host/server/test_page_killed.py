"""The page when its server is killed in the middle of a turn (issue D, part 2)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Server, expect, say


@pytest.mark.slow
def test_a_server_that_hangs_is_noticed(start: Callable[..., Server], tab: Callable[..., Any]) -> None:
    """It holds the connection and says nothing, not even that it lives; what is typed is kept, and sent when it goes on."""
    server = start()
    page = tab(server, server.session("One."))
    server.process.send_signal(signal.SIGSTOP)
    page.locator(".offline").wait_for()
    say(page, "meanwhile")
    server.process.send_signal(signal.SIGCONT)
    page.locator(".markdown", has_text="One.").wait_for()
    expect(page.locator(".offline")).to_have_count(0)


def test_a_turn_of_a_killed_server_is_not_shown_as_running(start: Callable[..., Server], tab: Callable[..., Any]) -> None:
    """The next server knows that nothing runs: the card says so, and a prompt that waited is sent."""
    server = start()
    session = server.session({"calls": [{"name": "hold", "arguments": {}}]}, "One.")
    page = tab(server, session)
    say(page, "first")
    page.locator(".card.running").wait_for()
    say(page, "second")
    page.locator(".queue li", has_text="second").wait_for()
    server.end(signal.SIGKILL)
    page.locator(".offline").wait_for()
    (server.home.parent / "files" / "go").touch()
    start(port=server.port)
    page.locator("article.user", has_text="second").wait_for()
    page.locator(".card.running").wait_for(state="detached")
    expect(page.locator(".queue li")).to_have_count(0)

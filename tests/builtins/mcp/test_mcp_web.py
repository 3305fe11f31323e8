"""Servers by address: each protocol version, and those that behave badly, which cost the call and nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from moryflow_builtins.mcp.transports import JudgedTransport

from .conftest import Servers
from .web_server import WebServer

MODES = ("good", "changing", "silent", "dying", "redirect", "here", "limited", "unreadable", "sessions", "mixed")
SDK = str(Path(__file__).with_name("sdk_server.py"))


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servers, dict[str, Any], dict[str, WebServer]]]:
    """All of them on one host, reviewed in one go."""
    place = tmp_path_factory.mktemp("web")
    host = Servers(place / "home", place / "vault")
    webs = {mode: WebServer("redirect" if mode == "here" else mode) for mode in MODES}
    webs["sessions"].session = "first"
    webs["here"].location = f"{webs['good'].url}/elsewhere"
    entries = {mode: {"url": web.url, "timeout": 3 if mode == "silent" else 60} for mode, web in webs.items()}
    found = host.review(entries)
    yield host, found, webs
    host.close()
    for web in webs.values():
        web.close()


def test_a_redirect_elsewhere_is_not_followed(bad: tuple[Servers, dict[str, Any], dict[str, WebServer]]) -> None:
    """Not to a link-local address, nor to another server of this machine: what is sent is meant for the one that was shown."""
    _, found, webs = bad
    assert "Redirect to http://169.254.169.254/latest/meta-data not followed" in str(found["redirect"])
    assert f"Redirect to {webs['good'].url}/elsewhere not followed" in str(found["here"])
    assert "/latest/meta-data" not in webs["redirect"].paths()
    assert "/mcp/elsewhere" not in webs["good"].paths()


def test_a_list_that_changes_at_each_call_is_withheld(bad: tuple[Servers, Any, Any]) -> None:
    """A new connection is compared with the pin."""
    host, _, _ = bad
    result = host.call("changing", "echo", text="x").result
    assert (result.status, result.code) == ("error", "mcp_drift") and "changed: description" in result.output


def test_silence_ends_with_the_deadline(bad: tuple[Servers, Any, Any]) -> None:
    host, _, _ = bad
    result = host.call("silent", "echo", text="x").result
    assert result.status == "error" and "took longer than 3 s" in result.output
    assert host.call("good", "echo", text="still there").result.output == "still there"


def test_death_in_a_call_costs_the_call(bad: tuple[Servers, Any, dict[str, WebServer]]) -> None:
    """It is answered with an error, and the next call works when the server does again."""
    host, _, webs = bad
    assert host.call("dying", "echo", text="x").result.status == "error"
    webs["dying"].mode = "good"
    assert host.call("dying", "echo", text="back").result.output == "back"


def test_a_session_that_the_server_forgot_costs_one_call(bad: tuple[Servers, Any, dict[str, WebServer]]) -> None:
    """A server that was restarted knows no session of before; the next call opens a new one."""
    host, _, webs = bad
    assert host.call("sessions", "echo", text="hi").result.output == "hi"
    webs["sessions"].session = "second"
    assert "HTTP 404 Not Found" in host.call("sessions", "echo", text="x").result.output
    assert host.call("sessions", "echo", text="back").result.output == "back"


@pytest.mark.parametrize(
    ("mode", "why"), [("limited", "HTTP 429 Too Many Requests"), ("unreadable", "Failed to parse JSON response")]
)
def test_what_went_wrong_is_said_in_one_line(bad: tuple[Servers, Any, Any], mode: str, why: str) -> None:
    """With the status that the server answered with, and without a library's links (invariant 9)."""
    host, _, _ = bad
    result = host.call(mode, "echo", text="x").result
    assert result.status == "error" and why in result.output
    assert "\n" not in result.output and "http://" not in result.output and "https://" not in result.output


@pytest.mark.parametrize("text", ["wrong", "bad request"])
def test_an_error_of_the_server_itself_is_not_taken_for_its_end(bad: tuple[Servers, Any, Any], text: str) -> None:
    """Whatever status it is sent with; nothing is wrong with the server (invariant 9)."""
    host, _, _ = bad
    result = host.call("mixed", "echo", text=text).result
    assert (result.status, result.code, result.output) == ("error", "mcp_error", "no such text (code -32602)")


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ("http://10.1.2.3/mcp", "http://127.0.0.1:9/x"),
        ("http://10.1.2.3/mcp", "https://10.1.2.4/x"),
        ("http://127.0.0.1:9/mcp", "https://169.254.169.254/x"),
        ("http://127.0.0.1:9/mcp", "https://[fd00::1]/x"),
        ("http://127.0.0.1:9/mcp", "http://93.184.215.14/x"),
        ("http://127.0.0.1:9/mcp", "https://user@93.184.215.14/x"),
        ("http://127.0.0.1:9/mcp", "file:///etc/passwd"),
    ],
)
def test_what_a_server_names_is_judged_like_any_address(own: str, named: str) -> None:
    """Private and local addresses are the person's to name, not a server's; keys go over https (S0.37)."""
    with pytest.raises(httpx2.ConnectError, match=r"connections to .* are refused"):
        asyncio.run(JudgedTransport(own).check(httpx2.URL(named)))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servers, dict[str, Any]]]:
    """The SDK's server by address and on standard streams, and our own, which knows no newer protocol."""
    place = tmp_path_factory.mktemp("both")
    host = Servers(place / "home", place / "vault")
    web = WebServer()
    with subprocess.Popen([sys.executable, SDK, "http"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        entries = {
            "new": {"url": f"http://127.0.0.1:{port}/mcp"},
            "program": {"command": sys.executable, "args": [SDK]},
            "old": {"url": web.url},
        }
        yield host, host.review(entries)
        host.close()
        web.close()
        process.kill()


def test_both_protocols_are_spoken(both: tuple[Servers, dict[str, Any]]) -> None:
    """The newer one where a server has it, by address and on standard streams."""
    host, found = both
    spoken = {name: listing.server["protocol"] for name, listing in found.items()}
    assert spoken == {"new": "2026-07-28", "program": "2026-07-28", "old": "2025-11-25"}
    assert all(host.call(name, "echo", text=name).result.output == name for name in found)


@pytest.mark.parametrize("name", ["new", "program"])
def test_prompts_work_over_the_newer_protocol(both: tuple[Servers, Any], name: str) -> None:
    host, _ = both
    assert "Say hello to Ada." in host.slash(f"/{name}:greet Ada").prompt

"""Servers that behave badly: each costs the call, or itself, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moryflow_builtins.mcp.definitions import MAX_TOOLS
from moryflow_sdk import ConfigError

from .conftest import Servers, settings_of

MODES = (
    "good", "dying", "silent", "noise", "many", "big", "hidden", "changing", "structured", "twins", "parts", "old", "invalid",
    "endless",
)  # fmt: skip


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servers, dict[str, Any]]]:
    """All of them on one host, reviewed in one go."""
    place = tmp_path_factory.mktemp("nasty")
    host = Servers(place / "home", place / "vault")
    entries = {mode: settings_of(mode, timeout=3 if mode == "silent" else 60) for mode in MODES}
    found = host.review(entries, searchAbove=100_000_000)
    yield host, found
    host.close()


def test_good_one_answers_and_gets_only_its_own_variables(nasty: tuple[Servers, Any]) -> None:
    """A server does not see keys of the host (R31 and `env` by name)."""
    host, _ = nasty
    assert host.call("good", "echo", text="hi").result.output == "hi"
    variables = json.loads(host.call("good", "echo").result.output)
    assert "PATH" in variables and set(variables) <= {
        "PATH", "HOME", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "MORYFLOW_CALL",
    }  # fmt: skip


def test_death_in_a_call_costs_the_call(nasty: tuple[Servers, Any]) -> None:
    """The next call of another server works, and the dead one is started again for its own."""
    host, _ = nasty
    for _ in range(2):
        result = host.call("dying", "echo", text="x").result
        assert (result.status, result.code) == ("error", "mcp_gone") and result.output.startswith("it ended")
    assert host.call("good", "echo", text="still there").result.output == "still there"


def test_silence_ends_with_the_deadline(nasty: tuple[Servers, Any]) -> None:
    host, _ = nasty
    result = host.call("silent", "echo", text="x").result
    assert result.status == "error" and "took longer than 3 s" in result.output
    assert "moryflow config set mcp.servers.silent.timeout SECONDS" in result.output
    assert host.call("good", "echo", text="still there").result.output == "still there"


def test_noise_on_standard_output_is_passed_over(nasty: tuple[Servers, Any]) -> None:
    host, _ = nasty
    assert host.call("noise", "echo", text="hi").result.output == "hi"


def test_of_10000_tools_a_few_are_pinned_and_the_rest_counted(nasty: tuple[Servers, Any]) -> None:
    host, found = nasty
    assert len(found["many"].tools) == 256 and found["many"].beyond == 9_744
    assert sum(name.startswith("mcp__many__") for name in host.tools()) == 256


def test_a_list_without_an_end_is_read_as_far_as_tools_are_offered(nasty: tuple[Servers, Any]) -> None:
    """Each page names another; as many are asked for as there can be tools (R27)."""
    _, found = nasty
    assert len(found["endless"].tools) == MAX_TOOLS and found["endless"].beyond == 0


def test_a_description_of_5_mb_is_withheld_and_its_neighbour_is_not(nasty: tuple[Servers, Any]) -> None:
    host, _ = nasty
    assert [name for name in host.tools() if "__big__" in name] == ["mcp__big__small"]
    assert "longer than" in host.lock()["big"]["tools"][0]["problem"]
    assert (host.home / "mcp.lock").stat().st_size < 1_000_000


def test_invisible_characters_reach_no_model(nasty: tuple[Servers, Any]) -> None:
    """Zero-width and bidi characters of a description are left out; a name that has some is not a name."""
    host, _ = nasty
    assert sorted(name for name in host.tools() if "__hidden__" in name) == ["mcp__hidden__plain", "mcp__hidden__unseen"]
    assert host.host.tools["mcp__hidden__unseen"].tool.description == "Say it"


def test_a_list_that_changes_at_each_call_is_withheld(nasty: tuple[Servers, Any]) -> None:
    host, _ = nasty
    result = host.call("changing", "echo", text="x").result
    assert (result.status, result.code) == ("error", "mcp_drift") and "changed: description" in result.output
    assert host.lock()["changing"]["withheld"] == {"echo": "changed: description"}


def test_a_server_with_an_invalid_definition_is_refused_and_the_tool_is_named(nasty: tuple[Servers, Any]) -> None:
    """The SDK refuses its list; the message says which entry is wrong (invariant 9)."""
    _, found = nasty
    assert "tools.0.inputSchema" in str(found["invalid"])


def test_structured_output_is_held_against_its_schema(nasty: tuple[Servers, Any]) -> None:
    host, _ = nasty
    assert host.call("structured", "right").result.output == '{"n": 1}'
    assert host.call("structured", "wrong").result.code == "mcp_invalid_result"


def test_a_server_of_an_unknown_version_is_refused_for_that(nasty: tuple[Servers, Any]) -> None:
    """And not because its program has ended, which it did when it was refused."""
    _, found = nasty
    assert "1999-01-01" in str(found["old"]) and "it ended" not in str(found["old"])


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"command": "/dev/null"}, "Permission denied: /dev/null"),
        ({"command": "/nowhere/x"}, "there is no program /nowhere/x"),
    ],
)
def test_a_server_that_cannot_be_reached_is_named_with_the_next_step(servers: Servers, entry: dict[str, Any], why: str) -> None:
    """Without the names of exceptions."""
    servers.configure({"mcp": {"servers": {"gone": entry}}})
    tested = servers.command("mcp", "test", "gone")
    assert why in tested and "next: moryflow mcp show gone" in tested
    with pytest.raises(ConfigError, match=why) as raised:
        servers.command("mcp", "review", "gone")
    assert "Error:" not in str(raised.value) and raised.value.next_step == "moryflow mcp test gone"


def test_a_test_of_a_silent_server_gives_up(servers: Servers) -> None:
    """A test waits no longer for a server than a call, by the ``timeout`` of its entry (invariant 9)."""
    servers.configure({"mcp": {"servers": {"mute": {"command": "sleep", "args": ["100"], "timeout": 2}}}})
    tested = servers.command("mcp", "test", "mute")
    assert "mute: it did not answer within 2 s" in tested


def test_tools_of_one_name_are_withheld_and_their_neighbour_is_not(nasty: tuple[Servers, Any]) -> None:
    """Nobody could say which one is called."""
    host, _ = nasty
    assert [name for name in host.tools() if "__twins__" in name] == ["mcp__twins__other"]
    assert {tool.get("problem") for tool in host.lock()["twins"]["tools"]} == {
        "the server has several tools of this name",
        None,
    }


def test_of_1000_images_a_few_are_shown_and_kept(nasty: tuple[Servers, Any]) -> None:
    host, _ = nasty
    result = host.call("parts", "echo", text="x").result
    assert len(result.images) == 20 and result.output.count("stored as") == 180
    assert result.output.endswith("[801 more parts are left out]")


def test_no_process_is_left_when_the_host_has_gone(servers: Servers, tmp_path: Path) -> None:
    """Of a host that used servers, neither the helper nor a server stays."""
    started = tmp_path / "started"
    servers.review({"good": settings_of("good", str(started))})
    assert servers.call("good", "echo", text="hi").result.output == "hi"
    servers.wait(servers.host.aclose())
    pids = started.read_text().split()
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)

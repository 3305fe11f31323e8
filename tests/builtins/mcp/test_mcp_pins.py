"""What is offered is what was reviewed: the pin, what starts no server, drift, and the tools' names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_builtins.mcp.catalog import model_names
from moryflow_builtins.mcp.definitions import (
    FIELDS,
    differences,
    pinned_tool,
    schema_for_model,
    tool_hash,
)
from moryflow_builtins.mcp.review import Listing, listing_text, server_text
from moryflow_sdk import ConfigError
from moryflow_sdk.support.settings import ServerSettings
from moryflow_sdk.support.tool_schemas import RULES

from .conftest import Servers, settings_of

TOOL: dict[str, Any] = {
    "name": "echo",
    "description": "Say it",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    "annotations": {"readOnlyHint": True},
}
IDENTITY = {"command": "x", "name": "it", "version": "1"}


@pytest.mark.parametrize("field", FIELDS)
def test_hash_covers_everything_that_is_said_of_a_tool(field: str) -> None:
    """A change of any of them, and of the server, is drift (R18)."""
    assert tool_hash({**TOOL, field: "other"}, IDENTITY) != tool_hash(TOOL, IDENTITY)
    assert tool_hash(TOOL, {**IDENTITY, "version": "2"}) != tool_hash(TOOL, IDENTITY)
    assert tool_hash(dict(reversed(TOOL.items())), IDENTITY) == tool_hash(TOOL, IDENTITY)


WIDER = {"type": "object", "properties": {"text": {"type": "string"}, "path": {"type": "string"}}}
DRIFT: dict[str, tuple[list[dict[str, Any]], dict[str, str]]] = {
    "the same": ([TOOL], {}),
    "description": ([{**TOOL, "description": "Say it loud"}], {"echo": "changed: description"}),
    "wider schema": ([{**TOOL, "inputSchema": WIDER}], {"echo": "changed: inputSchema"}),
    "renamed": ([{**TOOL, "name": "say"}], {"say": "new", "echo": "the server has it no longer"}),
    "new": ([TOOL, {**TOOL, "name": "b", "description": "B"}], {"b": "new"}),
    "gone": ([], {"echo": "the server has it no longer"}),
    "hint": ([{**TOOL, "annotations": {}}], {"echo": "changed: annotations"}),
}


@pytest.mark.parametrize("case", DRIFT)
def test_drift_is_named(case: str) -> None:
    now, expected = DRIFT[case]
    pinned = {"echo": {**TOOL, "hash": tool_hash(TOOL, IDENTITY)}}
    assert differences(pinned, [{**each, "hash": tool_hash(each, IDENTITY)} for each in now]) == expected


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "a_b", "a.b", "x" * 60]), st.text("ab_.-/", min_size=1, max_size=128)), unique=True
    )
)
def test_names_for_a_model_are_valid_and_never_the_same(pairs: list[tuple[str, str]]) -> None:
    """No server takes the place of another's tool, or of a tool of the host: those have no such prefix."""
    names = model_names(pairs)
    assert len({name.casefold() for name in names.values()}) == len(pairs)
    assert all(
        name.startswith("mcp__") and len(name) <= 64 and name.replace("-", "_").isidentifier() for name in names.values()
    )


def test_schema_for_a_model_has_no_regular_expressions_and_keeps_an_argument_called_pattern() -> None:
    """A pattern that never ends would hang the host, which checks arguments; the server checks it itself."""
    schema = {"type": "object", "properties": {"pattern": {"type": "string", "pattern": "(a+)+$"}}, "anyOf": [], "$schema": "x"}
    assert schema_for_model(schema) == {"type": "object", "properties": {"pattern": {"type": "string"}}}


@pytest.mark.parametrize(
    "schema", [{"properties": {"a": {"$ref": "#/nowhere"}}}, {"properties": {"a b": {}}}, {"properties": 1}]
)
def test_arguments_that_cannot_be_used_are_found_at_the_review(schema: dict[str, Any]) -> None:
    """The pin says which checks they have passed, so that a start need not repeat them."""
    good, wrong = ({**TOOL, "inputSchema": {"type": "object", **more}, "hash": "x"} for more in ({}, schema))
    assert pinned_tool(good, "")["checked"] == RULES and "problem" not in pinned_tool(good, "")
    assert "the schema of its arguments cannot be used" in pinned_tool(wrong, "")["problem"]


def test_a_pin_of_other_checks_is_checked_at_the_start(servers: Servers) -> None:
    servers.review({"good": settings_of("good")})
    lock = json.loads((servers.home / "mcp.lock").read_text())
    for tool, checked in zip(lock["servers"]["good"]["tools"], (RULES, RULES - 1), strict=True):
        tool |= {"checked": checked, "parameters": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}}
    (servers.home / "mcp.lock").write_text(json.dumps(lock))
    assert servers.tools() == ["mcp__good__echo"]


def test_a_review_shows_every_word_that_a_model_reads_and_no_line_is_forged() -> None:
    """Also a title in place of a description, and what stands beside the arguments; names are one line each (R33)."""
    beside = {"description": "w2", "$defs": {"a": {"description": "w3"}}, "additionalProperties": {"description": "w4"}}
    schema = {"type": "object", "required": ["w5"], **beside}
    tools = [
        {"name": "titled", "title": "w1", "inputSchema": schema, "hash": "x"},
        {"name": "no\n  good\n    name", "inputSchema": schema, "hash": "x"},
    ]
    prompts = [{"name": "no\n  good"}]
    said = {"name": "web", "version": "1"}
    text = listing_text(Listing({"identity": {}, "server": said, "tools": tools, "prompts": prompts, "beyond": 0}))
    assert all(word in text for word in ("w1", "w2", "w3", "w4", "w5"))
    assert [line for line in text.splitlines() if line.strip().startswith(("good", "name"))] == []
    runs = server_text("x", ServerSettings(command="a", args=("-c\n  variables: none",)))
    assert len(runs.splitlines()) == 2


def test_a_server_that_nobody_reviewed_offers_nothing_and_is_not_started(servers: Servers, tmp_path: Path) -> None:
    """A new server is said, with the command (S0.38); no process runs before a call (R13)."""
    started = tmp_path / "started"
    servers.configure({"mcp": {"servers": {"good": settings_of("good", str(started))}}})
    assert servers.tools() == [] and not started.exists()
    record = next(record for record in servers.host.plugin_set.records if record.name == "mcp")
    assert "good: not reviewed yet" in record.error and "moryflow mcp review good" in record.error


def test_pinned_tools_are_offered_without_starting_anything(servers: Servers, tmp_path: Path) -> None:
    started = tmp_path / "started"
    servers.review({"good": settings_of("good", str(started))})
    before = started.read_text()
    result = servers.run("hello", ["hi"])
    assert result.end_reason == "completed" and "mcp__good__echo" in servers.tools()
    assert started.read_text() == before


def test_a_servers_tool_says_how_it_is_allowed_more_time(servers: Servers) -> None:
    """The command works as it stands; no command takes a name with a dot, so the entry is named instead (invariant 9)."""
    servers.review({"hub": settings_of("good"), "my.hub": settings_of("good")})
    said = {each.tool.source: each.tool.more_time for each in servers.host.tools.values()}
    assert said["mcp.servers.my.hub"] == (
        'to allow more time, set "timeout": SECONDS in the entry "my.hub" of mcp.servers in config.jsonc'
    )
    command = said["mcp.servers.hub"].removeprefix("to allow more time: ").replace("SECONDS", "90").split()
    environment = {**os.environ, "MORYFLOW_HOME": str(servers.home)}
    subprocess.run([sys.executable, "-m", *command, "--vault", str(servers.vault)], env=environment, check=True)
    assert json.loads((servers.home / "config.jsonc").read_text())["mcp"]["servers"]["hub"]["timeout"] == 90


def test_another_command_withholds_everything(servers: Servers) -> None:
    """Consent is bound to what was shown: command, arguments, variables (R18)."""
    servers.review({"good": settings_of("good")})
    servers.configure({"mcp": {"servers": {"good": settings_of("good", env={"A": "b"})}}})
    assert servers.tools() == []


def test_a_lock_that_others_can_write_offers_nothing(servers: Servers) -> None:
    servers.review({"good": settings_of("good")})
    (servers.home / "mcp.lock").chmod(0o666)
    assert servers.tools() == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 2}', '{"format": 1, "servers": {"good": {}}}', '{"format": 1, "servers": []}']
)
def test_a_broken_lock_offers_nothing_and_is_named(servers: Servers, text: str) -> None:
    from moryflow_builtins.mcp.lock import read_lock

    (servers.home / "mcp.lock").write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_lock(servers.home)


ODD: list[dict[str, Any]] = [
    {"prompts": [1]},
    {"prompts": [{"name": 1}]},
    {"prompts": [{"name": "x", "arguments": [1]}]},
    {"withheld": 5},
    {"withheld": {"echo": ""}},
    {"server": 5},
    {"identity": []},
    {"tools": [{**TOOL, "hash": "b", "tokens": "x"}]},
    {"tools": [{**TOOL, "hash": "b", "description": 5}]},
]


@pytest.mark.parametrize("odd", ODD)
def test_a_lock_that_was_edited_by_hand_is_named_and_the_command_stays(servers: Servers, odd: dict[str, Any]) -> None:
    """The command that repairs it is one of the plugin's own."""
    servers.review({"good": settings_of("good")})
    lock = json.loads((servers.home / "mcp.lock").read_text())
    lock["servers"]["good"] |= odd
    (servers.home / "mcp.lock").write_text(json.dumps(lock))
    assert servers.tools() == []
    with pytest.raises(ConfigError, match="it cannot be read, so no tool of a server is offered"):
        servers.command("mcp", "list")


def test_a_server_that_cannot_be_added_leaves_nothing(servers: Servers) -> None:
    """No entry that would be said to be new in every run; the same command works once it is mended."""
    environment = {**os.environ, "MORYFLOW_HOME": str(servers.home)}

    def add(*command: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "moryflow", "mcp", "add", "-y", "hub", "--", *command]
        return subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    done = add("/nonexistent/program")
    assert (done.returncode, "hub was not added: it cannot be connected to" in done.stderr) == (2, True)
    assert "mend the command" in done.stderr and not (servers.home / "config.jsonc").exists()
    good = settings_of("good")
    assert add(good["command"], *good["args"]).returncode == 0
    assert json.loads((servers.home / "config.jsonc").read_text())["mcp"]["servers"] == {"hub": good}
    assert "hub" in servers.lock()


def test_profile_remote_has_only_servers_with_an_address(servers: Servers) -> None:
    servers.review({"good": settings_of("good")})
    servers.configure({"profile": "remote"})
    assert servers.tools() == []


def test_drift_withholds_until_a_review(servers: Servers, tmp_path: Path) -> None:
    """The changed tool is not called, the others are; the note stays although the server changes back."""
    state = tmp_path / "tools.json"
    other = {**TOOL, "name": "other"}
    state.write_text(json.dumps([TOOL, other]))
    servers.review({"s": settings_of("state", str(state))})
    state.write_text(json.dumps([{**TOOL, "description": "Send it to me"}, other]))
    assert servers.call("s", "other", text="a").result.output == "a"
    result = servers.call("s", "echo", text="x").result
    assert (result.status, result.code) == ("error", "mcp_drift") and "moryflow mcp review s" in result.output
    assert servers.lock()["s"]["withheld"] == {"echo": "changed: description"}


def test_a_hint_lifts_no_question(servers: Servers) -> None:
    """`readOnlyHint` says nothing to the rules: a person's ask stays an ask."""
    servers.review({"good": settings_of("good")})
    rules = [{"domain": "mcp", "pattern": "mcp:good/*", "decision": "ask"}]
    servers.configure({"agents": {"runtime": {"permission": {"rules": rules}}}})
    assert servers.call("good", "read_only", text="x").result.status == "denied"

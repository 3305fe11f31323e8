"""Editors: one conversation over the Agent Client Protocol, method by method."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Client, Place, choosing, schema

PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
    )
).decode()
DANGER = {"calls": [{"name": "danger", "arguments": {"what": "x"}}]}


def test_every_message_is_held_against_the_official_schema() -> None:
    """The oracle is the schema that the protocol's own package brings; every test here compares with it (E.3)."""
    if not schema():
        pytest.skip("the schema of the protocol comes from npm, and npm is not here")
    assert {"InitializeResponse", "SessionNotification", "RequestPermissionRequest"} <= schema().keys()


def test_initialize_says_what_is_there_and_how_to_set_up_a_model(place: Place) -> None:
    """Capabilities are exactly what works; a terminal method is offered to clients that can run one (E.3)."""
    client = place.start("hello")
    assert client.begin()["authMethods"] == []
    found = client.begin(auth={"terminal": True})
    assert (found["protocolVersion"], found["agentInfo"]["name"]) == (1, "moryflow")
    assert found["agentCapabilities"]["sessionCapabilities"].keys() == {"list", "resume", "close"}
    [method] = found["authMethods"]
    assert (method["type"], method["args"]) == ("terminal", ["--setup"])
    assert client.ask("authenticate", {"methodId": method["id"]}) == {}
    assert client.fail("authenticate", {"methodId": "other"})["code"] == -32602


def test_a_server_that_the_editor_names_is_not_started_and_a_notice_says_so(place: Place, tmp_path: Path) -> None:
    """It runs only what a person has added and reviewed (R18). One with a name of the configuration needs no words."""
    (place.home / "config.jsonc").write_text(json.dumps({"mcp": {"servers": {"own": {"command": "true", "enabled": False}}}}))
    client = place.start("hello")
    client.begin()
    started = tmp_path / "started"
    of_editor = [{"name": name, "command": "touch", "args": [str(started)], "env": []} for name in ("own", "theirs")]
    session = client.ask("session/new", {"cwd": str(place.vault), "mcpServers": [*of_editor, 5]})["sessionId"]
    assert client.prompt(session) == "end_turn"
    assert "MCP servers of the editor are not used: theirs. Next: moryflow mcp add" in client.said()
    assert not started.exists() and client.asked == []


def test_without_a_model_a_session_asks_for_authentication(place: Place) -> None:
    """An editor offers the setup on -32000, and shows the sentence (E.3)."""
    client = place.start()
    client.begin()
    error = client.fail("session/new", {"cwd": str(place.vault), "mcpServers": []})
    assert error["code"] == -32000
    assert "moryflow model install" in error["message"]
    assert client.fail("authenticate", {"methodId": "setup"})["code"] == -32000


def test_a_prompt_streams_thoughts_and_text_usage_and_the_title(client: Client, vault: Path) -> None:
    """What the model says comes as it is said, and the session has its name and figures afterwards (E.3)."""
    session = client.session(vault, {"reasoning": "hm", "text": "two words", "usage": {"input": 10, "output": 5}})
    assert client.prompt(session, "Say two words") == "end_turn"
    assert client.said() == "two words"
    assert [one["content"]["text"] for one in client.updates("agent_thought_chunk")] == ["hm"]
    assert client.updates("usage_update")[-1]["used"] == 15
    assert client.updates("session_info_update")[-1]["title"] == "Say two words"
    names = {one["name"] for one in client.updates("available_commands_update")[-1]["availableCommands"]}
    assert {"undo", "compact", "continue"} <= names


def test_a_call_is_told_with_kind_place_difference_and_output(client: Client, vault: Path) -> None:
    """An editor follows along: what is read and changed, the whole texts of what changed, the output (E.3)."""
    (vault / "a.txt").write_text("one\ntwo\n")
    write = {"name": "write", "arguments": {"path": "b.txt", "content": "new\n"}}
    edit = {"name": "edit", "arguments": {"path": "a.txt", "old_string": "two", "new_string": "three"}}
    read = {"name": "read", "arguments": {"path": "a.txt", "offset": 2}}
    session = client.session(vault, {"calls": [read, edit, write]}, "done")
    assert client.prompt(session) == "end_turn"
    begun = {one["toolCallId"]: one["kind"] for one in client.updates("tool_call")}
    assert list(begun.values()) == ["read", "edit", "edit"]
    changes = {name: [one for one in client.updates("tool_call_update") if one["toolCallId"] == name] for name in begun}
    reading, editing, writing = changes.values()
    assert reading[0]["locations"] == [{"path": str(vault / "a.txt"), "line": 2}]
    assert "two" in reading[-1]["content"][0]["content"]["text"]
    a, b = str(vault / "a.txt"), str(vault / "b.txt")
    assert editing[-1]["content"] == [{"type": "diff", "path": a, "oldText": "one\ntwo\n", "newText": "one\nthree\n"}]
    assert writing[-1]["content"] == [{"type": "diff", "path": b, "newText": "new\n"}]
    assert {one[-1]["status"] for one in changes.values()} == {"completed"}


def test_what_is_attached_reaches_the_model_and_comes_back_with_load(client: Client, vault: Path) -> None:
    """Text, an image, a link and an embedded file; a name of a file is never taken for a person's words (E.3)."""
    session = client.session(vault, {"text": "seen", "reasoning": "hm", "calls": [{"name": "ls", "arguments": {}}]}, "done")
    link = {"type": "resource_link", "name": "b", "uri": f"file://{vault}/mb:write%20now.md"}
    embedded = {"type": "resource", "resource": {"uri": f"file://{vault}/c.py#L3-4", "text": "print()"}}
    blocks = [{"type": "text", "text": "see "}, link, {"type": "text", "text": " and "}, embedded]
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    assert client.ask("session/prompt", {"sessionId": session, "prompt": [*blocks, image]})["stopReason"] == "end_turn"
    client.ask("session/close", {"sessionId": session})
    client.seen.clear()
    loaded = client.ask("session/load", {"sessionId": session, "cwd": str(vault), "mcpServers": []})
    assert loaded["modes"]["currentModeId"] == "agent"
    said, shown = client.updates("user_message_chunk")
    assert said["content"]["text"] == "see [1] and [2]\n\n[1] mb:write now.md\n[2] c.py#L3-4 (attached)"
    assert shown["content"] == image
    kinds = [one["sessionUpdate"] for one in client.updates()]
    assert kinds[2:] == ["agent_thought_chunk", "agent_message_chunk", "tool_call", "agent_message_chunk"]
    assert client.updates("tool_call")[0]["status"] == "completed"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "audio", "data": "", "mimeType": "audio/wav"},
        {"type": "image", "data": "no base64!", "mimeType": "image/png"},
        {"type": "image", "data": PNG, "mimeType": "image/svg+xml"},
        {"type": "resource", "resource": {"uri": "file:///x", "blob": PNG, "mimeType": "application/pdf"}},
        {"type": "text"},
        7,
    ],
)
def test_a_block_that_is_not_understood_is_refused(client: Client, vault: Path, block: Any) -> None:
    """Nothing is silently left out of a prompt (E.3)."""
    session = client.session(vault)
    assert client.fail("session/prompt", {"sessionId": session, "prompt": [block]})["code"] == -32602


def test_sessions_are_listed_opened_and_closed(client: Client, vault: Path) -> None:
    """Those of a folder, the last used first; one that is closed takes no prompt until it is opened again (E.3)."""
    session = client.session(vault, "one", "two")
    client.prompt(session, "First")
    [found] = client.ask("session/list", {"cwd": str(vault)})["sessions"]
    assert (found["sessionId"], found["cwd"], found["title"]) == (session, str(vault), "First")
    assert client.ask("session/close", {"sessionId": session}) == {}
    assert client.fail("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "x"}]})["code"] == -32002
    client.seen.clear()
    client.ask("session/resume", {"sessionId": session, "cwd": str(vault)})
    assert client.updates("user_message_chunk") == []
    assert client.prompt(session, "Second") == "end_turn"
    elsewhere = client.fail("session/load", {"sessionId": session, "cwd": str(vault.parent), "mcpServers": []})
    assert (elsewhere["code"], str(vault) in elsewhere["message"]) == (-32602, True)


def test_a_long_list_of_sessions_comes_in_pages(client: Client, vault: Path) -> None:
    """A cursor leads to the rest (E.3)."""
    for _ in range(51):
        client.new(vault)
    first = client.ask("session/list", {"cwd": str(vault)})
    rest = client.ask("session/list", {"cwd": str(vault), "cursor": first["nextCursor"]})
    assert (len(first["sessions"]), len(rest["sessions"]), "nextCursor" in rest) == (50, 1, False)
    assert client.fail("session/list", {"cursor": "-1"})["code"] == -32602


def test_mode_model_and_agent_can_be_chosen(client: Client, vault: Path) -> None:
    """Modes and config options say the same, whichever of them an editor knows (E.3)."""
    session = client.session(vault)
    found = client.ask("session/set_config_option", {"sessionId": session, "configId": "agent", "value": "plan"})
    assert {one["id"]: one["currentValue"] for one in found["configOptions"]}["agent"] == "plan"
    assert client.ask("session/set_mode", {"sessionId": session, "modeId": "full_access"}) == {}
    assert client.asked[-1]["params"]["toolCall"]["kind"] == "switch_mode"
    assert client.updates("current_mode_update")[-1]["currentModeId"] == "full_access"
    last = client.updates("config_option_update")[-1]["configOptions"]
    assert {one["id"]: one["currentValue"] for one in last}["mode"] == "full_access"
    for option, value in (("agent", "nobody"), ("model", "nothing/here"), ("mode", "yolo"), ("colour", "red"), ("mode", True)):
        error = client.fail("session/set_config_option", {"sessionId": session, "configId": option, "value": value})
        assert error["code"] in (-32602, -32603), error


def test_full_access_that_is_not_confirmed_stays_off(client: Client, vault: Path) -> None:
    """Whatever is no clear yes is a no, also for a client that asks nobody (E.3)."""
    session = client.session(vault)
    for answer in (choosing("reject_once"), lambda _: {"outcome": {"outcome": "cancelled"}}, lambda _: {}, lambda _: 3):
        client.answer = answer
        error = client.fail("session/set_mode", {"sessionId": session, "modeId": "full_access"})
        assert error["data"]["code"] == "confirm_required"
    assert client.updates("current_mode_update") == []


def test_slash_commands_run_and_other_slashes_are_prompts(client: Client, vault: Path) -> None:
    """A plugin's command answers without the model; a path at the beginning is not a command (E.3)."""
    session = client.session(vault, "first", "a path")
    client.prompt(session, "Hello")
    client.seen.clear()
    assert client.prompt(session, "/undo") == "end_turn"
    assert "undo" in client.said() or "nothing" in client.said().lower()
    client.seen.clear()
    assert client.prompt(session, "/usr/bin is a path") == "end_turn"
    assert client.said() == "a path"
    assert "nothing" in client.fail("session/prompt", _prompt(session, "/continue"))["message"]


def test_no_line_with_a_slash_and_a_word_reaches_a_model(client: Client, vault: Path) -> None:
    """The commands that work everywhere do so here; what is none is said; full access is confirmed (D86, S0.68)."""
    session = client.session(vault)  # its model has no answer
    for line in ("/nonsense x", " /nonsense", "/mode nowhere", "/模式"):
        assert "there is no" in client.fail("session/prompt", _prompt(session, line))["message"]
    for line, said in (
        ("/mode agent", "mode: agent"),
        ("/help", "/compact"),
        ("/agent plan", "agent: plan"),
        ("/model", "script:"),
    ):
        client.seen.clear()
        assert client.prompt(session, line) == "end_turn"
        assert said in client.said()
    client.answer = lambda _: {"outcome": {"outcome": "cancelled"}}
    assert "not confirmed" in client.fail("session/prompt", _prompt(session, "/mode full_access"))["message"]


def test_several_sessions_work_at_once(shared: tuple[Place, Client], client: Client, vault: Path) -> None:
    """One session that waits keeps no other from its turn; a second prompt to it is refused as busy (E.3)."""
    held = client.session(vault, {"calls": [{"name": "hold", "arguments": {"name": "several"}}]}, "let go")
    other = client.session(vault, "quick")
    waiting = client.send_prompt(held)
    client.until(lambda one: _is(one, "tool_call_update"))
    error = client.fail("session/prompt", _prompt(held, "again"))
    assert (error["code"], error["data"]["code"]) == (-32600, "busy")
    busy = client.fail("session/load", {"sessionId": held, "cwd": str(vault), "mcpServers": []})
    assert busy["data"]["code"] == "busy"
    assert client.prompt(other) == "end_turn"
    (shared[0].files / "several").touch()
    assert client.reply(waiting)["result"]["stopReason"] == "end_turn"


def test_a_failing_model_is_an_error_with_a_sentence(client: Client, vault: Path) -> None:
    """An editor shows the sentence; the session goes on (E.3)."""
    session = client.session(vault, {"error": {"code": "auth", "message": "the key was refused"}}, "better")
    error = client.fail("session/prompt", _prompt(session))
    assert (error["code"], "the key was refused" in error["message"]) == (-32603, True)
    assert client.prompt(session) == "end_turn"


def test_a_turn_that_goes_in_circles_says_why_as_a_command_does(client: Client, vault: Path) -> None:
    """The reason stands in the sentence without the words that the model got around it (E.3)."""
    client.answer = choosing("reject_once")
    session = client.session(vault, *[{"calls": [{"name": "read", "arguments": {"path": "missing.md"}}]}] * 9)
    client.prompt(session)
    assert "*the turn ended: doom_loop (the agent goes in circles: read was called " in client.said()


def test_a_cut_answer_says_max_tokens(client: Client, vault: Path) -> None:
    """The reason that an editor is told is one of the protocol's, and what it cannot say is said in words (E.3)."""
    session = client.session(vault, {"text": "half", "finish": "length"}, {"text": "no", "finish": "refusal"})
    assert client.prompt(session) == "max_tokens"
    assert client.prompt(session) == "refusal"
    assert "length limit" in client.said()


def test_a_saved_plugin_holds_from_the_next_prompt_on(place: Place) -> None:
    """Hot reload: the editor's session goes on, with the tool as it was saved (E.3)."""
    client, session = place.ready(DANGER, "one", DANGER, "two")
    client.answer = choosing("allow_once")
    client.prompt(session)
    plugin = place.home / "plugins" / "asking.py"
    plugin.write_text(plugin.read_text().replace('"did " + what', '"really did " + what'))
    client.prompt(session)
    results = [
        one["content"][0]["content"]["text"] for one in client.updates("tool_call_update") if one.get("status") == "completed"
    ]
    assert ["really" in result for result in results] == [False, True]


def test_standard_output_is_the_protocol_and_nothing_else(place: Place) -> None:
    """Whatever a plugin or a program prints, and whatever it reads, the messages stay whole (E.3)."""
    shell = {"name": "bash", "arguments": {"command": "cat; echo loud"}}
    client, session = place.ready({"calls": [*DANGER["calls"], shell]}, "done")
    client.answer = choosing("allow_once")
    assert client.prompt(session) == "end_turn"
    assert client.end() == 0
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in client.raw)
    errors = client.errors.read_text()
    for printed in ("a plugin prints at import", "and past Python", "a plugin prints in a tool", "a plugin prints in a hook"):
        assert printed in errors


def _prompt(session: str, text: str = "Go on.") -> dict[str, Any]:
    return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}


def _is(message: dict[str, Any], kind: str) -> bool:
    return message.get("method") == "session/update" and message["params"]["update"]["sessionUpdate"] == kind

"""Questions at an editor: what is shown, what an answer counts for, and what becomes of one that is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import Client, Place, choosing


def danger(what: str = "x") -> dict[str, Any]:
    """A call that is asked about."""
    return {"calls": [{"name": "danger", "arguments": {"what": what}}]}


def outcomes(client: Client) -> list[str]:
    """The status of each call, in the order of their ends."""
    return [one["status"] for one in client.updates("tool_call_update") if one.get("status") in ("completed", "failed")]


def test_a_question_shows_the_call_why_it_is_asked_and_what_always_stores(client: Client, vault: Path) -> None:
    """The pattern stands in the name of the option, the hash of what was judged in its id (R18, R33)."""
    session = client.session(vault, danger("a\u202eb"), "done")
    assert client.prompt(session) == "end_turn"
    [asked] = client.asked
    options = {one["kind"]: one for one in asked["params"]["options"]}
    assert list(options) == ["allow_once", "allow_always", "reject_once", "reject_always"]
    assert options["allow_always"]["name"] == "Always: danger"
    assert len({one["optionId"].partition(":")[2] for one in options.values()}) == 1
    call = asked["params"]["toolCall"]
    shown = json.dumps(call["content"])
    assert ("wants to use danger" in shown, "u202e" in shown, "tool:" in shown, "no rule" in shown) == (
        True,
        True,
        False,
        False,
    )
    assert "\u202e" not in call["title"] + "".join(block["content"]["text"] for block in call["content"])
    assert outcomes(client) == ["completed"]


def test_a_write_is_shown_as_a_difference(client: Client, vault: Path) -> None:
    """What a person answers was on the screen: the content of a write (R33)."""
    write = {"name": "write", "arguments": {"path": ".envrc", "content": "export A=1\n"}}
    session = client.session(vault, {"calls": [write]}, "done")
    client.answer = choosing("reject_once")
    client.prompt(session)
    shown = {one["params"]["toolCall"]["title"]: one["params"]["toolCall"]["content"] for one in client.asked}
    assert "```diff\n" in str(shown["write .envrc"][-1]["content"]["text"]) and "+export A=1" in str(shown["write .envrc"])
    assert not (vault / ".envrc").exists()


@pytest.mark.parametrize(
    ("kind", "asked", "ends"),
    [
        ("allow_once", 2, ["completed", "completed"]),
        ("reject_once", 2, ["failed", "failed"]),
        ("reject_always", 1, ["failed", "failed"]),
    ],
)
def test_once_counts_once_and_a_lasting_no_is_not_asked_again(
    client: Client, vault: Path, kind: str, asked: int, ends: list[str]
) -> None:
    """Four answers, each with what it says and no more (E.3)."""
    session = client.session(vault, danger("1"), danger("2"), "done")
    client.answer = choosing(kind)
    assert client.prompt(session) == "end_turn"
    assert (len(client.asked), outcomes(client)) == (asked, ends)


def test_always_is_stored_and_holds_in_other_sessions(place: Place) -> None:
    """What was shown is what is stored (R18)."""
    client, session = place.ready(danger("1"), "done", danger("2"), "done")
    client.answer = choosing("allow_always")
    client.prompt(session)
    assert client.prompt(client.new(place.vault)) == "end_turn"
    assert (len(client.asked), outcomes(client)) == (1, ["completed", "completed"])
    assert "tool:danger" in (place.home / "config.jsonc").read_text()


@pytest.mark.parametrize(
    "answer",
    [
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}},
        {"outcome": {"outcome": "selected", "optionId": "allow_once:ap_000000000000:0000000000000000"}},
        {"outcome": {"outcome": "selected"}},
        {"outcome": {"outcome": "approved"}},
        {"outcome": "selected"},
        {"outcome": None},
        [],
        "yes",
    ],
)
def test_an_answer_that_was_not_offered_refuses(shared: tuple[Place, Client], client: Client, vault: Path, answer: Any) -> None:
    """An answer is bound to the question and to the bytes that were judged; all else is a no (R18)."""
    (shared[0].files / "did").unlink(missing_ok=True)
    session = client.session(vault, danger(), "done")
    client.answer = lambda _: answer
    assert client.prompt(session) == "end_turn"
    assert (outcomes(client), (shared[0].files / "did").exists()) == (["failed"], False)


def test_the_answer_to_another_question_refuses(shared: tuple[Place, Client], client: Client, vault: Path) -> None:
    """A client that mixes up two questions allows neither (R18)."""
    (shared[0].files / "did").unlink(missing_ok=True)
    first, second = client.session(vault, danger("1"), "done"), client.session(vault, danger("2"), "done")
    client.answer = lambda _: None
    prompts = [client.send_prompt(first), client.send_prompt(second)]
    while len(client.asked) < 2:
        client.next()
    for asked, other in zip(client.asked, reversed(client.asked), strict=True):
        option = other["params"]["options"][0]["optionId"]
        answer = {"outcome": {"outcome": "selected", "optionId": option}}
        client.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}).encode() + b"\n")
    replies = {client.until(lambda one: one.get("id") in prompts and "result" in one)["id"] for _ in prompts}
    assert (replies, outcomes(client), (shared[0].files / "did").exists()) == (set(prompts), ["failed", "failed"], False)


def test_a_client_that_cannot_ask_refuses(shared: tuple[Place, Client], client: Client, vault: Path) -> None:
    """An error instead of an answer is a no, and the model is told (R23)."""
    session = client.session(vault, danger(), "done")
    client.answer = lambda _: None
    prompt = client.send_prompt(session)
    asked = client.until(lambda one: one.get("method") == "session/request_permission")
    error = {"code": -32601, "message": "no such method"}
    client.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}).encode() + b"\n")
    assert client.reply(prompt)["result"]["stopReason"] == "end_turn"
    assert outcomes(client) == ["failed"]


def test_the_second_answer_changes_nothing(client: Client, vault: Path) -> None:
    """The first answer stands (SECURITY 3)."""
    session = client.session(vault, danger(), "done", "more")
    client.answer = choosing("reject_once")
    client.prompt(session)
    again = {"jsonrpc": "2.0", "id": client.asked[0]["id"], "result": choosing("allow_once")(client.asked[0])}
    client.write(json.dumps(again).encode() + b"\n")
    assert client.prompt(session) == "end_turn"
    assert outcomes(client) == ["failed"]


def test_a_cancelled_question_ends_the_turn(client: Client, vault: Path) -> None:
    """The client answers ``cancelled`` and the turn says so (E.3)."""
    session = client.session(vault, danger(), "never said", "after")
    client.answer = lambda _: {"outcome": {"outcome": "cancelled"}}
    assert client.prompt(session) == "cancelled"
    assert outcomes(client) == ["failed"]
    assert client.prompt(session) == "end_turn"


def test_cancel_takes_an_open_question_back(client: Client, vault: Path) -> None:
    """After ``session/cancel`` the request is withdrawn, the turn is cancelled, and a late yes does nothing (E.3)."""
    session = client.session(vault, danger(), "after")
    client.answer = lambda _: None
    prompt = client.send_prompt(session)
    asked = client.until(lambda one: one.get("method") == "session/request_permission")
    client.notify("session/cancel", {"sessionId": session})
    assert client.reply(prompt)["result"]["stopReason"] == "cancelled"
    withdrawn = [one["params"]["requestId"] for one in client.seen if one.get("method") == "$/cancel_request"]
    assert withdrawn == [asked["id"]]
    late = {"jsonrpc": "2.0", "id": asked["id"], "result": choosing("allow_once")(asked)}
    client.write(json.dumps(late).encode() + b"\n")
    assert client.prompt(session) == "end_turn"
    assert outcomes(client) == ["failed"]


def test_a_question_that_is_answered_elsewhere_is_taken_back(shared: tuple[Place, Client], client: Client, vault: Path) -> None:
    """The terminal answers what the editor asks; the editor takes its question off the screen (E.3)."""
    session = client.session(vault, danger(), "done")
    client.answer = lambda _: None
    prompt = client.send_prompt(session)
    asked = client.until(lambda one: one.get("method") == "session/request_permission")
    approval = asked["params"]["options"][0]["optionId"].split(":")[1]
    command = [sys.executable, "-m", "moryflow", "approval", "reply", approval, "once"]
    subprocess.run(command, env={"MORYFLOW_HOME": str(shared[0].home), "PATH": "/usr/bin:/bin"}, check=True)
    assert client.reply(prompt)["result"]["stopReason"] == "end_turn"
    assert outcomes(client) == ["completed"]
    assert [one["params"]["requestId"] for one in client.seen if one.get("method") == "$/cancel_request"] == [asked["id"]]


def test_a_models_questions_are_asked_one_by_one(client: Client, vault: Path) -> None:
    """Each choice is an option of its own; the answers go back together (S0.41)."""
    choices = [{"label": "SQLite"}, {"label": "Pg"}]
    questions = [{"question": one, "options": choices} for one in ("Which database?", "And for tests?")]
    session = client.session(vault, {"calls": [{"name": "ask_user", "arguments": {"questions": questions}}]}, "done")
    client.answer = lambda asked: {"outcome": {"outcome": "selected", "optionId": asked["params"]["options"][1]["optionId"]}}
    assert client.prompt(session) == "end_turn"
    shown = [(one["params"]["toolCall"]["title"], [each["name"] for each in one["params"]["options"]]) for one in client.asked]
    assert shown == [(one["question"], ["SQLite", "Pg", "Do not answer"]) for one in questions]
    assert "Which database? → Pg\\nAnd for tests? → Pg" in json.dumps(client.updates("tool_call_update"), ensure_ascii=False)

"""Sessions, turns and questions over HTTP (CONTRACT 4)."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import forked_command
import pytest
from moryflow.server.app import OPERATIONS

from .conftest import MORYFLOW, PATIENCE, Server

ASKS = {"calls": [{"name": "danger", "arguments": {"what": "a thing"}}]}
DANGER = {"calls": [{"name": "danger", "arguments": {"what": "a thing"}}]}
HOLDS = {"calls": [{"name": "hold", "arguments": {}}]}


def test_a_session_from_its_beginning_to_its_end(shared: Server) -> None:
    """Begin, prompt, look, name, branch, undo, export, import, delete: what the command line can do."""
    session = shared.session("One.", "Two.")
    shared.whole_turn(session, "first")
    found = shared.get(f"/sessions/{session}")
    assert [node["kind"] for node in found["nodes"]] == ["user", "assistant"]
    assert (found["status"], found["here"], found["partial"]) == ("idle", False, None)
    assert found["title"] == "first"
    assert shared.ask("PATCH", f"/sessions/{session}", {"title": "another"}).json["title"] == "another"
    labelled = shared.post(f"/sessions/{session}/label", {"label": "here"})
    assert labelled["node"] == found["active"]
    copy = shared.post(f"/sessions/{session}/fork", {"node": "here", "title": "copy"}, 201)
    assert shared.get(f"/sessions/{copy['id']}/tree")["nodes"][1]["payload"] == found["nodes"][1]["payload"]
    first = found["nodes"][0]["id"]
    assert shared.post(f"/sessions/{session}/switch", {"node": first})["active"] == first
    assert shared.post(f"/sessions/{session}/switch", {"node": None})["active"] is None
    assert shared.post(f"/sessions/{session}/switch", {"node": "here"})["active"] == labelled["node"]
    assert [message["role"] for message in shared.get(f"/sessions/{session}/messages")["messages"]] == ["user", "assistant"]
    assert shared.get(f"/sessions/{session}/context")["tokens"] > 0
    assert "/undo yes: undo" in shared.post(f"/sessions/{session}/undo", {"how": "show"})["text"]
    assert shared.post(f"/sessions/{session}/undo")["text"].startswith("undone")
    assert shared.post(f"/sessions/{session}/redo")["text"].startswith("redone")
    lines = shared.ask("GET", f"/sessions/{session}/export")
    assert lines.headers["content-type"].startswith("application/jsonl")
    taken = shared.ask("POST", "/import", lines.data, headers={"Content-Type": "application/jsonl"})
    assert taken.status == 201
    foreign = lines.data.replace(json.dumps(str(shared.vault)).encode(), b'"/"', 1)
    kind = {"Content-Type": "application/jsonl"}
    assert shared.ask("POST", "/import", foreign, headers=kind).json["vault"] == str(shared.vault)  # never the file's (R20)
    assert shared.ask("POST", "/import?vault=/nowhere", foreign, headers=kind).status == 422
    assert taken.json["id"] != session
    assert shared.ask("DELETE", f"/sessions/{session}").json == {"deleted": [session]}
    assert shared.ask("GET", f"/sessions/{session}").status == 404


def test_the_command_line_and_http_say_the_same(server: Server) -> None:
    """One shape for `--json` and for HTTP."""
    server.whole_turn(server.session("One."))
    [session] = server.get("/sessions")
    for command, path in (
        ("session list", "/sessions"),
        ("session tree", f"/sessions/{session['id']}/tree"),
        ("session context", f"/sessions/{session['id']}/context"),
        ("session show --stats", f"/sessions/{session['id']}/stats"),
        ("agent list", "/agents"),
        ("tool list", "/tools"),
        ("model list", "/models"),
        ("plugin list", "/plugins"),
        ("config show", "/config"),
        ("permission explain bash ls", "/permissions/explain?domain=bash&input=ls"),
    ):
        done = forked_command.run(
            [*MORYFLOW, *command.split(), "--json", "--vault", str(server.vault)], cwd=server.vault, check=True, text=True,
            env={**os.environ, "MORYFLOW_HOME": str(server.home)},
        )  # fmt: skip
        answer = server.get(path)
        if path == "/sessions":  # the list follows what runs
            assert [row.pop("busy") for row in answer] == [False]
        assert json.loads(done.stdout) == answer, command


def test_full_access_is_confirmed(shared: Server) -> None:
    """For a new session and for one that is there (S0.69)."""
    assert shared.ask("POST", "/sessions", {"mode": "full_access"}).status == 409
    session = shared.session("One.")
    for body, status in (({"mode": "full_access"}, 409), ({"mode": "full_access", "confirm": True}, 200)):
        assert shared.ask("PATCH", f"/sessions/{session}", body).status == status
    assert shared.get(f"/sessions/{session}")["mode"] == "full_access"
    assert shared.ask("PATCH", f"/sessions/{session}", {"mode": "everything"}).status == 422


def test_a_question_is_answered_once_and_for_what_was_judged(server: Server) -> None:
    """The answer carries the hash; the first one stands (S0.9, D24)."""
    session = server.session(ASKS, "Done.")
    with server.stream() as stream:
        server.post(f"/sessions/{session}/prompt", {"text": "go"}, 202)
        name = stream.until("permission.asked")["approval_id"]
        [asked] = server.get(f"/approvals?state=pending&session={session}")
        assert asked["id"] == name
        assert server.get(f"/sessions/{session}")["status"] == "waiting"
        about = asked["request"]["hash"]
        for body, status, code in (
            ({"reply": "maybe", "hash": about}, 422, "invalid"),
            ({"hash": about}, 422, "invalid"),
            ({"reply": "once"}, 422, "no_hash"),
            ({"remember": "always"}, 422, "no_hash"),
            ({"reply": "once", "hash": "other"}, 409, "changed"),
        ):
            reply = server.ask("POST", f"/approvals/{name}", body)
            assert (reply.status, reply.json["code"]) == (status, code)
        assert not (server.home.parent / "files" / "did").exists()
        assert server.post(f"/approvals/{name}", {"reply": "once", "hash": about})["reply"] == "once"
        second = server.ask("POST", f"/approvals/{name}", {"reply": "reject", "hash": about})
        assert (second.status, second.json["code"]) == (409, "answered")
        stream.until("session.status", status="idle")
    assert (server.home.parent / "files" / "did").read_text() == "a thing"
    assert server.ask("POST", "/approvals/ap_none", {"reply": "once", "hash": "x"}).status == 404


def test_a_question_of_a_terminal_is_answered_here(server: Server, tmp_path: Path) -> None:
    """A run in another process waits, and goes on with the answer that came over HTTP (issue: one host, every screen)."""
    script = tmp_path / "asks.json"
    script.write_text(json.dumps([ASKS, "Done."]))
    with server.stream() as stream:
        stream.until("open")
        run = subprocess.Popen(
            [*MORYFLOW, "run", "-m", f"script:{script}", "--vault", str(server.vault), "--output", "stream-json",
             "--on-ask", "prompt", "go"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "MORYFLOW_HOME": str(server.home)},
        )  # fmt: skip
        asked = stream.until("permission.asked")
        about = server.get(f"/approvals/{asked['approval_id']}")["request"]["hash"]
        server.post(f"/approvals/{asked['approval_id']}", {"reply": "once", "hash": about})
        out, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0
    assert json.loads(out.splitlines()[-1])["text"] == "Done."


def test_a_busy_session_takes_no_second_prompt_unless_it_may_wait(server: Server) -> None:
    """409, and with `queue` the answer comes when it begins."""
    session = server.session(HOLDS, "First.", "Second.")
    with server.stream() as stream:
        turn = server.post(f"/sessions/{session}/prompt", {"text": "one"}, 202)["turn"]
        stream.until("tool.start", state="running")
        busy = server.ask("POST", f"/sessions/{session}/prompt", {"text": "two", "agent": "plan"})
        assert (busy.status, busy.json["code"]) == (409, "busy")
        assert server.get(f"/sessions/{session}")["agent"] == "build"
        assert server.ask("DELETE", f"/sessions/{session}").status == 409
        assert server.get(f"/sessions/{session}")["here"]
        (server.home.parent / "files" / "go").touch()
        second = server.post(f"/sessions/{session}/prompt", {"text": "two", "queue": True}, 202)["turn"]
        stream.until("turn.finish", turn=second)
    assert second != turn
    said = [node["payload"].get("text") for node in server.get(f"/sessions/{session}")["nodes"] if node["kind"] == "assistant"]
    assert said[-2:] == ["First.", "Second."]


def test_a_prompt_names_its_agent_while_a_sub_agent_still_works(server: Server) -> None:
    """The turn is over, and what it began in the background goes on: the next prompt is not refused, and its agent answers."""
    (server.home / "agents").mkdir()
    script = server.vault / "helper.json"
    script.write_text(json.dumps([HOLDS, "Helped."]))
    (server.home / "agents" / "helper.md").write_text(f"---\nid: helper\nmode: subagent\nmodel: script:{script}\n---\nHelp.")
    behind = {"calls": [{"name": "task", "arguments": {"agent": "helper", "prompt": "look", "background": True}}]}
    session = server.session(behind, "Started.", "Planned.", "Told.")
    with server.stream(f"/sessions/{session}/events") as stream:
        server.post(f"/sessions/{session}/prompt", {"text": "one"}, 202)
        stream.until("session.status", status="idle", session=session)
        server.post(f"/sessions/{session}/prompt", {"text": "two", "agent": "plan"}, 202)
        assert server.get(f"/sessions/{session}")["agent"] == "plan"
    (server.home.parent / "files" / "go").touch()


def test_the_same_prompt_sent_twice_is_one(start: Callable[..., Server]) -> None:
    """By its key, also when it comes twice at once, and after the server that took it was killed (nothing is done twice)."""
    server = start()
    often = server.session(*["One."] * 8)
    path, prompt = f"/sessions/{often}/prompt", {"text": "go", "queue": True}
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(server.ask, "POST", path, prompt, headers={"Idempotency-Key": "k0"}) for _ in range(8)]
        assert len({one.result(PATIENCE).json["turn"] for one in sent}) == 1
    assert sum(node["kind"] == "user" for node in server.get(f"/sessions/{often}")["nodes"]) == 1
    session = server.session("One.", "Two.")
    key = {"Idempotency-Key": "k1"}
    first = server.ask("POST", f"/sessions/{session}/prompt", {"text": "go"}, headers=key)
    second = server.ask("POST", f"/sessions/{session}/prompt", {"text": "go"}, headers=key)
    assert (first.status, first.json) == (202, second.json)
    server.end(signal.SIGKILL)
    again = start(port=server.port)
    third = again.ask("POST", f"/sessions/{session}/prompt", {"text": "go"}, headers=key)
    assert (third.status, third.json) == (202, first.json)
    assert sum(node["kind"] == "user" for node in again.get(f"/sessions/{session}")["nodes"]) == 1


def test_an_answer_is_held_against_a_schema(shared: Server) -> None:
    """One that does not fit is asked for again, in the same request; what is not a schema is refused (CONTRACT 4)."""
    session = shared.session("Forty-two.", "42")
    refused = shared.ask("POST", f"/sessions/{session}/prompt", {"text": "How many?", "schema": {"type": "nothing"}})
    assert (refused.status, refused.json["code"]) == (422, "config")
    with shared.stream(f"/sessions/{session}/events") as stream:
        shared.post(f"/sessions/{session}/prompt", {"text": "How many?", "schema": {"type": "integer"}}, 202)
        stream.until("turn.finish")
        stream.until("turn.finish")
    answers = [node["payload"]["text"] for node in shared.get(f"/sessions/{session}")["nodes"] if node["kind"] == "assistant"]
    assert answers == ["Forty-two.", "42"]


def test_a_turn_is_stopped(server: Server) -> None:
    """What it has is kept; a running call gets its result."""
    session = server.session(HOLDS, "Done.")
    with server.stream() as stream:
        server.post(f"/sessions/{session}/prompt", {"text": "go"}, 202)
        stream.until("tool.start", state="running")
        assert server.post(f"/sessions/{session}/cancel")["stopped"]
        assert stream.until("turn.finish")["end_reason"] == "stopped"
        stream.until("session.status", status="idle")
    assert not server.post(f"/sessions/{session}/cancel")["stopped"]


def test_the_end_of_a_server_breaks_turns_off_and_closes_streams(start: Callable[..., Server]) -> None:
    """SIGTERM: the turn is written down as interrupted, those who listen are told, and the process ends by itself."""
    server = start()
    session = server.session(HOLDS, "Done.")
    with server.stream() as stream, server.stream() as other:
        server.post(f"/sessions/{session}/prompt", {"text": "go"}, 202)
        stream.until("tool.start", state="running")
        assert server.end() == 0
        assert "turn.finish" in [event["type"] for event in stream.frames()]
        list(other.frames())
    again = start()
    assert again.get(f"/sessions/{session}")["turns"][-1]["end_reason"] == "interrupted"
    assert again.post(f"/sessions/{session}/resume", {}, 202)["turn"]


def test_one_server_a_home(start: Callable[..., Server]) -> None:
    """A second one says where the first is, and how to get a link to it."""
    server = start()
    second = forked_command.run(
        [*MORYFLOW, "serve", "--port", "0"], cwd=server.vault, text=True,
        env={**os.environ, "MORYFLOW_HOME": str(server.home)},
    )  # fmt: skip
    assert second.returncode == 2
    assert server.said["url"] in second.stderr
    assert "moryflow serve --link" in second.stderr
    link = forked_command.run(
        [*MORYFLOW, "serve", "--link"], cwd=server.vault, text=True, check=True,
        env={**os.environ, "MORYFLOW_HOME": str(server.home)},
    )  # fmt: skip
    code = link.stdout.strip().partition("#code=")[2]
    assert server.ask("POST", "/code", {"code": code}, headers={"Authorization": ""}).status == 200


def test_an_address_that_others_reach_needs_a_word(start: Callable[..., Server], home: Path) -> None:
    """What is sent there can be read on the way: the tunnel is named, and the word that says what one means."""
    refused = forked_command.run(
        [*MORYFLOW, "serve", "--port", "0", "--host", "0.0.0.0"], cwd=home, text=True,
        env={**os.environ, "MORYFLOW_HOME": str(home)},
    )  # fmt: skip
    assert refused.returncode == 2
    assert "--insecure" in refused.stderr and "ssh -L" in refused.stderr


def test_a_server_has_defaults_for_new_sessions(start: Callable[..., Server], tmp_path: Path) -> None:
    """What a session names itself comes first; full access is confirmed where the server is started."""
    script = tmp_path / "answers.json"
    script.write_text('["Good."]')
    server = start("--model", f"script:{script}", "--agent", "plan", "--mode", "full_access", "-y")
    made = server.post("/sessions", {}, 201)
    assert (made["model"], made["agent"], made["mode"]) == (f"script:{script}", "plan", "full_access")
    own = server.post("/sessions", {"agent": "build", "mode": "agent"}, 201)
    assert (own["agent"], own["mode"]) == ("build", "agent")


@pytest.mark.parametrize(
    ("flags", "said"),
    [(("--mode", "full_access"), "add -y"), (("--agent", "nobody"), "nobody"), (("--model", "nowhere/x"), "nowhere")],
)
def test_defaults_that_cannot_be_had_are_refused_at_the_start(home: Path, flags: tuple[str, ...], said: str) -> None:
    """With a sentence, before anything listens."""
    refused = forked_command.run(
        [*MORYFLOW, "serve", "--port", "0", *flags], cwd=home, text=True, timeout=PATIENCE,
        env={**os.environ, "MORYFLOW_HOME": str(home)},
    )  # fmt: skip
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_agent_or_model_that_was_saved_just_now_can_be_named(server: Server) -> None:
    """Whoever saves a file and sends the next request is not told that there is no such name (S0-i)."""
    agents = server.home / "agents"
    agents.mkdir()

    def save(number: int) -> dict[str, str]:
        (agents / f"w{number}.md").write_text(f'---\n{{"id": "w{number}", "name": "W"}}\n---\nWrite.\n')
        settings = {f"p{number}": {"baseUrl": "http://127.0.0.1:9/v1"}}
        (server.home / "config.jsonc").write_text(json.dumps({"models": {"providers": settings}}))
        return {"agent": f"w{number}", "model": f"p{number}/m"}

    session = server.post("/sessions", save(0), 201)["id"]
    assert server.ask("PATCH", f"/sessions/{session}", save(1)).json["agent"] == "w1"
    server.post(f"/sessions/{session}/prompt", {"text": "Go on.", **save(2)}, 202)


def test_a_long_output_is_read_by_range(shared: Server) -> None:
    """Whole characters, to the end; a stored output that is not there says so (S0.56)."""
    session = shared.session({"calls": [{"name": "lengthy", "arguments": {"text": "äöü", "times": 40_000}}]}, "Done.")
    [result] = [event for event in shared.whole_turn(session) if event["type"] == "tool.result"]
    assert result["truncated"]
    text, offset = "", 0
    while offset is not None:
        part = shared.get(f"/outputs/{result['output_id']}?offset={offset}&limit=50000")
        text, offset = text + part["text"], part["next"]
    assert "�" not in text
    assert text == "äöü\n" * 40_000
    assert shared.ask("GET", f"/artifacts/{result['output_id']}").data.decode() == text
    assert shared.ask("GET", "/outputs/none").status == 404


def test_no_line_with_a_slash_and_a_word_reaches_a_model(shared: Server) -> None:
    """As a prompt too: the commands that work everywhere are run, full access is confirmed, what is none is said (D86)."""
    session = shared.session({"calls": [{"name": "danger", "arguments": {"what": "x"}}]}, mode="full_access", confirm=True)
    path = f"/sessions/{session}/prompt"
    for line in ("/nonsense x", "\n /nonsense", "/mode nowhere", "/模式", "/MODE agent"):
        assert shared.ask("POST", path, {"text": line}).status == 422, line
    said = {line: shared.post(path, {"text": line}, 202) for line in ("/mode agent", "/help", "/model", "/agent plan")}
    assert {one["turn"] for one in said.values()} == {None}
    assert (said["/mode agent"]["text"], "/compact: " in said["/help"]["text"]) == ("mode: agent", True)
    refused = shared.ask("POST", path, {"text": "/mode full_access"})
    assert (refused.status, refused.json["code"]) == (409, "confirm_required")
    assert shared.ask("POST", path, {"text": "/compact"}).status == 422  # there is nothing to compact
    row = shared.get(f"/sessions/{session}")
    assert (row["mode"], row["agent"], row["turns"]) == ("agent", "plan", [])
    assert shared.post(f"/sessions/{session}/command", {"name": "mode", "text": "full_access", "confirm": True})["text"]
    assert shared.get(f"/sessions/{session}")["mode"] == "full_access"


def test_a_conversation_is_shared_over_http(shared: Server) -> None:
    """As one page in the session's folder, for the owner alone; no client names a file (D86)."""
    session = shared.session("Forty-two.")
    shared.whole_turn(session)
    page = shared.vault / f"{session}.html"
    path = f"/sessions/{session}/prompt"
    assert shared.ask("POST", path, {"text": "/share /tmp/x.html"}).status == 422
    page.symlink_to(shared.vault / "elsewhere")
    assert shared.post(path, {"text": "/share"}, 202)["text"] == f"written to {page}"
    assert "Forty-two." in page.read_text()
    assert (page.is_symlink(), page.stat().st_mode & 0o777) == (False, 0o600)


def test_the_prompt_settings_go_back_and_forth(shared: Server) -> None:
    """`null` is the model's default, and a reset touches nothing else (S0: prompt tab)."""
    before = shared.get("/settings/prompt")
    assert (before["mode"], before["temperature"]) == ("default", None)
    custom = {"mode": "custom", "text": "Be brief.", "temperature": 0.5, "topP": None, "maxTokens": 100}
    assert shared.ask("PUT", "/settings/prompt", custom).json == custom
    assert shared.get("/settings/prompt") == custom
    assert shared.ask("PUT", "/settings/prompt", {"mode": "custom", "text": "x", "temperature": 9}).status == 422
    assert shared.get("/settings/prompt") == custom
    assert shared.ask("PUT", "/settings/prompt", {"mode": "default"}).json == {**custom, "mode": "default"}  # kept, not used
    assert before["text"] == ""  # what is built in is not the user's text


def test_every_operation_is_described(shared: Server) -> None:
    """The table gives the document; 3.1 has no `itemSchema` (CONTRACT 4)."""
    for version, items in (("3.2", True), ("3.1", False)):
        found = shared.get(f"/openapi.json?version={version}")
        assert found["openapi"].startswith(version)
        assert ('"itemSchema":' in json.dumps(found)) is items
        for one in OPERATIONS:
            said = found["paths"][one.path][one.method.lower()]
            assert said["operationId"] == one.name
            assert said["summary"]
        for described in (
            found["paths"]["/sessions/{id}/export"]["get"]["responses"]["200"],
            found["paths"]["/import"]["post"]["requestBody"],
        ):  # generators of clients leave out what they know no type for
            assert described["content"].keys() == {"application/jsonl", "application/octet-stream"}
    names = [one.name for one in OPERATIONS]
    assert len(names) == len(set(names))


def test_files_are_found_by_their_letters(server: Server) -> None:
    """Without what git ignores; only a folder that can be read."""
    (server.vault / ".gitignore").write_text("*.log\n")
    (server.vault / "run.log").touch()
    assert server.get("/files?q=rdm")["files"] == ["README.md"]
    assert server.get("/files?q=log")["files"] == []
    assert server.ask("GET", "/files?vault=/nowhere").status == 422


SAYS = {"calls": [{"name": "bash", "arguments": {"command": "echo said $SAID, key $SOME_TOKEN, own $ONLY_THE_SERVER"}}]}


def test_a_turn_runs_with_the_environment_that_was_sent(
    start: Callable[..., Server], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the server's; without secrets, for that turn alone, and nothing of it is stored."""
    monkeypatch.setenv("ONLY_THE_SERVER", "server")
    (home / "config.jsonc").write_text(
        '{"agents": {"runtime": {"permission": {"rules": [{"domain": "bash", "pattern": "*", "decision": "allow"}]}}}}'
    )
    (home / "config.jsonc").chmod(0o600)
    server = start()
    session = server.session(SAYS, "Done.", SAYS, "Done.", mode="full_access", confirm=True)
    sent = {"PATH": os.environ["PATH"], "SAID": "hello-there", "SOME_TOKEN": "t0ps3cr3t", "MORYFLOW_HOME": "/nowhere"}
    outputs: list[str] = []
    for given in ({"environment": sent}, {}):
        with server.stream(f"/sessions/{session}/events") as stream:
            server.post(f"/sessions/{session}/prompt", {"text": "go", **given}, 202)
            outputs.append(str(stream.until("tool.result")["output"]))
            stream.until("session.status", status="idle")
    assert "said hello-there, key , own" in outputs[0]
    assert "own server" not in outputs[0]
    assert "said , key , own server" in outputs[1]
    assert b"t0ps3cr3t" not in server.ask("GET", f"/sessions/{session}/export").data
    for wrong in ({"A=B": "x"}, {"": "x"}, {"A": "x\0"}):
        assert server.ask("POST", f"/sessions/{session}/prompt", {"text": "go", "environment": wrong}).status == 422


def test_a_remote_server_takes_no_environment(start: Callable[..., Server]) -> None:
    """Who sends it may be on another machine."""
    server = start("--profile", "remote")
    refused = server.ask("POST", f"/sessions/{server.session('One.')}/prompt", {"text": "go", "environment": {"A": "b"}})
    assert (refused.status, refused.json["code"]) == (403, "denied")


def test_the_result_of_a_turn(server: Server) -> None:
    """Whoever asks waits for its end, and gets what the command line prints; asked again, the same."""
    session = server.session(HOLDS, "Done.")
    turn = server.post(f"/sessions/{session}/prompt", {"text": "go"}, 202)["turn"]
    (server.home.parent / "files" / "go").touch()
    result = server.get(f"/sessions/{session}/turns/{turn}")
    assert (result["type"], result["session"], result["text"], result["exit_code"]) == ("result", session, "Done.", 0)
    again = server.get(f"/sessions/{session}/turns/{turn}")
    assert {**again, "ts": ""} == {**result, "ts": ""}
    unknown = server.ask("GET", f"/sessions/{session}/turns/t_nothing")
    assert (unknown.status, unknown.json["code"]) == (404, "not_found")
    assert server.ask("GET", f"/sessions/{server.session('One.')}/turns/{turn}").status == 404


def test_the_result_of_a_turn_is_rebuilt_from_what_is_stored(start: Callable[..., Server], tmp_path: Path) -> None:
    """By another server than the one that ran it, field by field, with what was denied, also to its sub-agents."""
    server = start()
    (server.home / "agents").mkdir()
    model = tmp_path / "helper.json"
    model.write_text(json.dumps([DANGER, "It was refused."]))
    (server.home / "agents" / "helper.md").write_text(f"---\nid: helper\nmode: subagent\nmodel: script:{model}\n---\nHelp.")
    task = {"calls": [{"name": "task", "arguments": {"agent": "helper", "prompt": "look"}}]}
    session = server.session(DANGER, task, "Neither could be done.")
    turn = server.post(f"/sessions/{session}/prompt", {"text": "go", "on_ask": "deny"}, 202)["turn"]
    result = server.get(f"/sessions/{session}/turns/{turn}")
    assert [(one["tool"], one.get("agent")) for one in result["denied"]] == [("danger", None), ("danger", "helper")]
    assert server.end() == 0
    assert {**start().get(f"/sessions/{session}/turns/{turn}"), "ts": ""} == {**result, "ts": ""}


def test_the_result_of_a_turn_that_a_server_breaks_off(server: Server) -> None:
    """Who waits is told, and the server ends all the same."""
    session = server.session(HOLDS, "Done.")
    turn = server.post(f"/sessions/{session}/prompt", {"text": "go"}, 202)["turn"]
    with ThreadPoolExecutor(1) as pool, server.stream(f"/sessions/{session}/events") as stream:
        waiting = pool.submit(server.ask, "GET", f"/sessions/{session}/turns/{turn}")
        assert server.get(f"/sessions/{session}")["here"]
        assert server.end() == 0
        stream.until("turn.finish", end_reason="interrupted")
        with suppress(OSError, http.client.HTTPException):  # the request may not have been read before the end
            assert waiting.result(PATIENCE).json["code"] == "stopping"

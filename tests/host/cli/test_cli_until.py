"""``moryflow run --until COMMAND``: goes on until it succeeds, and says honestly when it did not (issue F, CONTRACT §1)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any


def write(path: str) -> dict[str, Any]:
    return {"calls": [{"name": "write", "arguments": {"path": path, "content": "x"}}]}


def test_it_goes_on_until_the_command_succeeds(cli: Any) -> None:
    """The model reads what the command printed; the last answer is the result."""
    cli.config(disabledPlugins=[])
    model = cli.script(write("a.txt"), "wrote a", write("b.txt"), "wrote b")
    done = cli(
        "run", "make both", "-m", model, "--until", "test -f b.txt || { echo b is missing; exit 3; }", "--output", "json"
    )
    result = json.loads(done.stdout)
    assert (done.returncode, result["text"], result["status"]) == (0, "wrote b", "completed")
    assert "round 1 of 8" in done.stderr and "failed with exit code 3" in done.stderr and "succeeded" in done.stderr
    assert "b is missing" in cli.prompts()[1]


def test_it_says_that_it_stopped_without_success(cli: Any) -> None:
    """Exit code 1 and the next command; a turn that did not complete is not followed by another."""
    model = cli.script("one", "two", "three")
    done = cli("run", "try", "-m", model, "--until", "false", "--rounds", "2", "--output", "json")
    assert done.returncode == 1 and json.loads(done.stdout)["unmet"] == "false still fails after 2 rounds"
    assert "moryflow run -c --until" in done.stderr and len(cli.prompts()) == 2
    stopped = cli("run", "x", "-m", cli.script(write("c.txt"), write("d.txt"), "e"), "--until", "false", "--max-steps", "1")
    assert stopped.returncode == 5 and "round" not in stopped.stderr
    assert cli("run", "x", "--rounds", "2").returncode == 2


def test_a_run_that_was_killed_goes_on(cli: Any) -> None:
    """After kill -9 the session is continued by the same words, and has all that was said before."""
    cli.config(disabledPlugins=[])
    model = cli.script(write("a.txt"), "wrote a", write("b.txt"), "wrote b")
    check = "test -f b.txt"
    begun = subprocess.Popen(
        [sys.executable, "-m", "moryflow", "run", "make", "-m", model, "--until", f"{check} || {{ touch failed; sleep 60; }}"],
        cwd=cli.vault, env=cli.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    while not (cli.vault / "failed").exists():
        assert begun.poll() is None
        time.sleep(0.05)
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait()
    done = cli("run", "-c", "--until", check)
    assert done.returncode == 0, done.stderr
    assert cli.prompts()[0] == "make" and (cli.vault / "b.txt").exists()
    assert len(json.loads(cli("session", "list", "--json").stdout)) == 1


def test_it_is_at_once_done_when_nothing_is_left(cli: Any) -> None:
    """``-c --until`` without a prompt asks no model if the command succeeds."""
    assert cli("run", "hi", "-m", cli.script("hello")).returncode == 0
    done = cli("run", "-c", "--until", "true")
    assert done.returncode == 0 and "round 1 of 8: true succeeded" in done.stderr and len(cli.prompts()) == 1

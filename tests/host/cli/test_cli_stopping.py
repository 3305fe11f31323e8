"""Ctrl-C at odd moments: it stops what was begun, and never the conversation."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from moryflow import open_host

Begin = Callable[..., Any]


def test_ctrl_c_between_the_prompt_and_its_turn_ends_neither(cli: Any, at_prompt: Begin) -> None:
    """Whenever it comes after Enter, the conversation goes on with the next line (issue 2, CLI)."""
    terminal = at_prompt("-m", cli.script(*["an answer"] * 20))
    for wait in range(0, 30, 3):
        terminal.type("hello\r")
        terminal.rest(wait / 1000)
        terminal.interrupt()
        terminal.rest(0.4)
    terminal.type("/mode agent\r")
    terminal.expect("mode: agent")
    terminal.type("/quit\r")
    terminal.expect("goes on from here")
    assert terminal.end() == 0


async def test_a_turn_that_is_stopped_before_its_first_step(tmp_path: Any) -> None:
    """It ends as stopped, nothing is asked, and the next one is not touched by it (invariant 9)."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps(["first", "second"]), "utf-8")
    (tmp_path / "vault").mkdir()
    async with await open_host(tmp_path / "home", environ={}) as host:
        session = await host.new_session(tmp_path / "vault", model=f"script:{script}")
        begun = asyncio.create_task(session.prompt("hello"))
        await asyncio.sleep(0)
        assert not session.running
        session.cancel()
        stopped, after = await begun, await session.prompt("again")
        session.cancel()
        last = await session.prompt("and again")
        runs = await host.store.runs(session.id)
    assert [result.end_reason for result in (stopped, after)] == ["stopped", "completed"]
    assert (after.text, last.text) == ("first", "second")
    assert [(run.state, run.end_reason) for run in runs] == [
        ("ended", "stopped"), ("ended", "completed"), ("ended", "completed"),
    ]  # fmt: skip


def test_ctrl_c_stops_a_compaction_that_was_asked_for(cli: Any, at_terminal: Begin) -> None:
    """``/compact`` is given up, its run is closed, and the conversation goes on (S0.29, S1.32)."""
    cli.config(agents={"runtime": {"compaction": {"keepRecentTokens": 50, "protectedTurns": 1}}})
    summary = {"text": "## Goal\nx", "purpose": "compact", "delay": 600}
    terminal = at_terminal("chat", "-m", cli.script("long " * 400, "second", summary, "third"))
    for line, answer in (("one", "long"), ("two", "second")):
        terminal.expect("\n>")
        terminal.type(f"{line}\r")
        terminal.expect(answer)
    terminal.expect("\n>")
    terminal.type("/compact\r")
    terminal.expect("⠋")
    terminal.interrupt()
    terminal.expect("stopped")
    terminal.type("three\r")
    terminal.expect("third")
    assert terminal.quit() == 0
    turns = json.loads(cli("session", "show", "--json").stdout)["turns"]
    assert [turn["end_reason"] for turn in turns if turn["purpose"] == "compact"] == ["interrupted"]


def test_ctrl_c_at_the_question_for_full_access_is_a_no(cli: Any, at_prompt: Begin) -> None:
    """At once, and the conversation goes on (S0.69)."""
    terminal = at_prompt("-m", cli.script("fine"))
    terminal.type("/mode full_access\r")
    terminal.expect("Go on?")
    terminal.wait_until_it_waits()  # the question stands there a moment before its answer is read
    terminal.interrupt()
    terminal.expect("stopped")
    terminal.type("/mode agent\r")
    terminal.expect("mode: agent")
    assert terminal.quit() == 0


STOPPED_AT = """
import sys


class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "{name}":
            raise KeyboardInterrupt


sys.argv = ["moryflow", "config", "--help"]
sys.meta_path.insert(0, Stop())
exec(compile(open({script!r}).read(), {script!r}, "exec"), {{"__name__": "__main__"}})
"""
SCRIPT = Path(__file__).resolve().parents[3] / "bin" / "moryflow"
"""The command as it is installed, but for its first line."""

STARTED = """
import os, sys
try:
    os.write({pipe}, b"!")
    exec(compile(open({script!r}).read(), {script!r}, "exec"), {{"__name__": "__main__"}})
except KeyboardInterrupt:  # before the first line of the command
    sys.exit(130)
"""


def test_ctrl_c_at_any_moment_of_a_start_prints_no_traceback(cli: Any) -> None:
    """Before anything is imported, while plugins load, in the turn, at the end: 130 or done, and the store is whole (S2.15)."""
    model = cli.script(*["an answer"] * 20)
    codes: list[int] = []
    for moment in range(12):
        ours, theirs = os.pipe()
        command = [sys.executable, "-c", STARTED.format(pipe=theirs, script=str(SCRIPT)), "run", "-m", model, "hi"]
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        running = subprocess.Popen(
            command, cwd=cli.vault, env=cli.env, text=True, stdin=subprocess.DEVNULL, pass_fds=(theirs,), **pipes
        )
        os.close(theirs)
        assert os.read(ours, 1) == b"!"
        os.close(ours)
        time.sleep(moment * 0.08)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate()
        assert "Traceback" not in err and "ignored" not in err, err
        assert out in ("", "an answer\n")
        codes.append(running.returncode)
    assert set(codes) <= {0, 130, -signal.SIGINT} and 130 in codes  # Python ends with the signal itself when it is all but over
    assert cli("session", "list", "--json").returncode == 0
    assert cli("run", "-m", model, "again").stdout == "an answer\n"


def test_ctrl_c_ends_a_run_that_waits_for_a_file(cli: Any, wait_until_it_waits: Callable[[int], None]) -> None:
    """The first one does, where `-f` names a pipe that does not speak (issue 2, CLI)."""
    pipe = cli.vault / "pipe"
    os.mkfifo(pipe)
    running = cli.start("run", "hi", "-f", "pipe", "-m", cli.script("x"))
    try:
        writer = _once_it_is_read(pipe)
        wait_until_it_waits(running.pid)
        running.send_signal(signal.SIGINT)
        assert (running.communicate(), running.returncode) == (("", ""), 130)
        os.close(writer)
    finally:
        running.kill()


def _once_it_is_read(pipe: Path) -> int:
    until = time.monotonic() + 200
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert time.monotonic() < until, "nobody reads"
            time.sleep(0.05)


@pytest.mark.parametrize("verb", ["delete", "undo"])
def test_ctrl_c_at_a_question_ends_the_command(cli: Any, at_terminal: Callable[..., Any], verb: str) -> None:
    """The question blocks the loop that was to hear of it: the first Ctrl-C did nothing (CONTRACT §1)."""
    made = json.loads(cli("run", "-m", cli.script("done"), "--json", "hi").stdout)
    terminal = at_terminal("session", verb, made["session"])
    terminal.expect("? [y/N]: ")
    terminal.wait_until_it_waits()
    terminal.interrupt()
    assert terminal.end(within=30) == 130
    assert terminal.text.endswith("? [y/N]: \n")
    assert cli("session", "show", made["session"]).returncode == 0


HANGUP = """
import asyncio, os, signal, sys, time
from moryflow.cli.terminal import interrupts
interrupts.HANGUP_SECONDS = 0.2

async def work():
    interrupts.stop_on_signals(lambda: print("stopped", flush=True))
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)
    {then}

asyncio.run(work())
os.kill(os.getpid(), signal.SIGHUP)
"""


@pytest.mark.parametrize(
    ("then", "ignored", "code", "printed"),
    [
        ("time.sleep(60)", False, 130, ""),  # a plugin keeps the loop from running
        ("await asyncio.sleep(0)", False, 0, "stopped\n"),  # the last SIGHUP comes when the loop is closed
        ("await asyncio.sleep(0.5)", True, 0, ""),  # under nohup
    ],
)
def test_a_closed_terminal_ends_a_program_once_and_certainly(then: str, ignored: bool, code: int, printed: str):
    """SIGHUP comes several times and counts as one; nobody can press Ctrl-C any more where the loop is stuck (invariant 9)."""
    program = HANGUP.format(then=then)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (done.returncode, done.stdout, done.stderr) == (code, printed, "")

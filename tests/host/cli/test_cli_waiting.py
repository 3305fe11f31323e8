"""``--wait``: a prompt to a busy session stands in line instead of being refused."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from moryflow import open_host
from moryflow.store import SessionBusy


def begun(cli: Any) -> tuple[str, Any]:
    """Return a session and the process that works in it until it is told to end."""
    first = json.loads(cli("run", "-m", cli.script("ok"), "one", "--json").stdout)["session"]
    (cli.vault.parent / "slow.json").write_text(json.dumps([{"text": "slow", "delay": 600}]), "utf-8")
    slow = f"script:{cli.vault.parent / 'slow.json'}"
    running = start(cli, "run", "-r", first, "-m", slow, "two", "--output", "stream-json")
    for line in running.stdout:
        if '"turn.start"' in line:
            return first, running
    raise AssertionError(running.stderr.read())


def start(cli: Any, *arguments: str) -> Any:
    """Begin a command to which nothing is piped in."""
    return cli.start(*arguments, stdin=subprocess.DEVNULL)


def end(running: Any) -> None:
    """Stop the turn that runs; what it has is kept."""
    running.send_signal(signal.SIGINT)
    running.communicate()


@pytest.mark.parametrize("flags", [["-c"], ["-r", "ID"]])
def test_a_prompt_waits_for_its_turn(cli: Any, flags: list[str]) -> None:
    """It says for whom it waits, and runs when the other turn has ended (ARCHITECTURE §5)."""
    session, running = begun(cli)
    flags = [session if flag == "ID" else flag for flag in flags]
    waiting = start(cli, "run", *flags, "--wait", "three", "-m", cli.script("at last"))
    told = waiting.stderr.readline()
    assert f"session {session} is in use by process {running.pid}; waiting (Ctrl-C gives up)" in told
    end(running)
    out, err = waiting.communicate()
    assert (waiting.returncode, out) == (0, "at last\n"), err
    assert cli.prompts(session) == ["one", "two", "three"]


def test_waiting_has_a_limit_and_can_be_given_up(cli: Any) -> None:
    """After SECONDS it is busy, exit code 1; Ctrl-C and SIGTERM end it with 130. Nothing was begun (CONTRACT §1)."""
    session, running = begun(cli)
    late = cli("run", "-c", "--wait=0.3", "-m", cli.script("no"), "three")
    assert (late.returncode, late.stdout) == (1, "")
    assert "waiting for at most 0.3 s" in late.stderr and "next: wait for it to end" in late.stderr
    for number in (signal.SIGINT, signal.SIGTERM):
        waiting = start(cli, "run", "-c", "--wait", "-m", cli.script("no"), "four")
        assert "waiting" in waiting.stderr.readline()
        waiting.send_signal(number)
        out, err = waiting.communicate()
        assert (waiting.returncode, out, err) == (130, "", "moryflow: gave up waiting; nothing was begun\n")
    assert running.poll() is None
    end(running)
    assert cli.prompts(session) == ["one", "two"]


async def test_what_the_other_changed_meanwhile_holds(tmp_path: Path) -> None:
    """Who waited goes on with the agent, mode and messages that are there when the turn comes (ARCHITECTURE §5)."""
    (tmp_path / "vault").mkdir()
    async with await open_host(tmp_path / "home", environ={}) as one, await open_host(tmp_path / "home", environ={}) as two:
        first = await one.new_session(tmp_path / "vault", model="script:none")
        await first.keep()
        second = await two.resume(tmp_path / "vault", first.id)
        with pytest.raises(SessionBusy):
            await second.keep(wait=0.1)
        waiting = asyncio.create_task(second.keep(wait=30))
        await asyncio.sleep(0.1)
        await first.set_agent("plan")
        await first.set_mode("full_access")
        assert not waiting.done()
        first.release()
        await waiting
        assert (second.agent.id, second.mode, len(await two.store.path(second.id))) == ("plan", "full_access", 2)

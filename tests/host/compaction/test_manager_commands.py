"""What a person asks for: compact, undo, context, show."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys

import forked_command
import pytest
from compaction_paths import ANSWERED, calls, compact, kinds, result, says, talk, texts, user
from moryflow.runtime.session_commands import compact_now, undo
from moryflow.store.records import effective
from moryflow_sdk import ConfigError

ANSWER = {"text": "the answer"}


async def test_a_person_compacts_with_a_focus_and_the_next_turn_does_not_do_it_again(bench):
    """On demand, also when compaction is off; the prepared state is the active node itself (S0.27, S0.29, D59)."""
    bench.config(mode="off")
    async with bench.host(compact(), ANSWER, window=4000) as host:
        session = await bench.session(host, talk(14, 1000))
        done = await compact_now(host, session, "the parser")
        assert done["tokens_after"] < done["tokens_before"]
        assert "the parser" in host.scripted.requests[0].messages[0].text
    bench.config()
    async with bench.host(ANSWER, window=4000) as host:
        again = await host.resume(bench.vault, session.id)
        await again.prompt("and now?")
        assert [request.purpose for request in host.scripted.requests] == ["main"]


async def test_undoing_shows_everything_again_and_loses_nothing(bench):
    """A void marker: nothing was deleted, nothing after it is lost (S1.6, ARCHITECTURE §5)."""
    async with bench.host(compact(), ANSWER, window=100_000) as host:
        session = await bench.session(host, talk(14, 1000))
        await compact_now(host, session)
        await session.prompt("and now?")
        before = await host.store.path(session.id)
        assert len(texts(before)) < 14
        await undo(session)
        after = await host.store.path(session.id)
        with pytest.raises(ConfigError, match="no compaction"):
            await undo(session)
    assert kinds(after) == [*kinds(before), "marker"]
    assert len(texts(after)) == 30 and texts(after)[-1] == "the answer"


async def test_nothing_to_compact_is_said(bench):
    """A session with one short turn: a sentence, no node, no run (S0.29)."""
    async with bench.host() as host:
        session = await bench.session(host, talk(1, 100))
        with pytest.raises(ConfigError, match="nothing to compact"):
            await compact_now(host, session)
        assert [run.purpose for run in await host.store.runs(session.id)] == []


def run(bench, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(bench.home.parent), "MORYFLOW_HOME": str(bench.home)}
    command = [sys.executable, "-m", "moryflow", *arguments]
    return forked_command.run(command, env=environ, cwd=bench.vault, text=True)


def cli(bench, *arguments: str) -> str:
    done = run(bench, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_the_commands_of_the_shell(bench):
    """`session compact`, `context`, `show` with a divider, `undo-compaction` (S0.26, S0.29, D14)."""
    async with bench.host() as host:
        session = await bench.session(host, talk(14, 1000))
    script = bench.home / "script.json"
    script.write_text(json.dumps([{"text": "## Goal\nMend the parser.", "purpose": "compact"}]))
    before = json.loads(cli(bench, "session", "context", "-m", f"script:{script}", "--json"))
    done = json.loads(cli(bench, "session", "compact", "-m", f"script:{script}", "--json"))
    after = json.loads(cli(bench, "session", "context", "-m", f"script:{script}", "--json"))
    assert done["session"] == session.id
    assert after["parts"]["summary"] > 0 and after["parts"]["turns"] < before["parts"]["turns"]
    assert after["parts"]["system"] > 0 and after["parts"]["tools"] > 0 and after["plugins"]["files"] > 0
    assert after["window"] == 128_000 and after["request_tokens"] < before["request_tokens"]
    assert "──── compacted here" in cli(bench, "session", "show")
    assert "a summary is made above" in cli(bench, "session", "context", "-m", f"script:{script}")
    cli(bench, "session", "undo-compaction")
    assert json.loads(cli(bench, "session", "context", "--json"))["parts"]["summary"] == 0


@pytest.mark.parametrize(
    ("text", "model", "code", "told"),
    [
        ("## Goal\nMend it.", "nosuch", 0, "moryflow: compaction.model is not used: unknown model 'nosuch'\n"),
        ("", None, 2, "not compacted: the summary is empty\n  next: try another model: moryflow session compact -m MODEL\n"),
    ],
)
async def test_what_is_to_be_known_of_a_summary_is_said(bench, text, model, code, told):
    """What an event says in remarks, a person who asked reads too; a refusal has a next command (S0.29, CONTRACT §1)."""
    async with bench.host() as host:
        await bench.session(host, talk(14, 1000))
    script = bench.home / "script.json"
    script.write_text(json.dumps([{"text": text, "purpose": "compact"}] * 3))
    inline = json.dumps({"agents": {"runtime": {"compaction": {"model": model}}}} if model else {})
    done = run(bench, "session", "compact", "-m", f"script:{script}", "--config", inline)
    assert done.returncode == code and told in done.stderr


async def test_every_name_can_be_listed_by_the_command_that_a_summary_names(bench):
    """384 files were written: the summary shows what has room and names the command that shows them all (S1.13)."""
    bench.config(protectedTurns=1, keepRecentTokens=1)
    names = [f"src/a_long_folder_name/file_{number}.py" for number in range(384)]
    made = [
        item
        for number, name in enumerate(names)
        for item in (calls(f"c{number}", tool="write", path=name), result(f"c{number}", tool="write", size=40))
    ]
    async with bench.host(ANSWERED, window=16_000) as host:
        session = await bench.session(host, [user("write"), *made, says("done"), *talk(2, 10)])
        await compact_now(host, session)
        head, _ = effective(await host.store.path(session.id))
    summary = head.payload["summary"]
    shown = [name for name in names if f"- {name} (write)\n" in summary]
    assert 0 < len(shown) < 384 and shown == names[-len(shown) :]
    left_out, command = re.search(r"\((\d+) older lines are left out here; all of it: moryflow (.*)\)", summary).groups()
    assert int(left_out) == 384 - len(shown)
    listed = (await asyncio.to_thread(run, bench, *command.split())).stdout.splitlines()
    assert all(f"- {name} (write)" in listed for name in names)


def test_the_agent_that_writes_summaries_can_be_looked_at(bench):
    """Its prompt can be read; it is in no list and cannot be chosen (S1.16)."""
    shown = run(bench, "agent", "show", "default_compact_agent").stdout
    assert "The conversation is data" in shown and "## Goal" in shown
    assert "default_compact_agent" not in run(bench, "agent", "list", "--all").stdout

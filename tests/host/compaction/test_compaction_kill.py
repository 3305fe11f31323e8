"""Killed at any point of a compaction: all of it is there or nothing, and the next turn works."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from compaction_paths import compact, kinds, path_of, talk

ANSWER = {"text": "the answer"}

KILLERS = {
    "the plan": "@hookimpl\ndef compaction(plan):\n    kill()\n",
    "pending": "@hookimpl\ndef event(event):\n    if event.data.get('state') == 'pending': kill()\n",
    "the summary": "@hookimpl\ndef chat_params(params, turn):\n    if turn.purpose == 'compact': kill()\n",
    "done": "@hookimpl\ndef event(event):\n    if event.data.get('state') == 'done': kill()\n",
}


@pytest.mark.parametrize("point", KILLERS)
async def test_kill_9_while_compacting_leaves_a_whole_session(bench, point):
    """Killed while planning, writing, applying: all of it or nothing, and the session goes on (D21, invariant 6)."""
    async with bench.host() as host:
        session = await bench.session(host, talk(14, 1000))
    head = "import os, signal\ndef kill():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    bench.plugin("killer", head + KILLERS[point])
    script = bench.home / "script.json"
    script.write_text(json.dumps([{"text": "## Goal\nMend.", "purpose": "compact"}, {"text": "done"}]))
    bench.config(outputBudget=120_000)
    environ = {"PATH": os.environ["PATH"], "HOME": str(bench.home.parent), "MORYFLOW_HOME": str(bench.home)}
    command = [sys.executable, "-m", "moryflow", "run", "-c", "-m", f"script:{script}", "and now?"]
    done = await asyncio.to_thread(
        subprocess.run, command, env=environ, cwd=bench.vault, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    (bench.home / "plugins" / "killer.py").unlink()
    bench.config()
    async with bench.host(ANSWER, window=100_000) as host:
        again = await host.resume(bench.vault, session.id, model="scripted")
        result = await again.prompt("go on")
        path = await host.store.path(session.id)
    assert result.text == "the answer"
    assert kinds(path).count("compaction") == (1 if point == "done" else 0)
    assert kinds(path)[:28] == kinds(path_of(*talk(14)))


CHILD = Path(__file__).with_name("kill_in_commit.py")
STORED = {"before BEGIN": 0, "after the node": 0, "before COMMIT": 0, "after COMMIT": 1}


@pytest.mark.parametrize("point", STORED)
async def test_kill_9_inside_the_commit_of_a_compaction(bench, point):
    """Before it begins, between its statements, before and after it is made true: nothing is half there (D21, invariant 6)."""
    async with bench.host() as host:
        session = await bench.session(host, talk(14, 1000))
        before = await host.store.path(session.id)
    environ = {"PATH": os.environ["PATH"], "HOME": str(bench.home.parent), "MORYFLOW_HOME": str(bench.home)}
    command = [sys.executable, str(CHILD), str(bench.vault), session.id, point]
    done = await asyncio.to_thread(subprocess.run, command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with closing(sqlite3.connect(bench.home / "sessions.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    async with bench.host(*([] if STORED[point] else [compact()]), ANSWER) as host:
        again = await host.resume(bench.vault, session.id)
        left = await host.store.path(session.id)
        assert left[: len(before)] == before and kinds(left).count("compaction") == STORED[point]
        result = await again.prompt("go on")
        path = await host.store.path(session.id)
        runs = await host.store.runs(session.id)
    assert result.text == "the answer" and path[: len(left)] == left and kinds(path).count("compaction") == 1
    assert {run.state for run in runs} == {"ended"}

"""What was shown is compared with what is there before it runs, however soon the answer came."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from moryflow import RunOptions
from moryflow.base.builtins import BUILTINS


@pytest.fixture
def bench(bench):
    """The bench with every built-in plugin, and no sandbox to hide what went wrong."""
    bench = replace(bench, builtins=BUILTINS)
    bench.config(permission={"rules": [{"domain": "bash", "pattern": "sandbox:commands", "decision": "deny"}]})
    for name, text in (("a.txt", "open"), ("b.txt", "other"), (".env", "SECRET=1")):
        (bench.vault / name).write_text(text)
    (bench.vault / "notes").symlink_to("a.txt")
    return bench


def turn_link(bench, goal):
    link = bench.vault / "notes"
    link.unlink()
    link.symlink_to(goal)


def when_asked(act, times=1):
    """Return an observer that acts while a question stands, before it is answered; at the first `times` questions."""
    asked = []

    def observe(_host, _session, event):
        if event.type == "permission.asked":
            asked.append(event)
            if len(asked) <= times:
                act()

    return observe


CAT = ("bash", {"command": "cat notes"})


CHANGED = "has changed since the question was answered"


@pytest.mark.parametrize("reply", ["once", "always"])
@pytest.mark.parametrize("goal", [".env", "b.txt"])
async def test_a_link_that_is_turned_while_the_question_stands_is_not_followed(bench, goal, reply):
    """The answer was about another file; a rule that denies this one is no other case (R12, R18, R22)."""
    rules = [{"domain": "bash", "pattern": "sandbox:commands", "decision": "deny"}]
    bench.config(permission={"rules": [*rules, {"domain": "read", "pattern": "vault:/b.txt", "decision": "deny"}]})
    outcome = await bench.run(bench.calls(CAT), replies=[reply], during=when_asked(lambda: turn_link(bench, goal)))
    assert len(outcome.named("permission.asked")) == 1
    [result] = outcome.tools()
    assert result["status"] == "denied" and CHANGED in result["output"] and "SECRET" not in result["output"]


async def test_a_folder_that_is_swapped_while_the_question_stands_is_not_worked_in(bench):
    """The folder of a command is part of what was agreed to (R34)."""
    (bench.vault / "sub").mkdir()
    (bench.vault / "evil").mkdir()

    def swap():
        (bench.vault / "sub").rename(bench.vault / "old")
        (bench.vault / "evil").rename(bench.vault / "sub")

    call = ("bash", {"command": "touch here", "workdir": "sub"})
    outcome = await bench.run(bench.calls(call), replies=["once"], during=when_asked(swap))
    assert CHANGED in outcome.tools()[0]["output"] and not list(bench.vault.rglob("here"))


async def test_a_file_that_is_replaced_while_the_question_stands_is_not_written(bench):
    """Tools that open files by themselves say so too, instead of failing (R12, R22)."""
    bench.config(permission={"rules": [{"domain": "edit", "pattern": "*", "decision": "ask"}]})

    def replaced():
        (bench.vault / "new").write_text("open")
        (bench.vault / "new").rename(bench.vault / "a.txt")

    call = ("write", {"path": "a.txt", "content": "x"})
    outcome = await bench.run(bench.calls(("read", {"path": "a.txt"}), call), replies=["once"], during=when_asked(replaced))
    assert CHANGED in outcome.tools()[1]["output"] and (bench.vault / "a.txt").read_text() == "open"


async def test_an_unchanged_call_is_asked_about_once(bench):
    """The second look costs nobody a question, whatever was answered and with several gates asking (S0.44)."""
    for reply in ("once", "always"):
        outcome = await bench.run(bench.calls(CAT), replies=[reply])
        assert len(outcome.named("permission.asked")) == 1 and outcome.tools()[0]["output"].startswith("open")


CHANGING = """
    count = []

    @hookimpl
    def tool_gate(call):
        count.append(call.id)
        return Ask(f"this is question {len(count)}")
"""


async def test_a_gate_of_a_plugin_is_asked_once(bench):
    """A gate that counts, or words its question anew each time, is no reason to ask again (invariant 1)."""
    bench.plugin("counting", CHANGING)
    outcome = await bench.run(bench.calls(CAT), replies=["once"])
    assert len(outcome.named("permission.asked")) == 1 and outcome.tools()[0]["status"] == "ok"


async def test_an_answer_from_another_process_is_compared_too(bench):
    """``approval reply`` answers a turn that waits; what was turned meanwhile is not read (D65, R12)."""
    answering = []

    def answer(approval, reply):
        command = [sys.executable, "-m", "moryflow", "approval", "reply", approval, reply]
        env = {"PATH": os.environ["PATH"], "MORYFLOW_HOME": str(bench.home), "HOME": str(bench.home.parent)}
        return subprocess.run(command, env=env, cwd=bench.vault, capture_output=True, text=True, check=False)

    def observe(event):
        if event.type == "permission.asked":
            turn_link(bench, ".env")
            work = asyncio.get_running_loop().run_in_executor(None, answer, event.data["approval_id"], "once")
            answering.append(work)

    async with bench.host() as host:
        host.bus.subscribe(observe)
        session = await host.new_session(bench.vault, model=bench.script(*bench.calls(CAT)))
        await session.prompt("go", options=RunOptions(on_ask="prompt"))
        for done in await asyncio.gather(*answering):
            assert done.returncode == 0, done.stderr
        results = [node.payload for node in await host.store.path(session.id) if node.kind == "tool"]
    assert len(answering) == 1 and results[0]["status"] == "denied"


def helper(bench, *turns):
    """Write a sub-agent that has a script of its own."""
    script = bench.home.parent / "helper.json"
    script.write_text(json.dumps(turns))
    file = bench.home / "agents" / "helper.md"
    file.parent.mkdir(mode=0o700, exist_ok=True)
    head = {"id": "helper", "mode": "subagent", "model": f"script:{script}"}
    file.write_text(f"---\n{json.dumps(head)}\n---\nHelp.\n", encoding="utf-8")
    file.chmod(0o600)


@pytest.mark.parametrize("background", [False, True])
async def test_an_answer_for_a_child_is_compared_too(bench, background):
    """The calls of sub-agents, also in the background, are held to what was shown (D66, R12)."""
    helper(bench, *bench.calls(CAT))
    asked = []
    async with bench.host() as host:

        def observe(event):
            if event.type == "permission.asked":
                turn_link(bench, ".env")
                asked.append(event.data)
                asyncio.get_running_loop().create_task(host.approvals.reply(event.data["approval_id"], "once"))

        host.bus.subscribe(observe)
        task = ("task", {"agent": "helper", "prompt": "x", "background": background})
        session = await host.new_session(bench.vault, model=bench.script(*bench.calls(task)))
        await session.prompt("go", options=RunOptions(on_ask="prompt"))
        await session.children.settled()
        [child] = [row for row in await host.store.sessions(9, purpose=None) if row.parent]
        results = [node.payload for node in await host.store.path(child.id) if node.kind == "tool"]
    assert len(asked) == 1
    assert results[0]["status"] == "denied"


async def test_an_answer_that_comes_later_holds_for_the_folder_that_was_shown(bench):
    """A call that waited for its answer over the end of its turn is judged anew, with its folder (D65, R34)."""
    (bench.vault / "sub").mkdir()
    call = ("bash", {"command": "touch here", "workdir": "sub"})
    async with bench.host() as host:
        session = await host.new_session(bench.vault, model=bench.script(*bench.calls(call)))
        await session.prompt("go", options=RunOptions(on_ask="fail"))
        [question] = await host.store.approvals(state="pending")
        await host.approvals.reply(question.id, "once")
        (bench.vault / "sub").rename(bench.vault / "old")
        (bench.vault / "sub").symlink_to("old")
        await session.resume(RunOptions(on_ask="fail"))
        [again] = await host.store.approvals(state="pending")
        assert again.id != question.id
        await host.approvals.reply(again.id, "once")
        await session.resume(RunOptions(on_ask="fail"))
    assert (bench.vault / "old/here").exists()

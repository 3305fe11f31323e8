"""How often a step waits for the disk: what it may not save, and what it does."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from moryflow.kernel import turn as batch
from moryflow.store.sqlite.session_lock import SqliteSessionLock


@pytest.fixture
def commits(monkeypatch):
    """Count the commits of a test; calls that only read have all the time they need."""
    made = []
    commit = SqliteSessionLock.commit

    async def counted(self, what):
        made.append(what)
        return await commit(self, what)

    monkeypatch.setattr(SqliteSessionLock, "commit", counted)
    monkeypatch.setattr(batch, "BATCH_TIME", 60.0)
    return made


def bash(*commands):
    """Return an answer that calls bash once for each command."""
    return {"calls": [{"name": "bash", "arguments": {"command": command}} for command in commands]}


def reads(*paths):
    """Return an answer that reads each path."""
    return {"calls": [{"name": "read", "arguments": {"path": path}} for path in paths]}


STEPS = {
    "one reading call": (reads("a.txt"), 1),
    "three parallel reads": (reads("a.txt", "b.txt", "c.txt"), 1),
    "one effectful call": (bash("echo 1"), 2),
    "five bash calls": (bash(*(f"echo {number}" for number in range(5))), 6),
    "a read between two bash calls": (
        {"calls": bash("echo 1")["calls"] + reads("a.txt")["calls"] + bash("echo 2")["calls"]},
        3,
    ),
    "no tool of that name": ({"calls": [{"name": "nothing", "arguments": {}}]}, 1),
}


@pytest.mark.parametrize("name", STEPS)
async def test_a_step_costs_one_commit_for_each_call_with_an_effect_and_one_more(rig, commits, name):
    """A result is committed with the next start: n calls cost n + 1 commits, and reading costs none (ARCHITECTURE §5)."""
    for file in "abc":
        (rig.vault / f"{file}.txt").write_text(file)
    rig.allow_all()
    answer, expected = STEPS[name]
    starts = []

    def watch(_host, event):
        if event.type == "step.start":
            starts.append(len(commits))

    result, _ = await rig.run(answer, answer, {"text": "done"}, watch=watch)
    assert (result.end_reason, result.steps) == ("completed", 3)
    assert [later - earlier for earlier, later in pairwise(starts)] == [expected, expected]


async def test_every_start_is_on_the_disk_before_its_call_runs(rig, commits):
    """What may be saved is not the start: a process killed inside a call knows that it had begun (invariant 6, S4.19)."""
    rig.allow_all()
    marks = [rig.vault / f"mark{number}" for number in range(3)]
    await rig.run(bash(*(f"touch {mark.name}" for mark in marks)), {"text": "done"})
    begun = [{row.id for row in commit.calls if row.state == "running"} for commit in commits]
    ended = [{row.id for row in commit.calls if row.state == "completed"} for commit in commits]
    assert [len(calls) for calls in begun if calls] == [1, 1, 1]
    assert all(calls.isdisjoint(others) for calls, others in zip(begun, ended, strict=True))
    assert all(mark.exists() for mark in marks)


async def test_a_question_costs_one_commit_more(rig, commits):
    """It is stored before anybody is asked, for it may be answered from elsewhere (D65)."""
    starts = []

    def watch(host, event):
        if event.type == "step.start":
            starts.append(len(commits))
        if event.type == "permission.asked":
            replies.append(asyncio.ensure_future(host.approvals.reply(event.data["approval_id"], "once")))

    replies = []
    rig.config(permission={"rules": [{"domain": "bash", "pattern": "*", "decision": "ask"}]})
    result, _ = await rig.run(bash("echo 1"), {"text": "done"}, watch=watch, on_ask="prompt")
    assert (result.end_reason, len(replies)) == ("completed", 1)
    assert starts[1] - starts[0] == 3

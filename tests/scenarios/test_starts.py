"""When the start of a call is on the disk: before anything can have an effect, and later for what only reads."""

from __future__ import annotations

import pytest
from moryflow.store import StoreError
from moryflow.store.sqlite.session_lock import SqliteSessionLock

TOOLS = """
    import sqlite3, time
    from pathlib import Path

    def seen(seconds):
        time.sleep(seconds)
        with sqlite3.connect(f"file:{DATABASE}?mode=ro", uri=True) as found:
            return ",".join(state for (state,) in found.execute("SELECT state FROM calls ORDER BY id")) or "nothing"

    @tool(domain="read", targets=lambda args: file_target("a.md"), parallel_safe=True)
    def look(seconds: float) -> str:
        "Read what the disk knows."
        return seen(seconds)

    @tool(domain="read", targets=lambda args: file_target("a.md"))
    def look_alone(seconds: float) -> str:
        "Read what the disk knows, and be no such tool that may run beside others."
        return seen(seconds)

    @tool(domain="edit", targets=lambda args: file_target("a.md", "edit"), parallel_safe=True)
    def change(seconds: float) -> str:
        "Pretend to change a file."
        return seen(seconds)

    @tool(domain="read", targets=lambda args: [file_target("a.md"), file_target("b.md", "edit")], parallel_safe=True)
    def copy(seconds: float) -> str:
        "Pretend to copy a file."
        return seen(seconds)

    @tool(domain="read", targets=lambda args: file_target("a.md"), parallel_safe=True)
    def speak(ctx: ToolContext) -> str:
        "Read, and say so meanwhile."
        ctx.progress("half")
        return seen(0)

    @hookimpl
    def tools(): return [look, look_alone, change, copy, speak]
"""


@pytest.fixture
def looking(rig):
    """A rig with tools that say what is on the disk while they run."""
    rig.allow_all()
    rig.plugin("eyes", TOOLS.replace("{DATABASE}", str(rig.home / "sessions.db")))
    (rig.vault / "a.md").write_text("a")
    return rig


def outputs(rig):
    return [node.payload["output"] for node in rig.path if node.kind == "tool"]


@pytest.mark.parametrize("name", ["look_alone", "change", "copy"])
async def test_a_call_that_may_have_an_effect_is_on_the_disk_before_it_runs(looking, name):
    """Cut off in it, it is never silently run twice (S4.19, S2.15)."""
    await looking.run(looking.call(name, seconds=0), {"text": "done"})
    assert outputs(looking) == ["running"]


async def test_the_start_and_the_result_of_a_call_that_only_reads_are_one_commit(looking):
    """Nothing is lost with it, and a step is shorter (D68)."""
    _, events = await looking.run(looking.call("look", seconds=0), {"text": "done"})
    assert outputs(looking) == ["nothing"]
    assert [call.state for call in looking.calls] == ["completed"]
    told = [event.data["state"] for event in events if event.type in ("tool.start", "tool.result")]
    assert told == ["pending", "running", "completed"]


async def test_a_call_that_reads_for_long_is_on_the_disk_while_it_does(looking):
    """A search through a large folder is seen by who looks, and marked when it is cut off (S1.6)."""
    await looking.run(looking.call("look", seconds=0.5), {"text": "done"})
    assert outputs(looking) == ["running"]


async def test_a_call_that_reads_beside_one_that_changes_waits_for_the_disk(looking):
    """Calls that run together begin together."""
    both = {"calls": [{"name": "look", "arguments": {"seconds": 0}}, {"name": "change", "arguments": {"seconds": 0}}]}
    await looking.run(both, {"text": "done"})
    assert outputs(looking) == ["running,running"] * 2


async def test_a_tool_that_may_speak_is_announced_before_it_does(looking):
    """Nobody hears of what it does before they heard of it (S2.10)."""
    _, events = await looking.run(looking.call("speak"), {"text": "done"})
    assert outputs(looking) == ["running"]
    told = [event.type for event in events if event.type in ("tool.start", "tool.delta", "tool.result")]
    assert told == ["tool.start", "tool.start", "tool.delta", "tool.result"]


@pytest.mark.parametrize("name", ["look", "change"])
async def test_a_full_disk_leaves_no_result_without_its_answer(looking, name):
    """What could not be stored is stored whole at the end of the turn, or not at all (invariant 6)."""
    async with looking.host() as host:
        session = await host.new_session(looking.vault, model=looking.script(looking.call(name, seconds=0), {"text": "done"}))
        whole, failed = SqliteSessionLock.commit, []

        async def commit(hold, wanted):
            if any(node.kind == "assistant" for node in wanted.nodes) and not failed:
                failed.append(wanted)
                raise StoreError("the disk is full", code="no_space")
            return await whole(hold, wanted)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SqliteSessionLock, "commit", commit)
            result = await session.prompt("go")
        path = await host.store.path(session.id)
    assert failed and result.end_reason == "host_error"
    calls = [call["id"] for node in path if node.kind == "assistant" for call in node.payload["calls"]]
    assert [node.payload["call_id"] for node in path if node.kind == "tool"] == calls


ASKING = """
    @tool(domain="read", targets=lambda args: file_target("a.md"))
    async def asks(ctx: ToolContext) -> str:
        "Ask in the middle."
        await ctx.ask(Ask("really?"))
        return "went on"

    @hookimpl
    def tools(): return [asks]
"""


async def test_a_question_of_a_body_that_nobody_may_answer_ends_the_turn(rig):
    """A body that has begun cannot wait for another day; the call is denied, and the turn says why it ended (S0.62, R4)."""
    rig.allow_all()
    rig.plugin("asking", ASKING)
    (rig.vault / "a.md").write_text("a")
    result, _ = await rig.run(rig.call("asks"), {"text": "unreached"}, on_ask="fail")
    assert result.end_reason == "approval_required"
    [tool] = [node.payload for node in rig.path if node.kind == "tool"]
    assert tool["status"] == "denied" and "really?" in tool["output"]
    async with rig.host() as host:
        assert await host.store.approvals(state="pending") == []

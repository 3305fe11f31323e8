"""The counts of a session: each falls out of its records, and each can be wrong."""

from __future__ import annotations

import asyncio

from moryflow import RunOptions
from moryflow.runtime.session_stats import collect_stats
from moryflow.store import Commit, NewNode

STUB = """
    @tool(name="files__mark", domain="mcp", targets=lambda args: [mcp_target("files", "mark")])
    def stub() -> str:
        \"\"\"Stand where a tool of an MCP server stands.\"\"\"
        return "m" * 400_000

    @hookimpl
    def tools():
        return [stub]
"""


async def test_every_count_falls_out_of_the_records(rig):
    """Refused and asked calls, waits, shares of sub-agents, instructions and servers, searches, events (S2.20)."""
    rig.plugin("server", STUB)
    rig.config(permission={"rules": [{"domain": "mcp", "pattern": "*", "decision": "allow"}]})
    (rig.vault / "AGENTS.md").write_text("Be brief.")
    (rig.vault / "a.md").write_text("needle")
    calls = [
        {"name": "grep", "arguments": {"pattern": "needle"}},
        {"name": "grep", "arguments": {"pattern": "nowhere"}},
        {"name": "glob", "arguments": {"pattern": "*.md"}},
        {"name": "bash", "arguments": {"command": "ls"}},
        {"name": "write", "arguments": {"path": ".git/hooks/x", "content": "x"}},
        {"name": "files__mark", "arguments": {}},
    ]
    async with rig.host() as host:

        def answer(event):
            if event.type == "permission.asked":
                reply = "once" if event.data["domain"] == "bash" else "reject"
                asyncio.get_running_loop().create_task(host.approvals.reply(event.data["approval_id"], reply))

        host.bus.subscribe(answer)
        session = await host.new_session(rig.vault, model=rig.script({"calls": calls}, {"text": "ok"}))
        await session.prompt("go", options=RunOptions(on_ask="prompt"))
        stats = await collect_stats(host.store, session.row)
    assert stats["intercepted"] == {"bash": {"asked": 1}, "write": {"refused": 1, "asked": 1}}
    assert stats["questions"]["answers"] == {"once": 1, "reject": 1}
    assert stats["searches"] == {"hits": 2, "misses": 1}
    assert stats["instructions"]["files"] == 1 and 0 < stats["instructions"]["share"] <= 1
    assert (stats["mcp"]["calls"], stats["mcp"]["cut"]) == (1, 1) and 0.5 < stats["mcp"]["share"] < 1
    assert stats["outputs"] == {"shown": 6, "cut": 1}
    assert stats["events"]["permission.asked"] == 2 and stats["events"]["tool.result"] == 6


async def test_turns_after_a_summary_are_counted_by_how_they_ended(rig):
    """Whether the task went on behind a summary, and how often one was taken back (S2.20)."""
    async with rig.host() as host:
        script = rig.script({"text": "one"}, {"text": "two"}, {"calls": [{"name": "nothing", "arguments": {}}]}, {"text": "x"})
        session = await host.new_session(rig.vault, model=script)
        await session.prompt("before")
        path = await host.store.path(session.id)
        payload = {"summary": "s", "first_kept_node_id": path[-1].id, "tokens_before": 9, "details": {}}
        hold = await host.store.hold(session.id)
        done = await hold.commit(Commit(nodes=[NewNode("compaction", payload)]))
        hold.release()
        await asyncio.sleep(0.005)
        await session.prompt("goes on")
        await session.prompt("does not", options=RunOptions(max_steps=1))
        hold = await host.store.hold(session.id)
        await hold.commit(Commit(nodes=[NewNode("marker", {"void": done.nodes[0].id})]))
        hold.release()
        stats = await collect_stats(host.store, session.row)
    assert stats["summaries"] == {"made": 1, "undone": 1, "turns_after": 2, "completed_after": 1}

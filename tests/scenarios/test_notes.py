"""What plugins say about a session: notes and titles, from whatever kind of function and thread."""

from __future__ import annotations

import pytest

TOOLS = """
    services = ("info",)

    @tool(domain="tool")
    {kind} remark(text: str, ctx: ToolContext) -> str:
        {call}ctx.info.note(text, title="remark")
        {call}ctx.info.set_title("named by a tool")
        return "said"

    @hookimpl
    def tools():
        return [remark]

    @hookimpl
    {kind} tool_after(call, result, turn: Turn):
        {call}turn.info.note(f"after {{call.tool}}", title="hook")
"""


@pytest.mark.parametrize(("kind", "call"), [("def", ""), ("async def", "await "), ("async def", "")])
async def test_a_plain_function_may_leave_a_note(rig, recwarn, kind, call):
    """`note` and `set_title` work in plain tools and hooks and in asynchronous ones, awaited or not (ARCHITECTURE §4)."""
    rig.plugin("remarks", TOOLS.format(kind=kind, call=call))
    rig.allow_all()
    result, events = await rig.run(rig.call("remark", text="look here"), {"text": "done"})
    assert result.end_reason == "completed", result
    assert [event for event in events if event.type == "plugin.failed"] == []
    notes = [(node.payload["title"], node.payload["text"]) for node in rig.path if node.kind == "note"]
    assert notes == [("remark", "look here"), ("hook", "after remark")]
    kinds = [node.kind for node in rig.path]
    assert kinds == ["user", "assistant", "tool", "note", "note", "assistant"]
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]
    async with rig.host() as host:
        (row,) = await host.store.sessions()
        assert row.title == "named by a tool"


async def test_no_note_of_a_thread_is_lost(rig):
    """A thread adds notes while steps begin and the turn ends; each of them is there once (ARCHITECTURE §4, invariant 6)."""
    rig.plugin(
        "threads",
        """
        import threading
        import time
        services = ("info",)
        TOLD = []

        def chatter(info, done):
            while not done.is_set() and len(TOLD) < 400:
                TOLD.append(len(TOLD))
                info.note(str(TOLD[-1]))
                time.sleep(0.0005)

        @tool(domain="tool", parallel_safe=False)
        def begin(ctx: ToolContext) -> str:
            done = threading.Event()
            threading.Thread(target=chatter, args=(ctx.info, done), daemon=True).start()
            threading.Timer(0.3, done.set).start()
            return "begun"

        @tool(domain="tool")
        def told(number: int) -> str:
            time.sleep(0.02)
            return str(len(TOLD))

        @hookimpl
        def tools():
            return [begin, told]
        """,
    )
    rig.allow_all()
    async with rig.host() as host:
        session = await host.new_session(
            rig.vault, model=rig.script(rig.call("begin"), *[rig.call("told", number=n) for n in range(6)], {"text": "done"})
        )
        assert (await session.prompt("go")).end_reason == "completed"
        id = session.id
    async with rig.host() as host:
        path = await host.store.path(id)
    noted = [int(node.payload["text"]) for node in path if node.kind == "note"]
    answered = [int(node.payload["output"]) for node in path if node.kind == "tool" and node.payload["tool"] == "told"]
    assert noted == list(range(len(noted)))
    assert len(noted) >= answered[-1] > 3


async def test_a_note_that_was_answered_in_its_turn_lets_no_other_follow(rig):
    """`go_on` is about notes that nobody has answered when the turn completes (issue F)."""
    rig.plugin(
        "goes",
        """
        @hookimpl
        def tool_after(call, turn):
            turn.info.note("look again", go_on=True)
    """,
    )
    (rig.vault / "a").write_text("x")
    result, _ = await rig.run(rig.call("read", path="a"), {"text": "seen"}, {"text": "too many"})
    assert (result.end_reason, result.text) == ("completed", "seen")

"""What plugins give that is not what it should be: it costs the one that gave it, and neither the turn nor the host."""

from __future__ import annotations

import pytest

BASE = """
    import asyncio

    class End(BaseException):
        pass

    class Names(type):
        @property
        def __name__(cls):
            raise SystemExit(3)

    class Named(metaclass=Names):
        pass

    class Ends:
        def __str__(self):
            raise SystemExit(3)

    class Looks:
        @property
        def __class__(self):
            raise SystemExit(3)

    class Same(ToolResult):
        def __eq__(self, other):
            raise End

    class Read(ToolResult):
        def __getattribute__(self, name):
            if name == "output":
                raise SystemExit(3)
            return super().__getattribute__(name)

    class Said(ToolError):
        def __str__(self):
            raise SystemExit(3)

    class Agreed(Ask):
        decision: str = "allow"

"""
TOOL = """
    @tool
    async def odd(ctx: ToolContext) -> str:
        "Odd."
        {body}

    @hookimpl
    def tools():
        return [odd]
"""


@pytest.mark.parametrize(
    "body",
    [
        "made = ToolResult(); vars(made).update(output=5); return made",
        "made = ToolResult(output='x'); vars(made).update(images='q'); return made",
        "return ToolResult(output='x', metadata={'o': object()})",
        "ctx.metadata(o=10**5000); return 'x'",
        "return {'a': Ends()}",
        "return Read(output='x')",
        "return Looks()",
        "raise Said('x')",
        "raise ToolError('x', code=7)",
        "raise GeneratorExit",
        "asyncio.current_task().cancel(); await asyncio.sleep(0)",
        "await ctx.ask(Agreed('x')); return 'went on'",
    ],
)
async def test_a_tool_that_gives_what_is_no_result_fails_alone(rig, body):
    """The call is an error that names the plugin; the turn goes on and the session can be read again (invariant 5, S2.14)."""
    rig.allow_all()
    rig.plugin("strange", BASE + TOOL.format(body=body))
    result, events = await rig.run(rig.call("odd"), {"text": "done"})
    assert (result.end_reason, result.text) == ("completed", "done")
    (shown,) = [event.data for event in events if event.type == "tool.result"]
    assert (shown["status"], shown["code"]) == ("error", "tool_failed")
    assert "(plugin strange) failed" in shown["output"]


@pytest.mark.parametrize(
    ("hook", "value"),
    [
        ("tool_after(call, result)", "Same(output='x')"),
        ("tool_after(call, result)", "Named()"),
        ("tool_after(call, result)", "result.replace(metadata={'o': 10**5000})"),
        ("tool_before(call)", "Looks()"),
        ("chat_messages(messages)", "[Looks()]"),
        ("system_blocks(turn)", "[vars(made := SystemBlock(id='x', text='')).update(text=None) or made]"),
        ("system_blocks(turn)", "[Looks()]"),
    ],
)
async def test_a_transform_that_returns_what_breaks_when_it_is_read_is_skipped(rig, hook, value):
    """It is skipped and named, in whatever way its value breaks: transforms fail open (invariant 3)."""
    rig.allow_all()
    rig.plugin("strange", f"{BASE}\n    @hookimpl\n    async def {hook}:\n        return {value}\n")
    (rig.vault / "a.txt").write_text("alpha")
    result, events = await rig.run(rig.call("read", path="a.txt"), {"text": "done"})
    assert (result.end_reason, result.text) == ("completed", "done")
    assert [event.data["plugin"] for event in events if event.type == "plugin.failed"]
    (shown,) = [event.data for event in events if event.type == "tool.result"]
    assert shown["status"] == "ok" and "alpha" in shown["output"]


@pytest.mark.parametrize("hook", ["tool_gate(call)", "tool_decided(call, ruling)"])
async def test_a_gate_that_returns_what_ends_the_program_has_denied(rig, hook):
    """What breaks when a verdict is looked at is a gate that failed: gates fail closed (invariant 3)."""
    rig.allow_all()
    rig.plugin("strange", f"{BASE}\n    @hookimpl\n    def {hook}:\n        return Named()\n")
    (rig.vault / "a.txt").write_text("alpha")
    result, events = await rig.run(rig.call("read", path="a.txt"), {"text": "done"})
    (shown,) = [event.data for event in events if event.type == "tool.result"]
    assert result.end_reason == "completed"
    assert shown["status"] == "denied" and "strange" in shown["output"]


@pytest.mark.parametrize("value", ["turn.session_state", "{1: 2, 'c': 3}", "Ends()", "10**5000"])
async def test_state_that_is_no_json_is_named_and_costs_nobody_the_commit(rig, value):
    """What was stored before stands, the plugin is named once a turn, the turn goes on (invariant 5)."""
    rig.allow_all()
    source = f"""
    @hookimpl
    def tool_gate(call, turn):
        turn.session_state["odd"] = {value}
        return Allow()
    """
    rig.plugin("strange", BASE + source)
    (rig.vault / "a.txt").write_text("alpha")
    read = rig.call("read", path="a.txt")
    result, events = await rig.run(read, read, {"text": "done"})
    assert (result.end_reason, result.text) == ("completed", "done")
    (said,) = [event.data for event in events if event.type == "plugin.failed"]
    assert said["plugin"] == "strange" and "turn.session_state cannot be stored" in said["error"]

"""What a call gets, over gates, modes and answers: two gates of plugins, asked through the one door (invariants 2, 3, 8)."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest
from moryflow import RunOptions

GATES = """
    SAYS = {
        "allow": Allow(),
        "ask": Ask("one"),
        "hard": Ask("two", bypass="never"),
        "deny": Deny("three", bypass="mode"),
        "never": Deny("four", bypass="never"),
    }

    @hookimpl
    def tool_gate(call):
        return SAYS[call.args["%s"]]

    @tool(domain="tool")
    def %s_probe(first: str, second: str) -> str:
        "Say that it ran."
        return "ran"

    @hookimpl
    def tools():
        return [%s_probe]
"""
SAID = ("allow", "ask", "hard", "deny", "never")
ANSWERS = ("once", "always", "reject", "full_access")


def expected(first: str, second: str, mode: str, answer: str) -> tuple[str, int]:
    """Return the status of the result and how often the user is asked: a table that knows nothing of the code."""
    said = {first, second}
    if mode == "full_access":
        said -= {"ask", "deny"}
    if said & {"deny", "never"}:
        return "denied", 0
    if not said & {"ask", "hard"}:
        return "ok", 0
    if answer == "full_access":  # a mode answers only what a mode may lift
        return ("denied" if "hard" in said else "ok"), 1
    return ("denied" if answer == "reject" else "ok"), 1


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("mode", ["agent", "full_access"])
async def test_gates_mode_and_answer_decide_together(rig, mode: str, answer: str) -> None:
    """One question for both gates, answered once; full access answers no question that no mode may lift (S0.41, S0.44)."""
    rig.allow_all()
    for name in ("first", "second"):
        rig.plugin(name, GATES % (name, name, name))
    asked: list[str] = []
    running: set[asyncio.Task] = set()

    async def settle(host, event) -> None:
        if answer != "full_access":
            await host.approvals.reply(event.data["approval_id"], answer)
            return
        [session] = [each for each in host._sessions if each.id == event.session]
        await session.set_mode("full_access")
        await asyncio.sleep(0.05)
        if (await host.store.approval(event.data["approval_id"])).state == "pending":
            await host.approvals.reply(event.data["approval_id"], "reject")

    async with rig.host() as host:

        def hear(event) -> None:
            if event.type == "permission.asked":
                asked.append(event.data["reason"])
                running.add(asyncio.get_running_loop().create_task(settle(host, event)))

        host.bus.subscribe(hear)
        for first, second in product(SAID, repeat=2):
            asked.clear()
            args = {"first": first, "second": second}
            done = await host.call_tool("first_probe", args, vault=rig.vault, mode=mode, options=RunOptions(on_ask="prompt"))
            assert (done.result.status, len(asked)) == expected(first, second, mode, answer), (first, second, asked)

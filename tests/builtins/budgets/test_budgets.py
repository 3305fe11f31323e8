"""Budgets by name: a limit that is reached is a question, on a real host with a model that has a price."""

from __future__ import annotations

import json
from typing import Any

import pytest
from moryflow import RunOptions

PRICED = """
    from moryflow_sdk.support.scripted import ScriptedModel, read_script
    from pathlib import Path

    class Priced(BaseProvider):
        "One dollar for each answer."
        name, prefixes = "priced", ("priced:",)
        scripts = {}

        def find(self, model):
            if not model.startswith("priced:"):
                return None
            prices = {"input_price": 1000, "output_price": 1000}
            return ModelInfo(id=model, name=model[7:], provider="priced", context_window=128_000, **prices)

        async def stream(self, request):
            name = request.model.name
            script = self.scripts.setdefault(name, ScriptedModel(read_script(Path(name)), info=request.model))
            async for event in script.stream(request):
                yield event.replace(usage=Usage(input=1000)) if isinstance(event, Finished) else event

    @hookimpl
    def models():
        return [Priced()]
"""
PING = """
    @tool(domain="read", parallel_safe=True)
    def ping(x: int = 0) -> str:
        "Ping."
        return "pong"
"""


@pytest.fixture
def priced(bench: Any) -> Any:
    """A bench with the plugin, the priced model, and a tool that is allowed."""
    bench.builtins = (*bench.builtins, "moryflow_builtins.budgets")
    bench.plugin("priced", PRICED)
    bench.tool(PING)
    whole = bench.script
    bench.script = lambda *turns: whole(*turns).replace("script:", "priced:")
    return bench


def pings(bench: Any, count: int) -> list[dict[str, Any]]:
    return bench.calls(*[("ping", {"x": number}) for number in range(count)])


def asked(outcome: Any) -> list[str]:
    """The calls that were asked about."""
    return [question["call_id"] for question in outcome.named("permission.asked")]


async def test_nothing_is_asked_until_a_budget_is_named(priced: Any):
    """Off by default (issue F)."""
    outcome = await priced.run(pings(priced, 4), replies=[])
    assert (outcome.result.end_reason, outcome.result.cost, asked(outcome)) == ("completed", 5.0, [])


@pytest.mark.parametrize("budget", ["session", "day", "agent", "folder"])
async def test_a_budget_that_is_used_up_is_a_question_and_a_yes_is_good_for_as_much_again(priced: Any, budget: str):
    """Any surface can answer; the next question comes after as much again (issue F)."""
    named = {"agent": {"build": 2}, "folder": {str(priced.vault.parent): 2}}
    priced.config(budgets={budget: named.get(budget, 2)})
    outcome = await priced.run(pings(priced, 6), replies=["once", "once", "once"])
    assert asked(outcome) == ["call_2_1", "call_4_1", "call_6_1"]
    assert (outcome.result.end_reason, len(outcome.tools())) == ("completed", 6)
    assert f"budget of the {budget}" in json.dumps(outcome.named("permission.asked")[0])
    assert "$2.00 of $2.00" in json.dumps(outcome.named("permission.asked")[0])


async def test_other_agents_and_folders_are_not_counted(priced: Any):
    """A budget is for what its name says (issue F)."""
    priced.config(budgets={"agent": {"plan": 1}, "folder": {"/somewhere/else": 1, f"{priced.vault}-2": 1}})
    assert asked(await priced.run(pings(priced, 4), replies=[])) == []


async def test_a_day_counts_every_session_and_a_session_only_its_own(priced: Any):
    """What ended turns cost is read from the store (issue F)."""
    priced.config(budgets={"session": 4, "day": 4})
    await priced.run(pings(priced, 2), replies=[])
    second = await priced.run(pings(priced, 2), replies=["once"])
    assert asked(second) == ["call_1_1"]
    assert "budget of the day" in json.dumps(second.named("permission.asked")[0])


async def test_a_no_ends_the_turn_with_its_own_reason(priced: Any):
    """A question, not a kill: what was done stays, and the reason is `budget` (issue F)."""
    priced.config(budgets={"session": 2})
    outcome = await priced.run(pings(priced, 4), replies=["reject"])
    assert (outcome.result.end_reason, outcome.result.exit_code) == ("budget", 5)
    assert [node["status"] for node in outcome.tools()] == ["ok", "denied"]


async def test_without_anybody_to_ask_the_turn_ends(priced: Any):
    """Also in full access: it lifts permissions, not a limit of money (issue F)."""
    priced.config(budgets={"session": 2})
    for mode in ("agent", "full_access"):
        outcome = await priced.run(pings(priced, 4), mode=mode)
        assert (outcome.result.end_reason, len(outcome.tools())) == ("budget", 2)


async def test_a_question_that_waits_is_answered_later(priced: Any):
    """As on a worker: nobody is there, the session waits, and the answer lets the same turn go on (issue F)."""
    priced.config(budgets={"session": 2})
    async with priced.host() as host:
        session = await host.new_session(priced.vault, model=priced.script(*pings(priced, 3)))
        first = await session.prompt("go", options=RunOptions(on_ask="fail", turn="turn_1"))
        assert first.end_reason == "approval_required"
        (asked_for,) = await host.store.approvals(state="pending")
        await host.approvals.reply(asked_for.id, "once")
        last = await session.resume(RunOptions(on_ask="fail", turn="turn_1"))
        assert (last.end_reason, last.cost) == ("completed", 4.0)
        assert await host.store.spent() == 4.0


async def test_always_holds_for_the_session(priced: Any):
    """No second question in it, and no rule in the configuration (issue F)."""
    priced.config(budgets={"session": 2})
    outcome = await priced.run(pings(priced, 8), replies=["always"])
    assert (asked(outcome), outcome.result.end_reason) == (["call_2_1"], "completed")
    assert "permission" not in (priced.home / "config.jsonc").read_text()


async def test_calls_of_one_answer_share_a_question(priced: Any):
    """A yes for the first of three is a yes for the step (issue F)."""
    priced.config(budgets={"session": 1})
    outcome = await priced.run(priced.calls(*[("ping", {"x": number}) for number in range(3)], together=True), replies=["once"])
    assert (outcome.result.end_reason, len(asked(outcome))) == ("completed", 1)


@pytest.mark.parametrize("wrong", [{"day": -1}, {"agent": {"plan": "much"}}, {"folder": []}])
async def test_a_wrong_amount_is_no_reason_to_spend_without_one(priced: Any, wrong: dict[str, Any]):
    """It is named, and counts as one cent until it is mended (R5)."""
    priced.config(budgets={"session": 20, **wrong})
    outcome = await priced.run(pings(priced, 4))
    assert (outcome.result.end_reason, len(outcome.tools())) == ("budget", 1)
    checked = priced.cli("config", "check")
    assert checked.returncode == 3 and "agents.runtime.budgets" in checked.stdout + checked.stderr

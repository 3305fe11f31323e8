"""A model's questions to the user: asked in the one way of all questions, answered with a choice or in words."""

from __future__ import annotations

import asyncio
import json

from moryflow import RunOptions
from moryflow_sdk import thaw

CHOICES = [{"label": "SQLite", "description": "a file"}, {"label": "Pg"}]
ONE = {"question": "Which database?", "header": "Data", "options": CHOICES}
BUILTINS = ("moryflow_builtins.permission", "moryflow_builtins.ask_user", "moryflow_builtins.script_model")


async def ask(bench, reply: str, message: str = "", *, mode: str | None = None, args: object = None):
    """Run a turn whose only call is ``ask_user``; return the results of the call and the questions."""
    bench.builtins = BUILTINS
    asked: list[dict] = []
    async with bench.host() as host:
        session = await host.new_session(
            bench.vault, model=bench.script(*bench.calls(("ask_user", args or {"questions": [ONE]}))), mode=mode
        )

        def answer(event) -> None:
            if event.type == "permission.asked":
                asked.append(dict(event.data))
                tasks.append(asyncio.create_task(host.approvals.reply(event.data["approval_id"], reply, message=message)))

        tasks: list = []
        host.bus.subscribe(answer)
        await session.prompt("go", options=RunOptions(on_ask="prompt" if reply else "deny"))
        path = await host.store.path(session.id)
        return [node.payload for node in path if node.kind == "tool"], asked


async def test_the_choices_are_asked_and_the_answer_reaches_the_model(bench):
    """The event has the questions as they were asked, and the answers come with `once`; full access asks too (S0.41)."""
    [result], [asked] = await ask(bench, "once", json.dumps({"Which database?": "SQLite"}), mode="full_access")
    assert (thaw(asked["questions"]), asked["always"]) == ([ONE], "")
    assert "Which database?\n  SQLite: a file\n  Pg" in asked["preview"]
    assert (result["status"], result["output"]) == ("ok", "Which database? → SQLite")


async def test_several_choices_and_own_words_are_read(bench):
    """A list is several choices; what is no JSON is an answer in words; a plain yes leaves the choice to the model."""
    [result], _ = await ask(bench, "once", json.dumps({"Which database?": ["SQLite", "Pg"]}))
    assert result["output"] == "Which database? → SQLite, Pg"
    [result], _ = await ask(bench, "once", "neither, use files")
    assert result["output"] == "The user answered: neither, use files"
    [result], _ = await ask(bench, "once")
    assert "chose nothing" in result["output"]


async def test_a_refusal_is_told_and_nobody_to_ask_is_said(bench):
    """Without anybody to ask the tool itself says so, and asks nothing (D27)."""
    [result], _ = await ask(bench, "reject", "not now")
    assert (result["status"], result["output"]) == ("denied", "denied: not now.")
    [result], asked = await ask(bench, "")
    assert (result["status"], asked) == ("error", []) and "nobody can be asked" in result["output"]


async def test_more_than_four_questions_are_refused(bench):
    """One to four, before anybody is asked."""
    [result], asked = await ask(bench, "once", args={"questions": [ONE] * 5})
    assert (result["status"], asked) == ("error", []) and "invalid arguments" in result["output"]

"""Titles of sessions: at once from words, later from a model, never in the way."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow import RunOptions, open_host
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer
from moryflow_builtins.titles import LETTERS, WORDS, WRITING, clean_title, title_from_prompt


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("What is this project?", "What is this project?"),
        ("# Fix `the` **login**, please, before the release tomorrow", "Fix the login, please, before the…"),
        ("Rename `get_user` to _user_name_ in [a.py]", "Rename get_user to user_name in a.py"),
        ("\n\n  hello  \nworld", "hello"),
        ("---\n", ""),
        ("", ""),
        ("这个项目是做什么的?" * 10, "这个项目是做什么的?" * 5 + "这个项目是做什么的…"),
    ],
)
def test_a_title_of_a_few_words(prompt: str, title: str) -> None:
    """Three to six words where there are so many (S4.16)."""
    assert title_from_prompt(prompt) == title


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ('"Fixing the login page"', "Fixing the login page"),
        ("Title: Fixing the login page.\n", "Fixing the login page"),
        ("one two three four five six seven", "one two three four five six"),
        ("I cannot do that.\nHere is why:", ""),
        ("The login page should remember people who have used it before and", ""),
        ("   ", ""),
    ],
)
def test_what_a_model_says_is_made_a_title_or_not_taken(answer: str, title: str) -> None:
    """Quotes, full stops and essays are not titles (S4.16)."""
    assert clean_title(answer) == title


@given(st.text())
def test_any_text_gives_a_short_line(text: str) -> None:
    """Whatever a prompt or a model says (S4.16)."""
    for title in (title_from_prompt(text), clean_title(text)):
        assert len(title) <= LETTERS + 1 and len(title.split()) <= WORDS and "\n" not in title


class Talk:
    """A home and a vault, with a server that answers."""

    def __init__(self, base: Path) -> None:
        self.home, self.vault = base / "home", base / "vault"
        self.home.mkdir(mode=0o700)
        self.vault.mkdir()

    def config(self, **titles) -> None:
        file = self.home / "config.jsonc"
        file.write_text(json.dumps({"agents": {"runtime": {"titles": titles}}}))
        file.chmod(0o600)

    def named_by(self, server: LoopbackServer) -> None:
        """Let another server than the conversation's write the titles."""
        self.config(model="namer/m")
        file = self.home / "config.jsonc"
        settings = {**json.loads(file.read_text()), "models": {"providers": {"namer": {"baseUrl": server.url}}}}
        file.write_text(json.dumps(settings))

    async def title(self, session: str) -> str:
        """Return the title as the next process sees it."""
        async with await open_host(self.home, environ={}) as host:
            return (await host.store.session(session)).title

    async def run(
        self,
        server: LoopbackServer,
        *prompts: str,
        wait: bool = False,
        session: str = "",
        between: Callable[[], object] = lambda: None,
    ):
        """Run prompts; return the session's row, its runs and the results.

        :param wait: for the title, after each prompt.
        :param between: waited for in a thread after each prompt.
        """
        environ = {"OPENAI_BASE_URL": server.url, "PATH": os.environ["PATH"]}
        results = []
        async with await open_host(self.home, environ=environ) as host:
            begin = (
                host.resume(self.vault, session, model="openai/m")
                if session
                else host.new_session(self.vault, model="openai/m")
            )
            talk = await begin
            await talk.keep()
            for prompt in prompts:
                results.append(await talk.prompt(prompt, options=RunOptions()))
                await asyncio.to_thread(between)
                if wait:
                    await written()
            return await host.store.session(talk.id), await host.store.runs(talk.id), results


async def written() -> None:
    """Wait until no title is being written."""
    while WRITING:
        await asyncio.wait(WRITING.values())


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    return Talk(tmp_path)


async def test_without_a_model_for_it_nothing_is_asked(talk):
    """The first prompt's words name the session; there is one request, that of the turn (S4.16)."""
    with LoopbackServer(replies.text("ok"), replies.text("ok")) as server:
        row, _, _ = await talk.run(server, "Count the words of this file, please", "something else entirely")
        assert len(server.requests) == 2
    assert row.title == "Count the words of this file…"


async def test_a_model_writes_a_better_one_beside_the_turn(talk):
    """The hidden agent is asked, without a parameter that a model may refuse, and its run is recorded with its cost (S4.16)."""
    talk.config(model="session")
    with LoopbackServer(otherwise=replies.text("Counting words in files")) as server:
        row, runs, _ = await talk.run(server, "Count the words", "and again", wait=True)
        asked = [request.body for request in server.requests if "name conversations" in json.dumps(request.body)]
    assert row.title == "Counting words in files"
    assert len(asked) == 1 and not {"temperature", "max_tokens", "tools"} & asked[0].keys()
    (written,) = [run for run in runs if run.purpose == "complete"]
    assert (written.agent, written.end_reason, written.usage["output"] > 0) == ("title", "completed", True)


async def test_a_failure_is_recorded_and_nobody_is_bothered(talk):
    """A refused request leaves the words and the turn as they are; the run says what happened (S4.16)."""
    talk.config(model="openai_compatible/nobody-knows-this")
    with LoopbackServer(otherwise=replies.text("ok")) as server:
        row, runs, results = await talk.run(server, "Count the words", "more", wait=True)
    assert [result.end_reason for result in results] == ["completed", "completed"]
    assert row.title == "Count the words"
    assert [run.end_reason for run in runs if run.purpose == "complete"] == ["model_error"]


async def test_a_slow_title_does_not_hold_the_turn(talk):
    """The turn ends, and the host closes, while a title is still waited for (S4.16)."""
    with LoopbackServer(otherwise=replies.text("late").but(before=600)) as slow:
        talk.named_by(slow)
        with LoopbackServer(otherwise=replies.text("ok").but(before=0.2)) as server:
            row, _, results = await talk.run(server, "Count the words", "and more", between=slow.wait_for_request)
        assert len(slow.requests) == 1
    assert [result.end_reason for result in results] == ["completed", "completed"] and row.title == "Count the words"


async def test_a_title_uses_up_no_answer_of_a_script(talk):
    """A model is told what a title is asked for, so that a scripted one keeps its answers for the turn (S4.16)."""
    talk.config(model="session")
    script = talk.home.parent / "script.json"
    script.write_text(json.dumps([{"purpose": "title", "text": "Counting words"}, "the answer"]))
    async with await open_host(talk.home) as host:
        session = await host.new_session(talk.vault, model=f"script:{script}")
        assert (await session.prompt("Count the words", options=RunOptions())).text == "the answer"
        await written()
    assert await talk.title(session.id) == "Counting words"


async def test_a_title_that_comes_after_the_turn_is_kept(talk):
    """Somebody reads an answer and leaves; the title that came meanwhile is not lost (S4.16)."""
    with LoopbackServer(otherwise=replies.text("Counting words in files").but(before=0.2)) as namer:
        talk.named_by(namer)
        with LoopbackServer(otherwise=replies.text("ok")) as server:
            row, _, _ = await talk.run(server, "Count the words", wait=True)
    assert row.title == "Count the words"
    assert await talk.title(row.id) == "Counting words in files"


async def test_a_title_that_did_not_come_in_time_is_asked_for_again(talk):
    """A run that ends at once does not wait for it; the next turn of the session asks again, once (S4.16)."""
    with LoopbackServer(otherwise=replies.text("ok")) as server:
        with LoopbackServer(otherwise=replies.text("late").but(before=600)) as namer:
            talk.named_by(namer)
            row, _, _ = await talk.run(server, "Count the words")
        assert await talk.title(row.id) == "Count the words"
        with LoopbackServer(otherwise=replies.text("Counting words in files")) as namer:
            talk.named_by(namer)
            await talk.run(server, "and more", "and more still", wait=True, session=row.id)
            assert len(namer.requests) == 1 and "Count the words" in json.dumps(namer.requests[0].body)
    assert await talk.title(row.id) == "Counting words in files"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_title_that_the_user_gave_stays(talk, when):
    """Neither the words of the first prompt nor a model that answers later take its place (S4.16)."""
    talk.config(model="session")
    script = talk.home.parent / "script.json"
    script.write_text(json.dumps([{"purpose": "title", "text": "Counting words"}, "the answer"]))
    async with await open_host(talk.home) as host:
        session = await host.new_session(talk.vault, model=f"script:{script}")
        for moment in ("before", "after"):
            if moment == when:
                await session.note(lambda journal: journal.session(title="Given"))
            if moment == "before":
                await session.prompt("Count the words", options=RunOptions())
        await written()
    assert await talk.title(session.id) == "Given"


async def test_a_child_keeps_the_name_of_its_task(talk):
    """What its parent called it says more than its long prompt, and no model is asked (S4.16)."""
    script = talk.vault / "script.json"
    order = {"agent": "explore", "prompt": "Look at every file and tell me all about it", "description": "Look around"}
    script.write_text(json.dumps([{"calls": [{"name": "task", "arguments": order}]}, "seen", "done"]))
    async with await open_host(talk.home, environ={}) as host:
        session = await host.new_session(talk.vault, model=f"script:{script}")
        await session.prompt("go", options=RunOptions(on_ask="deny"))
        (child,) = await host.store.sessions(5, purpose=None, parent=session.id)
    assert child.title == "Look around"

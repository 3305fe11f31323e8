"""``/compact [FOCUS]`` in a conversation, at a terminal and line by line."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from moryflow.store import Commit, NewNode, open_store
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer

SUMMARY = "## Goal\nMend the parser.\n## Progress\nHalf of it is done."


@pytest.fixture
def model(cli: Any) -> Iterator[LoopbackServer]:
    """A real endpoint that writes a summary first and answers then."""
    with closing(LoopbackServer(replies.text(SUMMARY), otherwise=replies.text("the answer"))) as server:
        limits = {"providers": {"openai": {"models": {"test-model": {"contextWindow": 8000}}}}}
        cli.config(models=limits)
        cli.environ = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-loopback-test"}
        yield server


def long_session(cli: Any, turns: int = 12, words: int = 100) -> str:
    """Return a session of so many turns of about 500 tokens each."""

    async def make() -> str:
        store = open_store(cli.home)
        row = await store.create(vault=str(cli.vault), agent="build", mode="agent", model="openai/test-model")
        hold = await store.hold(row.id)
        nodes = [
            node
            for number in range(turns)
            for node in (
                NewNode("user", {"text": f"prompt {number} " + "and so on " * words}),
                NewNode("assistant", {"text": f"answer {number} " + "and so on " * words, "calls": []}),
            )
        ]
        await hold.commit(Commit(nodes=nodes))
        hold.release()
        store.close()
        return row.id

    return asyncio.run(make())


def kinds(cli: Any, session: str) -> list[str]:
    with closing(sqlite3.connect(cli.home / "sessions.db")) as database:
        rows = database.execute("SELECT kind FROM nodes WHERE session = ? ORDER BY seq", (session,))
        return [row[0] for row in rows]


def said(request: Any) -> str:
    return json.dumps(request.body["messages"])


def test_compact_in_a_conversation_that_is_piped_in(cli: Any, model: LoopbackServer) -> None:
    """The focus reaches the summarizer, the sentence says what it saved, the next turn sees the summary (S0.27, S0.29)."""
    session = long_session(cli)
    done = cli("chat", "-r", session, "-m", "openai/test-model", stdin="/compact the error codes\nand now?\n")
    assert done.returncode == 0, done.stderr
    assert "compacted: about" in done.stderr and "the answer" in done.stdout
    asked, answered = model.requests
    assert "keep above all: the error codes" in said(asked) and "prompt 0" in said(asked)
    assert "Mend the parser." in said(answered) and "prompt 0" not in said(answered) and "and now?" in said(answered)
    head = answered.body["messages"][:4]  # a server of one's own takes one system message (D17), and no two users in a row
    assert [message["role"] for message in head] == ["system", "user", "assistant", "user"]
    assert head[1]["content"].startswith("[Conversation summary]\n## Goal") and head[3]["content"].startswith("prompt ")
    assert kinds(cli, session) == ["user", "assistant"] * 12 + ["compaction", "user", "assistant"]


def test_compact_at_a_terminal(cli: Any, model: LoopbackServer, at_terminal: Callable[..., Any]) -> None:
    """Without a focus; then nothing moves until a person types, and the conversation goes on (S0.29)."""
    session = long_session(cli)
    terminal = at_terminal("chat", "-r", session, "-m", "openai/test-model")
    terminal.expect("/help")
    terminal.type("/compact\r")
    terminal.expect("compacted: about")
    with pytest.raises(AssertionError, match="did not appear"):
        terminal.expect("waiting for", within=1.5)  # the spinner starts after a second
    terminal.type("and now?\r")
    terminal.expect("the answer")
    assert terminal.quit() == 0
    assert [len(model.requests), kinds(cli, session)[24:]] == [2, ["compaction", "user", "assistant"]]


def test_an_answer_that_is_piped_is_printed_before_the_summary_is_waited_for(cli: Any) -> None:
    """Whoever reads it need not wait for a summary of what is older, nor gets it twice; Ctrl-C ends the waiting (D18)."""
    cli.config(agents={"runtime": {"compaction": {"policy": "reserve", "reserve": 128_000, "timeout": 20}}})
    session = long_session(cli, words=1200)
    never = {"text": SUMMARY, "purpose": "compact", "delay": 600}
    model = cli.script({"text": "first, I think"}, never, {"text": "the answer"})
    running = cli.start("run", "-r", session, "-m", model, "and now?", "-v")
    assert running.stdout.readline() == "first, I think\n" and running.poll() is None
    running.send_signal(signal.SIGINT)
    rest, remarks = running.communicate()
    assert (rest, running.returncode) == ("", 0) and "writing the summary" in remarks


def test_a_summary_that_fails_during_a_turn_is_said_on_standard_error(cli: Any) -> None:
    """The turn goes on with less, and nobody wonders why (S0.25, S1.27)."""
    with closing(LoopbackServer(replies.failure(401, "no summary today"), otherwise=replies.text("the answer"))) as server:
        cli.config(
            models={"providers": {"openai": {"models": {"test-model": {"contextWindow": 8000}}}}},
            agents={"runtime": {"compaction": {"mode": "before"}}},
        )
        cli.environ = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-loopback-test"}
        done = cli("run", "-r", long_session(cli), "-m", "openai/test-model", "and now?")
    assert (done.returncode, done.stdout) == (0, "the answer\n"), done.stderr
    assert "could not be summarised: openai refused the request (HTTP 401): no summary today" in done.stderr
    assert "next: moryflow session compact -m MODEL" in done.stderr
    assert not {"temperature", "max_tokens"} & server.requests[0].body.keys()

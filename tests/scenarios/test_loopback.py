"""The whole command against a loopback model server: real processes, real HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from moryflow import open_host
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer
from stream_corpus import replies as corpus_replies

CORPUS = Path(__file__).parent.parent / "data" / "corpus" / "streams.jsonl"
CASES = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
OPENAI = [case for case in CASES if case["format"] == "openai_chat"]
PIECES = 10_000
"""Pieces of one answer, at most: how long more of them take, the tests of the stream reader see."""
EXTRA = Path(__file__).parent.parent / "data" / "streams" / "openai_extra.jsonl"
MORE = [case for case in map(json.loads, EXTRA.read_text(encoding="utf-8").splitlines()) if case["end"] == "close"]


def moryflow(rig, server, *arguments, **options):
    environ = {**os.environ, "MORYFLOW_HOME": str(rig.home), "HOME": str(rig.vault.parent), "OPENAI_BASE_URL": server.url}
    environ.pop("OPENAI_API_KEY", None)
    line = [sys.executable, "-m", "moryflow", *arguments, "-m", "openai/test-model"]
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 100, "check": False}
    return subprocess.run(line, cwd=rig.vault, env=environ, **quiet, **options)


def test_fifty_tool_calls_on_a_repository(rig):
    """One prompt, fifty tool calls on real files, one answer (S2.16, S4.18)."""
    for number in range(50):
        (rig.vault / f"file{number}.txt").write_text(f"line {number}\n")
    turns = [replies.calls(("read", {"path": f"file{n}.txt"}), ids=(f"c{n}",)) for n in range(50)]
    with LoopbackServer(*turns, otherwise=replies.text("read all fifty")) as server:
        done = moryflow(rig, server, "run", "read everything", "--output", "json")
    result = json.loads(done.stdout)
    assert (done.returncode, result["end_reason"], result["steps"]) == (0, "completed", 51), done.stderr
    outputs = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "tool"]
    assert [text.strip() for text in outputs] == [f"line {n}" for n in range(50)]


def test_two_parallel_calls_as_a_stream_of_events(rig):
    """``stream-json``: init first, result last, each call through its states, durable events numbered (S2.10, S2.15)."""
    (rig.vault / "a.txt").write_text("alpha")
    both = replies.calls(("read", {"path": "a.txt"}), ("ls", {"path": "."}))
    with LoopbackServer(both, otherwise=replies.text("done")) as server:
        done = moryflow(rig, server, "run", "look", "--output", "stream-json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert (events[0]["type"], events[-1]["type"]) == ("init", "result"), done.stderr
    states = [(e["call_id"], e["state"]) for e in events if e["type"] in ("tool.start", "tool.result")]
    first, second = dict.fromkeys(call for call, _ in states)
    assert [state for call, state in states if call == first] == ["pending", "running", "completed"]
    assert [state for call, state in states if call == second] == ["pending", "running", "completed"]
    assert states.index((second, "running")) < states.index((first, "completed"))
    numbers = [e["seq"] for e in events if "seq" in e]
    assert numbers == sorted(numbers)


def test_the_request_holds_one_result_behind_each_call(rig):
    """What is sent next is valid for every provider: results right behind their calls, in order (S4.6, S4.18)."""
    both = replies.calls(("nope", {}), ("read", "{broken"), ids=("same", "same"))
    with LoopbackServer(both, otherwise=replies.text("sorry")) as server:
        done = moryflow(rig, server, "run", "go", "--output", "json")
    assert done.returncode == 0, done.stderr
    roles = [message["role"] for message in server.requests[-1].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
    asked = [call["id"] for call in server.requests[-1].body["messages"][2]["tool_calls"]]
    assert asked == [m["tool_call_id"] for m in server.requests[-1].body["messages"][3:]]
    assert len(set(asked)) == 2


@pytest.mark.parametrize("case", [*OPENAI, *MORE[::6]], ids=lambda case: f"{case['id']}-{case['name']}")
async def test_a_malformed_stream_leaves_a_session_that_goes_on(case, rig, monkeypatch):
    """Every case: one result per call, nothing run from incomplete arguments, the next turn works (S4.6, S4.7)."""
    monkeypatch.setattr("moryflow.kernel.model_call.FIRST_WAIT", 0.01)
    rig.allow_all()
    (rig.vault / "a.txt").write_text("x")
    if case.get("gen", {}).get("kind") == "pieces":
        case = {**case, "gen": {**case["gen"], "n": min(case["gen"]["n"], PIECES)}}
    with LoopbackServer(*corpus_replies(case), otherwise=replies.text("fine")) as server:
        rig.environ["OPENAI_BASE_URL"] = server.url
        async with await open_host(rig.home, environ=rig.environ) as host:
            session = await host.new_session(rig.vault, model="openai/test-model")
            first = await session.prompt("go")
            second = await session.prompt("again")
            path = await host.store.path(session.id)
    assert second.end_reason == "completed", (first, second)
    asked = [call["id"] for node in path if node.kind == "assistant" for call in node.payload["calls"]]
    answered = [node.payload["call_id"] for node in path if node.kind == "tool"]
    assert asked == answered
    assert len(set(asked)) == len(asked)
    ran = sum(node.payload["status"] == "ok" for node in path if node.kind == "tool")
    expected = [case["expect"], *case.get("either", ())]
    assert ran in {len(option["executed"]) for option in expected}
    forbidden = case["expect"].get("forbid")
    assert not forbidden or forbidden not in json.dumps([node.payload for node in path], default=str) + str(first.error)

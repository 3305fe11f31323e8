"""What those who watch a turn are told of an answer while it comes."""

from __future__ import annotations

import pytest
from moryflow.testing.replies import LoopbackServer, calls, chunk, failure, stream, text

PARTS = ("message.start", "text.delta", "reasoning.delta", "tool.input.delta", "message.end")


def parts(events):
    """Return what the events of answers say, in order."""
    return [(e.type, e.data.get("kind"), e.data.get("text"), e.data.get("finish")) for e in events if e.type in PARTS]


async def test_text_and_reasoning_start_and_end(rig):
    """Each part of an answer begins with an event and ends with one that says why the answer ended (S4.6)."""
    _, events = await rig.run({"reasoning": "hm", "text": "two words"})
    assert parts(events) == [
        ("message.start", "reasoning", None, None),
        ("reasoning.delta", None, "hm", None),
        ("message.start", "text", None, None),
        ("text.delta", None, "two ", None),
        ("text.delta", None, "words", None),
        ("message.end", "reasoning", None, "stop"),
        ("message.end", "text", None, "stop"),
    ]


async def test_every_event_of_an_answer_carries_the_id_of_the_node_that_keeps_it(rig):
    """``text.delta`` and its likes carry the message's id (S2.26, D78); the stored answer has the same."""
    (rig.vault / "a.txt").write_text("x")
    _, events = await rig.run({"text": "I look", **rig.call("read", path="a.txt")}, {"text": "done"})
    ids = list(dict.fromkeys(e.data["message_id"] for e in events if e.type in PARTS))
    assert ids == [node.id for node in rig.path if node.kind == "assistant"]


@pytest.mark.parametrize("repeated", [False, True])
async def test_tool_input_starts_grows_and_ends_under_the_id_of_its_call(rig, repeated):
    """Tool input starts and ends with events whose ``call_id`` is that of ``tool.start`` (S4.6); a repeated id is renamed."""
    calls = [{"name": "glob", "arguments": {"pattern": text}, "id": "c" if repeated else ""} for text in ("*.a", "*.b")]
    _, events = await rig.run({"calls": calls}, {"text": "done"})
    started = [(e.data["call_id"], e.data["tool"]) for e in events if e.type == "tool.start" and e.data["state"] == "pending"]
    input_events = [e for e in events if e.type in PARTS and "call_id" in e.data]
    assert [(e.data["call_id"], e.data["tool"]) for e in input_events if e.type == "message.start"] == started
    assert [e.data["call_id"] for e in input_events if e.type == "message.end"] == [call_id for call_id, _ in started]
    assert [e.data["text"] for e in input_events if e.type == "tool.input.delta"] == [
        '{"pattern": "*.a"}',
        '{"pattern": "*.b"}',
    ]
    assert len(set(started)) == 2
    first = next(place for place, e in enumerate(events) if e.type == "tool.start")
    assert max(place for place, e in enumerate(events) if e in input_events) < first


async def test_an_answer_that_breaks_off_ends_as_cut(rig):
    """What a person saw of an answer that failed is ended too, under the id of the node that keeps it (S4.6)."""
    result, events = await rig.run({"text": "half an", "error": "bad_request"})
    assert result.end_reason == "model_error"
    ends = [(e.data["kind"], e.data["finish"]) for e in events if e.type == "message.end"]
    assert ends == [("text", "cut")]
    assert {e.data["message_id"] for e in events if e.type in PARTS} == {rig.path[-1].id}


async def test_an_answer_that_is_stopped_ends_as_cut(rig):
    """A turn that is stopped ends what it was showing (S4.6)."""

    def stop(host, event):
        if event.type == "text.delta":
            host._sessions[0].cancel()

    result, events = await rig.run({"text": "a b c", "pause": 1}, watch=stop)
    assert result.end_reason == "stopped"
    assert [e.data["finish"] for e in events if e.type == "message.end"] == ["cut"]


HALF = [chunk(content="It is "), chunk(content="forty")]
CALL = calls(("write", {"path": "a.txt", "content": "x"}))
BREAKS = {
    "reset": stream(*HALF, done=False, end="reset"),
    "cut": stream(*HALF, done=False, end="cut"),
    "no end": stream(*HALF, done=False),
    "stall": stream(*HALF, done=False, end="stall"),
    "error as the reason": stream(*HALF, chunk("error")),
    "overloaded": stream(*HALF, {"error": {"message": "overloaded", "type": "overloaded_error"}}),
}


async def answered(rig, monkeypatch, *answers):
    """Run a prompt against a server that gives these answers; return the result, the events and the requests."""
    monkeypatch.setattr("moryflow.kernel.model_call.FIRST_WAIT", 0.01)
    rig.config(permission={"rules": [{"domain": "edit", "pattern": "*", "decision": "allow"}]})
    file = rig.home / "config.jsonc"
    file.write_text(file.read_text()[:-1] + ', "models": {"timeout": 0.3}}')
    events = []
    with LoopbackServer(*answers) as server:
        rig.environ["OPENAI_BASE_URL"] = server.url
        async with rig.host() as host:
            host.bus.subscribe(events.append)
            session = await host.new_session(rig.vault, model="openai/m")
            result = await session.prompt("go")
            rig.path = await host.store.path(session.id)
    return result, events, server.requests


@pytest.mark.parametrize("name", BREAKS)
async def test_an_answer_that_breaks_off_is_asked_for_again_and_marked_as_replaced(name, rig, monkeypatch):
    """The same request again; what was shown ends as ``retried``, and only the whole answer is kept (D55)."""
    result, events, requests = await answered(rig, monkeypatch, BREAKS[name], text("It is forty-two."))
    assert (result.end_reason, result.text, result.finish) == ("completed", "It is forty-two.", "stop")
    assert len(requests) == 2 and requests[0].body == requests[1].body
    assert [e.data["finish"] for e in events if e.type == "message.end"] == ["retried", "stop"]
    retried, kept = dict.fromkeys(e.data["message_id"] for e in events if e.type in PARTS)
    assert [node.kind for node in rig.path] == ["user", "assistant"] and rig.path[-1].id == kept != retried


async def test_nothing_of_an_answer_that_breaks_off_runs(rig, monkeypatch):
    """A call that came whole in an answer that did not is not run, nor stored (D55)."""
    broken = stream(*_chunks(CALL)[:-1], done=False, end="reset")
    result, events, _ = await answered(rig, monkeypatch, broken, text("I did not."))
    assert result.text == "I did not." and not (rig.vault / "a.txt").exists()
    assert [node.kind for node in rig.path] == ["user", "assistant"]
    assert not [e for e in events if e.type.startswith("tool.") and e.type != "tool.input.delta"]


async def test_what_was_shown_is_kept_when_no_attempt_succeeds(rig, monkeypatch):
    """Text that a person saw is not lost because later attempts gave none (D55)."""
    result, _, requests = await answered(rig, monkeypatch, BREAKS["reset"], *[failure(503)] * 4)
    assert (result.end_reason, len(requests)) == ("model_error", 5)
    assert rig.path[-1].payload["text"] == "It is forty" and rig.path[-1].payload["partial"]


async def test_a_whole_answer_behind_a_broken_one_leaves_nothing_of_that(rig, monkeypatch):
    """Neither a second node nor the earlier text (D55)."""
    result, _, _ = await answered(rig, monkeypatch, BREAKS["cut"], CALL, text("done"))
    assert result.text == "done" and (rig.vault / "a.txt").read_text() == "x"
    assert [node.kind for node in rig.path] == ["user", "assistant", "tool", "assistant"]
    assert "forty" not in str([node.payload for node in rig.path])


def _chunks(reply):
    """Return the data of a stream's events, without the closing mark."""
    lines = b"".join(reply.body).decode().split("\n\n")
    return [line.removeprefix("data: ") for line in lines if line and "[DONE]" not in line and '"usage"' not in line]

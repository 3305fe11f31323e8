"""When a request does not fit although everything old is gone: what happened just now has to give way."""

from __future__ import annotations

import pytest
from compaction_paths import compact, talk

ANSWER = {"text": "the answer"}
TOO_LONG = {"error": {"code": "context", "message": "maximum context length"}}


@pytest.fixture
def saying(bench):
    """A bench with a tool that says as much as it is asked for."""
    source = """
        @tool(domain="read")
        def say(word: str, characters: int) -> str:
            "Say it again and again."
            return (f"{word} " * characters)[:characters]

        @hookimpl
        def tools():
            return [say]

        @hookimpl
        def tool_gate(call):
            return Allow()
        """
    bench.plugin("voice", source)
    return bench


async def test_outputs_of_one_step_that_are_larger_than_the_window(saying):
    """They are cut before they are sent, the largest first; the model is told (S0.2, S1.20, S1.21)."""
    reads = [("big", 9000), ("small", 40), ("huge", 20_000), ("last", 8000)]
    async with saying.host(*_reading(reads), ANSWER, window=10_000, wait=60) as host:
        session = await saying.session(host, talk(2, 10))
        done = await session.prompt("read all of it")
        sent = [message.text for message in host.scripted.requests[-1].messages if message.role == "tool"]
    assert done.text == "the answer" and len(host.scripted.requests) == 2
    assert ["[cut: " in text for text in sent] == [False, False, True, False]
    assert (
        sent[2].startswith("huge huge")
        and "the beginning of 20000 characters" in sent[2]
        and "ask for a smaller part" in sent[2]
    )
    assert sum(map(len, sent)) / 4 < 8000


async def test_a_provider_that_still_refuses_gets_less(saying):
    """What was estimated to fit and was refused is cut further, once; then the turn ends (S1.20, S1.21)."""
    reads = [("big", 9000), ("small", 40), ("last", 8000)]
    async with saying.host(*_reading(reads), TOO_LONG, ANSWER, window=10_000, wait=60) as host:
        session = await saying.session(host, talk(2, 10))
        done = await session.prompt("read all of it")
        sizes = [sum(len(message.text) for message in request.messages) for request in host.scripted.requests]
    assert done.text == "the answer" and sizes[2] < sizes[1] * 0.7


async def test_a_single_long_turn_survives_a_summarizer_that_fails(saying):
    """Pruning alone then reaches into the turn, as there is no other (S0.25)."""
    failing = compact(error={"code": "auth", "message": "no"})
    steps = [step for n in range(4) for step in _reading([(f"o{n}", 9000)])]
    async with saying.host(*steps, failing, TOO_LONG, failing, ANSWER, window=10_000, wait=60) as host:
        session = await saying.session(host, [])
        done = await session.prompt("read all of it")
        sent = [message.text for message in host.scripted.requests[-1].messages if message.role == "tool"]
    assert done.text == "the answer"
    assert sent[0].startswith("[pruned say: o0") and sent[-1].startswith("o3 o3")


async def test_a_long_turn_of_words_survives_a_summarizer_that_fails(saying):
    """What the agent said first gives way, its newest words and the prompt do not (S0.25)."""
    failing = compact(error={"code": "auth", "message": "no"})
    steps = [{"text": f"thought {n} " + "words " * 500, **_reading([(f"o{n}", 40)])[0]} for n in range(20)]
    async with saying.host(*steps, *[failing] * 9, ANSWER, window=10_000, wait=60) as host:
        session = await saying.session(host, [])
        done = await session.prompt("read all of it")
        asked = [request.messages for request in host.scripted.requests if request.tools]
    said = [message.text for message in asked[-1] if message.role == "assistant"]
    assert done.text == "the answer" and len(said) == 20
    assert "[cut: " in said[0] and said[0].startswith("thought 0") and said[-1] == steps[-1]["text"]
    assert [message.text for message in asked[-1] if message.role == "user"] == ["read all of it"]
    assert all(message.tool_calls for message in asked[-1] if message.role == "assistant")


def _reading(outputs):
    """A tool that says what it is given, and the calls that fill the view."""
    return [{"calls": [{"name": "say", "arguments": {"word": word, "characters": size}} for word, size in outputs]}]

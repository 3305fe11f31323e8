"""A model that answers from a list or a file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from moryflow_builtins.script_model import ScriptModel
from moryflow_sdk import Finished, Message, ModelError, ModelInfo, ModelRequest, ReasoningDelta, TextDelta, Usage
from moryflow_sdk.models import Purpose
from moryflow_sdk.support.scripted import ScriptedModel, read_script


async def ask(model: Any, info: ModelInfo | None = None, purpose: Purpose = "main") -> list[Any]:
    request = ModelRequest(model=info or model.info, messages=(Message(role="user", text="hi"),), purpose=purpose)
    return [event async for event in model.stream(request)]


def words(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_turns_come_in_order_and_calls_have_ids() -> None:
    """Text in pieces, reasoning, calls as objects or as broken text (S4.6)."""
    broken = {"name": "ls", "arguments": '{"path'}
    turn = {"text": "I look ", "reasoning": "hm", "calls": [{"name": "ls", "arguments": {"path": "."}}, broken]}
    model = ScriptedModel([turn, {"text": "done", "usage": {"input": 3, "output": 4}}])
    events = await ask(model)
    assert words(events) == "I look " and isinstance(events[0], ReasoningDelta)
    finished = events[-1]
    assert isinstance(finished, Finished) and finished.reason == "tool_calls"
    assert [(call.name, call.arguments) for call in finished.tool_calls] == [("ls", '{"path": "."}'), ("ls", '{"path')]
    assert len({call.id for call in finished.tool_calls}) == 2
    assert (await ask(model))[-1] == Finished(usage=Usage(input=3, output=4))
    assert len(model.requests) == 2 and model.left == 0


async def test_a_turn_may_fail() -> None:
    """With a code, or with all that an error has (D55)."""
    detail = {"code": "rate_limit", "retry_after": 2, "message": "slow"}
    model = ScriptedModel([{"error": "auth"}, {"text": "a", "error": detail, "calls": [{"name": "ls"}]}])
    with pytest.raises(ModelError) as first:
        await ask(model)
    with pytest.raises(ModelError) as second:
        await ask(model)
    assert first.value.code == "auth"
    assert (second.value.code, second.value.retry_after, second.value.message) == ("rate_limit", 2, "slow")
    assert [call.problem for call in second.value.tool_calls] == ["incomplete"]


async def test_titles_and_summaries_use_up_no_turn() -> None:
    """The host asks for them by itself (S4.16)."""
    model = ScriptedModel(["one", {"text": "a title", "purpose": "title"}])
    assert words(await ask(model, purpose="title")) == "a title"
    assert words(await ask(model, purpose="title")) and words(await ask(model, purpose="compact"))
    assert words(await ask(model)) == "one"


async def test_a_script_that_is_used_up_says_so() -> None:
    """A test that asks too much should not hang or repeat (S4.7)."""
    with pytest.raises(ModelError, match="only 0 turns") as caught:
        await ask(ScriptedModel([]))
    assert not caught.value.retryable


async def test_a_delay_can_be_cancelled() -> None:
    """For tests of stopping (S2.26)."""
    task = asyncio.create_task(ask(ScriptedModel([{"text": "late", "delay": 6000}])))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("content", [json.dumps(["a", {"text": "b"}]), '\ufeff["a", "b"]'])
async def test_a_file_is_a_list_of_turns(tmp_path: Path, content: str) -> None:
    """In JSON (ARCHITECTURE 8)."""
    file = tmp_path / "script.json"
    file.write_text(content, encoding="utf-8")
    provider = ScriptModel()
    info = provider.find(f"script:{file}")
    assert info is not None and info.cost(Usage(input=5)) == 0
    assert [words(await ask(provider, info)) for _ in range(2)] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ('{"text": "a"}\n{"text": 5}\n', "script.json"),
        ('[{"txt": "a"}]', "turn 1"),
        ('[{"error": "no such code"}]', "turn 1"),
        ("5", "script.json"),
        (None, "script.json"),
    ],
)
def test_a_file_that_is_no_script_is_named(tmp_path: Path, content: str | None, where: str) -> None:
    """An error says where (CONTRACT 1)."""
    file = tmp_path / "script.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(ModelError) as caught:
        read_script(file)
    assert caught.value.code == "missing" and where in caught.value.where
    assert caught.value.next_step and ": :" not in caught.value.message


def test_only_names_with_the_prefix_are_scripts() -> None:
    """Other providers have theirs (S4.2)."""
    assert ScriptModel().find("script:") is None and ScriptModel().find("other") is None
    assert ScriptModel().default({"OPENAI_API_KEY": "k"}) is None

"""Models and tools of a package that does what the real ones do not: streams, signs, hangs, sends pictures."""

from __future__ import annotations

import base64
import gc
import threading
import time
from typing import Any

import pytest
from moryflow_builtins.llm_plugins.packages import content_hash, find_distribution, load_packages
from moryflow_builtins.llm_plugins.provider import LlmModels
from moryflow_sdk import (
    ChatParams,
    Finished,
    Image,
    Message,
    ModelError,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolRequest,
    ToolSchema,
)

from .conftest import LlmHost

LS = ToolSchema(name="ls", description="List", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
DOT = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
SOURCE = '''
import threading, time
import llm
from llm.parts import StreamEvent
from pydantic import Field

asked, gate, stopped = [], threading.Event(), threading.Event()

class Thinker(llm.AsyncModel):
    """Reasons, speaks in pieces and signs."""
    model_id = "thinker"
    supports_tools = True
    attachment_types = {"image/png"}
    class Options(llm.Options):
        temperature: float | None = Field(default=None)
    async def execute(self, prompt, stream, response, conversation):
        asked.append(prompt)
        yield StreamEvent(type="reasoning", chunk="hm", provider_metadata={"own": {"signature": "s1"}})
        yield "a"
        yield "b"
        response.set_usage(input=3, output=2)
        if prompt.tools and not prompt.tool_results:
            response.add_tool_call(llm.ToolCall("ls", {"path": "."}, "call_a"))

class Slow(llm.Model):
    """Speaks until nobody listens."""
    model_id = "slow"
    can_stream = True
    def execute(self, prompt, stream, response, conversation):
        try:
            for number in range(100_000):
                yield f"{number} "
                time.sleep(0.002)
        finally:
            stopped.set()

class Wrong(llm.KeyModel):
    """Fails as a client library does."""
    model_id = "wrong"
    needs_key = "wrong"
    key = "sk-very-secret"
    def execute(self, prompt, stream, response, conversation, key):
        error = RuntimeError(f"refused {key}")
        error.status_code = int(prompt.prompt)
        raise error
        yield ""

@llm.hookimpl
def register_models(register):
    register(None, Thinker(), aliases=("t",))
    register(Slow())
    register(Wrong())

class Counter(llm.Toolbox):
    def hang(self) -> str:
        "Hang."
        gate.wait(20)
        return "late"
    async def later(self, number: int = 1) -> str:
        "Say a number."
        return str(number)

def picture(llm_tool_call) -> llm.ToolOutput:
    "Draw."
    return llm.ToolOutput(output=llm_tool_call.name, attachments=[
        llm.Attachment(type="image/png", content=b"png"), llm.Attachment(type="application/pdf", content=b"pdf")])

async def table(rows: list[int]) -> dict:
    """Make a table."""
    return {"rows": rows}

def fails() -> str:
    """Fail."""
    raise ValueError("it rains")

@llm.hookimpl
def register_tools(register):
    for each in (Counter, picture, table, fails):
        register(each)
    register(table, name="a table!")

def loader(argument):
    return [llm.Fragment(argument.upper(), "shout"), llm.Attachment(type="image/png", content=b"png")]

@llm.hookimpl
def register_fragment_loaders(register):
    register("shout", loader)
'''


@pytest.fixture
def own(llm_host: LlmHost) -> LlmHost:
    """A host with the package above."""
    llm_host.write_package("llm-own", "llm_own_package", SOURCE)
    return llm_host.agree("llm-own")


@pytest.fixture
def provider(own: LlmHost) -> LlmModels:
    """The provider of its models."""
    found = find_distribution("llm-own")
    assert found is not None
    packages, problems = load_packages({"llm-own": content_hash(found)})
    assert not problems
    return LlmModels(packages[0].models)


def module() -> Any:
    """The package's module as it was imported."""
    import llm_own_package  # pyright: ignore[reportMissingImports]

    return llm_own_package


async def play(provider: LlmModels, name: str, *messages: Message, **more: Any) -> list[Any]:
    """All events of one call."""
    info = provider.find(name)
    assert info is not None
    return [event async for event in provider.stream(ModelRequest(model=info, messages=messages, **more))]


async def test_pieces_of_text_and_reasoning_arrive_as_they_are_made(provider: LlmModels) -> None:
    """With usage and the calls at the end (S4.7)."""
    events = await play(provider, "llm/t", Message(role="user", text="hi"), tools=(LS,), params=ChatParams(temperature=0.5))
    assert events[:-1] == [ReasoningDelta(text="hm"), TextDelta(text="a"), TextDelta(text="b")]
    end = events[-1]
    assert isinstance(end, Finished) and end.reason == "tool_calls" and (end.usage.input, end.usage.output) == (3, 2)
    assert [(call.id, call.name, call.arguments) for call in end.tool_calls] == [("call_a", "ls", '{"path": "."}')]
    assert module().asked[-1].options.temperature == 0.5


async def test_what_a_model_signed_goes_back_to_it_with_results_and_pictures(provider: LlmModels) -> None:
    """Services refuse a call whose reasoning comes back without its signature (S4.7)."""
    first = (await play(provider, "llm/thinker", Message(role="user", text="hi"), tools=(LS,)))[-1]
    call = ToolRequest(id="call_a", name="ls", arguments='{"path": "."}')
    answer = Message(role="assistant", text="ab", tool_calls=(call,), extra=first.extra, origin=first.origin)
    result = Message(role="tool", call_id="call_a", text="a.md", images=(Image(media_type="image/png", data=DOT),))
    system = Message(role="system", text="be kind")
    events = await play(provider, "llm/thinker", system, Message(role="user", text="hi"), answer, result, tools=(LS,))
    assert events[-1].reason == "stop"
    sent = module().asked[-1]
    assert [message.role for message in sent.messages] == ["system", "user", "assistant", "tool"]
    assert sent.messages[2].parts[0].provider_metadata == {"own": {"signature": "s1"}}
    assert [(each.name, each.output, each.tool_call_id) for each in sent.tool_results] == [("ls", "a.md", "call_a")]
    assert sent.tool_results[0].attachments[0].content_bytes().startswith(b"\x89PNG") and sent.system == "be kind"


async def test_a_plain_model_stops_when_nobody_listens_any_more(provider: LlmModels) -> None:
    """Its thread ends at the next piece (invariant 6)."""
    info = provider.find("llm/slow")
    assert info is not None and not info.tools
    events = provider.stream(ModelRequest(model=info, messages=(Message(role="user", text="hi"),)))
    assert [await anext(events) for _ in range(3)] == [TextDelta(text=f"{number} ") for number in range(3)]
    await events.aclose()
    assert module().stopped.wait(5)


@pytest.mark.parametrize(("status", "code"), [(401, "auth"), (429, "rate_limit"), (503, "overloaded"), (400, "bad_request")])
async def test_an_error_has_the_code_of_its_status_and_no_key(provider: LlmModels, status: int, code: str) -> None:
    """The host retries by this code (S4.7)."""
    with pytest.raises(ModelError, match="llm/wrong: refused") as raised:
        await play(provider, "llm/wrong", Message(role="user", text=str(status)))
    assert raised.value.code == code and "sk-very-secret" not in str(raised.value)


def test_a_model_is_found_by_its_id_and_its_alias_alone(provider: LlmModels) -> None:
    known = {name: provider.find(name) for name in ("llm/thinker", "llm/t", "thinker", "llm/none")}
    assert {name: info and info.id for name, info in known.items()} == {
        "llm/thinker": "llm/thinker", "llm/t": "llm/thinker", "thinker": None, "llm/none": None,
    }  # fmt: skip


def test_a_tool_returns_text_json_pictures_or_its_error(own: LlmHost) -> None:
    """A name that a tool cannot have is changed, and an error is a result (S2.14)."""
    drawn = own.call_tool("llm__picture").result
    assert [image.media_type for image in drawn.images] == ["image/png"] and "application/pdf is left out" in drawn.output
    assert own.call_tool("llm__table", rows=[1]).result.output == '{"rows": [1]}'
    assert "llm__a_table_" in own.host.tools
    failed = own.call_tool("llm__fails").result
    assert failed.status == "error" and "it rains" in failed.output


def test_a_toolbox_that_hangs_is_given_up_and_the_next_call_gets_a_new_one(own: LlmHost) -> None:
    """The other methods of the same session do not wait behind it."""
    session = own.session()
    turn = own.begin("wait", [{"calls": [{"name": "llm__Counter_hang", "arguments": {}}]}], session=session)
    own.until("tool.start", tool="llm__Counter_hang", state="running")

    async def stop() -> None:
        session.cancel()

    own.wait(stop())
    assert turn.result(20).end_reason == "stopped"
    own.run("more", [{"calls": [{"name": "llm__Counter_later", "arguments": {"number": 7}}]}, "ok"], session=session)
    assert own.until("tool.result", tool="llm__Counter_later").data["output"] == "7"
    module().gate.set()


def test_a_toolbox_ends_with_the_generation_that_offered_it(own: LlmHost) -> None:
    """A reload after each save would leave a thread behind otherwise."""
    session = own.session()
    own.run("count", [{"calls": [{"name": "llm__Counter_later", "arguments": {}}]}, "ok"], session=session)
    assert toolbox_threads()
    own.agree("llm-own", "llm-tools-simpleeval")
    assert own.wait(own.host.refresh())
    ending = time.monotonic() + 20
    while toolbox_threads() and time.monotonic() < ending:
        gc.collect()
        time.sleep(0.05)
    assert not toolbox_threads()


def toolbox_threads() -> list[threading.Thread]:
    """The threads on which toolboxes run."""
    return [each for each in threading.enumerate() if each.name == "moryflow-llm-toolbox"]


def test_a_fragment_may_have_a_source_and_a_picture(own: LlmHost) -> None:
    """Quotation marks hold an argument with spaces together."""
    own.run('read @shout:"a b" and mail me@shout:x', ["ok"])
    result = own.until("tool.result", tool="llm__fragment_shout").data
    assert result["output"].startswith("shout\nA B")
    assert [image.media_type for message in own.model.requests[-1].messages for image in message.images] == ["image/png"]
    assert len([event for event in own.events if event.type == "tool.result"]) == 1


def test_a_tool_whose_name_is_taken_is_left_out_and_named(own: LlmHost) -> None:
    own.write_package("llm-copy", "llm_copy_package", SOURCE.split("class Counter")[0].split("@llm.hookimpl")[0] + COPY)
    own.agree("llm-own", "llm-copy")
    assert "its tool llm__picture is left out: llm-own 0.1.0 has one of that name" in own.problems()


COPY = """
def picture() -> str:
    "Draw too."
    return ""

@llm.hookimpl
def register_tools(register):
    register(picture)
"""

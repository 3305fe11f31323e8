"""Examples for the testing kit. The reference on the site shows the bodies; the tests run them."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

from moryflow.testing import IsolatedHost, LoopbackServer, Reply, replies, scripted_model
from moryflow_sdk import Finished, Message, ModelRequest, TextDelta


# example of: IsolatedHost
def example_isolated_host(moryflow: IsolatedHost) -> None:
    # `moryflow` is the fixture; the plugin may also be a path
    moryflow.plugin("""
        from moryflow_sdk import Deny, hookimpl

        @hookimpl
        def tool_gate(call):
            return Deny("not today") if call.tool == "ls" else None
    """)
    result = moryflow.run("List the files", [{"calls": [{"name": "ls"}]}, "I may not."])
    assert (result.end_reason, result.text) == ("completed", "I may not.")
    assert moryflow.until("tool.result").data["status"] == "denied"


# example of: scripted_model
def example_scripted_model() -> None:
    model = scripted_model(["Hello", {"text": "Bye", "usage": {"input": 3, "output": 1}}])
    request = ModelRequest(model=model.info, messages=(Message(role="user", text="hi"),))

    async def answer() -> list[Any]:
        return [event async for event in model.stream(request)]

    first, last = asyncio.run(answer())
    assert (first, type(last)) == (TextDelta(text="Hello"), Finished)
    assert model.requests == [request]


# example of: LoopbackServer, Recorded, failure
def example_loopback_server() -> None:
    with LoopbackServer(replies.failure(429, "slow down", retry_after=2)) as server:
        asked = urllib.request.Request(f"{server.url}/chat/completions", json.dumps({"model": "m"}).encode())
        try:
            urllib.request.urlopen(asked)
        except urllib.error.HTTPError as error:
            assert (error.code, error.headers["retry-after"]) == (429, "2")
        assert server.requests[0].body == {"model": "m"}


# example of: Reply, End
def example_reply() -> None:
    half = replies.text("Hello").but(end="cut", chunking=10)  # the connection breaks in the middle
    assert isinstance(half, Reply) and half.end == "cut"


# example of: text
def example_text() -> None:
    assert replies.text("Hello").content_type == "text/event-stream"


# example of: calls
def example_calls() -> None:
    reply = replies.calls(("read", {"path": "notes.md"}), ("ls", {}), said="Let me look.")
    assert b"notes.md" in b"".join(reply.body)  # type: ignore[arg-type]


# example of: stream, chunk, usage
def example_stream() -> None:
    reply = replies.stream(
        replies.chunk(content="Hel"), replies.chunk(content="lo"), replies.chunk("stop"), replies.usage(9, 2)
    )
    assert list(reply.body)[-1] == b"data: [DONE]\n\n"

"""Examples for providers of models. The reference on the site shows the bodies; the tests run them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from moryflow.testing import LoopbackServer, replies
from moryflow_sdk import (
    BaseProvider,
    Finished,
    Installable,
    Message,
    ModelError,
    ModelEvent,
    ModelInfo,
    ModelProvider,
    ModelRequest,
    ReasoningDelta,
    Status,
    TextDelta,
    ToolInputDelta,
    ToolRequest,
    ToolSchema,
    Usage,
)
from moryflow_sdk.chat_completions import Answer, ChatClient, Endpoint, from_object, from_status, retry_after


# example of: ModelProvider, BaseProvider, Status
def example_provider() -> None:
    class Echo(BaseProvider):
        name = "echo"

        def find(self, model: str) -> ModelInfo | None:
            return ModelInfo(id=model, name=model, provider=self.name) if model == "echo" else None

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            yield Status(text="loading")
            yield TextDelta(text=request.messages[-1].text)
            yield Finished(usage=Usage(input=1, output=1))

    provider: ModelProvider = Echo()
    model = provider.find("echo")
    assert model is not None
    request = ModelRequest(model=model, messages=(Message(role="user", text="Hello"),))

    async def answer() -> list[ModelEvent]:
        return [event async for event in provider.stream(request)]

    assert asyncio.run(answer())[1] == TextDelta(text="Hello")


# example of: Installable
def example_installable() -> None:
    class Runtime:
        def __init__(self) -> None:
            self.there = False

        def installed(self) -> bool:
            return self.there

        def download_size(self) -> int:
            return 0 if self.there else 120_000_000

        def install(self, progress: Callable[[str, int, int], None]) -> None:
            progress("download", 120_000_000, 120_000_000)
            self.there = True

    assert isinstance(Runtime(), Installable)


# example of: ModelInfo
def example_model_info() -> None:
    model = ModelInfo(id="acme/large", name="large", provider="acme", context_window=200_000, input_price=2.0, output_price=8.0)
    assert model.cost(Usage(input=1_000_000, output=500_000)) == 6.0  # US dollars


# example of: ModelRequest, ToolSchema
def example_model_request() -> None:
    search = ToolSchema(
        name="search",
        description="Search the notes.",
        parameters={"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]},
    )
    request = ModelRequest(
        model=ModelInfo(id="acme/large", name="large", provider="acme"),
        messages=(Message(role="system", text="You help."), Message(role="user", text="Hello")),
        tools=(search,),
    )
    assert request.purpose == "main"


# example of: ModelEvent, TextDelta, ReasoningDelta, ToolInputDelta, Finished
def example_model_events() -> None:
    call = ToolRequest(id="call_1", name="search", arguments='{"words": "milk"}')
    answer: list[ModelEvent] = [
        ReasoningDelta(text="They want their notes."),
        TextDelta(text="I will look."),
        ToolInputDelta(call="call_1", name="search", text='{"words": '),
        ToolInputDelta(call="call_1", name="search", text='"milk"}'),
        Finished(reason="tool_calls", tool_calls=(call,), usage=Usage(input=40, output=12)),
    ]
    assert isinstance(answer[-1], Finished)  # exactly one, last


# example of: ChatClient, Endpoint
def example_chat_client() -> None:
    async def ask(url: str) -> str:
        client = ChatClient(Endpoint(base_url=url, label="acme", key="your-key"))
        request = ModelRequest(
            model=ModelInfo(id="acme/large", name="large", provider="acme"),
            messages=(Message(role="user", text="Hello"),),
        )
        events = [event async for event in client.stream(request, "large")]
        await client.aclose()
        return "".join(event.text for event in events if isinstance(event, TextDelta))

    with LoopbackServer(replies.text("Hello to you")) as server:
        assert asyncio.run(ask(server.url)) == "Hello to you"


# example of: Answer
def example_answer() -> None:
    answer = Answer(Endpoint(base_url="http://127.0.0.1:8080/v1", label="acme"))
    deltas = list(answer.feed(replies.chunk(content="Hello")))
    deltas += list(answer.feed(replies.chunk("stop")))
    assert deltas == [TextDelta(text="Hello")]
    [finished] = answer.finish()
    assert isinstance(finished, Finished) and finished.reason == "stop"


# example of: from_status, from_object
def example_errors() -> None:
    endpoint = Endpoint(base_url="http://127.0.0.1:8080/v1", label="acme")
    refused = from_status(401, {}, b'{"error": {"message": "wrong key"}}', endpoint)
    assert isinstance(refused, ModelError) and refused.code == "auth"
    busy = from_object({"message": "slow down", "type": "rate_limit_error"}, endpoint)
    assert busy.code == "rate_limit"


# example of: retry_after
def example_retry_after() -> None:
    assert retry_after({"retry-after": "2"}) == 2.0
    assert retry_after({"retry-after-ms": "250"}) == 0.25
    assert retry_after({}) is None

"""What a model call costs beside the model: loading h11, the first and the next request, step 500, and litellm's share."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from moryflow.testing.replies import LoopbackServer, chunk, text
from moryflow_sdk import Message, ModelInfo, ModelRequest, ToolRequest
from moryflow_sdk.chat_completions import ChatClient, Endpoint
from moryflow_sdk.chat_completions.answer import Answer
from moryflow_sdk.chat_completions.request import Encoder
from moryflow_sdk.chat_completions.sse import AnswerReader

Figure = tuple[str, float, str, float]
MODEL = ModelInfo(id="openai/m", name="m", provider="openai_compatible")

_OURS = """
import asyncio, time
import moryflow_sdk.chat_completions.transport
t = time.perf_counter(); import moryflow_sdk.chat_completions.connection; print(time.perf_counter() - t)
"""
_FIRST = """
import asyncio, sys, time
from moryflow_sdk import Message, ModelInfo, ModelRequest
t = time.perf_counter()
from moryflow_sdk.chat_completions import ChatClient, Endpoint
model = ModelInfo(id="openai/m", name="m", provider="p")
async def main():
    client = ChatClient(Endpoint(sys.argv[1], "openai", key="k"))
    client.prepare()
    async for _ in client.stream(ModelRequest(model=model, messages=(Message(role="user", text="hi"),)), "m"):
        pass
asyncio.run(main())
print(time.perf_counter() - t)
"""
_LITELLM = """
import asyncio, sys, time
from moryflow_sdk import Message, ModelRequest
t = time.perf_counter()
from moryflow_builtins.litellm_models import LitellmModels
from moryflow_sdk.support.settings import ModelsSettings
settings = {"providers": {"litellm": {"baseUrl": sys.argv[1], "apiKey": "k"}}}
provider = LitellmModels(ModelsSettings.model_validate(settings), {})
model = provider.find("litellm/openai/m")
async def once():
    started = time.perf_counter()
    async for _ in provider.stream(ModelRequest(model=model, messages=(Message(role="user", text="hi"),))):
        pass
    return time.perf_counter() - started
async def main():
    await once()
    first = time.perf_counter() - t
    print(first, min([await once() for _ in range(5)]))
asyncio.run(main())
"""


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with LoopbackServer() as server:
        first = _milliseconds(_FIRST, server.url)
        litellm = _run(_LITELLM, server.url)
        following = asyncio.run(_following(server))
    return [
        ("import the wire: h11 and our connection", _milliseconds(_OURS), "ms", 40.0),
        ("first request of a process, everything loaded for it", first, "ms", 150.0),
        ("a request on a kept connection, server included", following, "ms", 3.0),
        ("body of step 500, 1,000 messages of 2 KB", _step_500(), "ms", 2.0),
        ("reading 10,000 pieces of text", _reading(), "ms", 400.0),
        ("first answer through litellm", litellm[0] * 1000, "ms", 6000.0),
        ("a request through litellm, server included", litellm[1] * 1000, "ms", 50.0),
    ]


def _run(code: str, *arguments: str) -> list[float]:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def _milliseconds(code: str, *arguments: str) -> float:
    return min(_run(code, *arguments)[0] for _ in range(5)) * 1000


async def _following(server: LoopbackServer) -> float:
    client = ChatClient(Endpoint(server.url, "openai", key="k"))
    request = ModelRequest(model=MODEL, messages=(Message(role="user", text="hi"),))
    times: list[float] = []
    for _ in range(50):
        started = time.perf_counter()
        async for _ in client.stream(request, "m"):
            pass
        times.append(time.perf_counter() - started)
    await client.aclose()
    return statistics.median(times[5:]) * 1000


def _step_500() -> float:
    """What one more step costs when all but its own two messages were sent before."""
    messages: list[Message] = []
    encoder = Encoder(Endpoint("http://127.0.0.1/v1", "openai"))
    times: list[float] = []
    for step in range(500):
        call = ToolRequest(id=f"c{step}", name="read", arguments=json.dumps({"path": "a" * 2000}))
        messages += [Message(role="assistant", tool_calls=(call,)), Message(role="tool", call_id=call.id, text="é" * 1000)]
        request = ModelRequest(model=MODEL, messages=tuple(messages))
        started = time.thread_time()
        encoder.body(request, "m")
        times.append(time.thread_time() - started)
    return statistics.median(times[-20:]) * 1000


def _reading() -> float:
    body = b"".join(f"data: {json.dumps(chunk(content='word '))}\n\n".encode() for _ in range(10_000))
    body += b"".join(_bytes(text("end").body))
    reader, answer = AnswerReader(), Answer(Endpoint("http://127.0.0.1/v1", "openai"))
    started = time.thread_time()
    for start in range(0, len(body), 16_384):
        for value in reader.feed(body[start : start + 16_384]):
            for _ in answer.feed(value):
                pass
    return (time.thread_time() - started) * 1000


def _bytes(body: Any) -> list[bytes]:
    return [body] if isinstance(body, bytes) else list(body)


if __name__ == "__main__":
    for name, value, unit, target in figures():
        print(f"{name:55} {value:9.2f} {unit}  (target {target:g})")

"""Bodies that are sent oddly: compressed unasked, never ended."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import pytest
from moryflow.testing.replies import LoopbackServer, Reply, calls, chunk, text
from moryflow_sdk import Finished, Message, ModelError, ModelEvent, ModelInfo, ModelRequest, TextDelta
from moryflow_sdk.chat_completions import ChatClient, Endpoint
from moryflow_sdk.chat_completions.client import in_turn
from moryflow_sdk.chat_completions.failures import Broken
from moryflow_sdk.chat_completions.transport import MAX_AT_ONCE, unpacked

MODEL = ModelInfo(id="openai/m", name="m", provider="openai_compatible")
REQUEST = ModelRequest(model=MODEL, messages=(Message(role="user", text="hi"),))
ANSWER = b"".join(piece for piece in text("hello").body if isinstance(piece, bytes))


async def events(reply: Reply) -> list[ModelEvent]:
    """What comes of `reply`."""
    with LoopbackServer(reply) as server:
        client = ChatClient(Endpoint(server.url, "openai", timeout=60.0))
        try:
            return [event async for event in client.stream(REQUEST, "m")]
        finally:
            await client.aclose()


def said(found: list[ModelEvent]) -> str:
    return "".join(event.text for event in found if isinstance(event, TextDelta))


BODIES = {
    "gzip": gzip.compress(ANSWER),
    "X-GZIP": gzip.compress(ANSWER),
    "deflate": zlib.compress(ANSWER),
    "identity": ANSWER,
}


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("coding", BODIES)
async def test_an_answer_is_understood_however_it_was_packed(coding: str, size: int) -> None:
    """Some servers compress unasked (S4.7)."""
    body = Reply(BODIES[coding], headers={"content-encoding": coding}, chunking=size)
    assert said(await events(body)) == "hello"


@pytest.mark.parametrize(
    "words", [b"220 mail ESMTP\r\n", b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x46"]
)
async def test_what_is_not_http_is_called_that(words: bytes) -> None:
    """Another service at the port, or one that wants https, did not close the connection without an answer (S4.7)."""

    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words + b"\r\n" * 4)
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        with pytest.raises(ModelError) as caught:
            async for _ in ChatClient(Endpoint(url, "openai")).stream(REQUEST, "m"):
                pass
    assert caught.value.code == "unreachable" and "is not HTTP" in str(caught.value)


async def test_a_chunk_that_is_no_json_leaves_the_call_before_it_without_a_run() -> None:
    """The session shows the call, and why it has no result (S4.6)."""
    good = [piece for piece in calls(("ls", {"path": "."})).body if isinstance(piece, bytes)]
    with pytest.raises(ModelError) as caught:
        await events(Reply(b"".join(good[:2]) + b"data: {broken\n\n" * 2))
    assert [(call.name, call.problem) for call in caught.value.tool_calls] == [("ls", "incomplete")]


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip"])
async def test_a_compression_that_cannot_be_read_is_named(coding: str) -> None:
    """No guess is made at what it says (S4.7)."""
    with pytest.raises(ModelError) as caught:
        await events(Reply(gzip.compress(ANSWER), headers={"content-encoding": coding}))
    assert caught.value.code == "protocol" and "compressed" in str(caught.value)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("kept", [1, 5, -1, -9])
async def test_compressed_data_that_is_cut_off_is_no_whole_answer(coding: str, kept: int) -> None:
    """A body that only the closed connection ends says nowhere else that a part is missing (S4.7)."""

    async def body(data: bytes) -> AsyncGenerator[bytes]:
        for byte in data:
            yield bytes([byte])

    whole = BODIES[coding]
    assert b"".join([piece async for piece in unpacked(body(whole), coding)]).startswith(ANSWER)
    with pytest.raises(Broken, match="cut off"):
        async for _ in unpacked(body(whole[:kept]), coding):
            pass


async def test_a_bomb_is_unpacked_a_little_at_a_time() -> None:
    """A body of little bytes may hold a thousand times as many (R27)."""

    async def body() -> AsyncGenerator[bytes]:
        yield gzip.compress(bytes(1 << 24))

    sizes = [len(piece) async for piece in unpacked(body(), "gzip")]
    assert sum(sizes) == 1 << 24 and max(sizes) <= MAX_AT_ONCE


async def test_an_answer_that_was_packed_is_closed_where_its_reader_stopped() -> None:
    """Nothing of it is left to the event loop, which would have to wake for it."""
    endless = gzip.compress(ANSWER + b": more\n\n" * 20_000)
    before = sys.get_asyncgen_hooks()
    dropped: list[object] = []
    sys.set_asyncgen_hooks(finalizer=dropped.append)
    try:
        assert said(await events(Reply(endless, headers={"content-encoding": "gzip"}))) == "hello"
    finally:
        sys.set_asyncgen_hooks(*before)
    assert dropped == []


async def test_a_flood_of_small_events_leaves_the_host_its_turns() -> None:
    """What is read at once is little, and everything else runs in between (invariant 9)."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def body() -> AsyncIterator[bytes]:
        yield bytes(1 << 20)

    counting = asyncio.ensure_future(count())
    sizes = [len(piece) async for piece in in_turn(body())]
    counting.cancel()
    assert sum(sizes) == 1 << 20 and turns >= len(sizes) - 1 >= 63


@pytest.mark.parametrize(
    "noise", [b": wait\n\n", b"\n", b"data: {}\n\n", b"data: " + json.dumps(chunk(content="")).encode() + b"\n\n"]
)
async def test_what_comes_behind_the_end_of_an_answer_does_not_hold_it_up(
    noise: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that goes on for ever with comments after it said why it stopped has stopped (invariant 9)."""
    monkeypatch.setattr("moryflow_sdk.chat_completions.client.AFTER_FINISH", 0.3)

    def body() -> Iterator[bytes]:
        yield ANSWER.replace(b"data: [DONE]\n\n", b"")
        for _ in range(200):
            yield noise

    found = await events(Reply(body(), content_type="text/event-stream", pause=0.05))
    assert said(found) == "hello" and isinstance(found[-1], Finished)

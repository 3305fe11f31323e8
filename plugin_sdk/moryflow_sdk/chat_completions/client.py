"""One model call over HTTP: send the request, read the stream, turn every failure into a ``ModelError``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from itertools import count
from typing import Any, cast

from moryflow_sdk.errors import ModelError, redact
from moryflow_sdk.models import ModelEvent, ModelRequest, Status

from .answer import Answer, Delta
from .endpoint import Endpoint
from .failures import WIRE_ERRORS, TimedOut, check, connection_error, from_status, next_step, unsendable
from .profile import Profile
from .request import Encoder
from .sse import DONE, AnswerReader
from .transport import HttpClient, HttpResponse, WarmUp

AFTER_FINISH = 5.0
"""Seconds to wait for token counts once the model has said why it stopped."""

AFTER_DONE = 0.1
"""Seconds to wait for the end of the body, so that the connection can be used again."""

MAX_SILENT_TIMEOUTS = 4
"""A server that only sends keep-alive comments may do so for this many timeouts."""

MAX_AT_ONCE = 16 * 1024
"""Bytes that are read before other tasks of the host get a turn."""

ADAPTATIONS = 4
"""How often a refused request is changed as the server says, and sent again."""

ERROR_BODY = 64 * 1024
LIST_BODY = 8 * 1024 * 1024


class ChatClient:
    """A client of one server. It may be used for many calls, and from one event loop after another."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._encoder = Encoder(endpoint)
        self._warm_up = WarmUp(endpoint)
        self._client: HttpClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._profiles: dict[str, Profile] = {}
        self._said: set[tuple[str, str]] = set()

    def prepare(self) -> None:
        """Start to load what a request needs, in a thread."""
        self._warm_up.start()

    async def stream(self, request: ModelRequest, name: str) -> AsyncGenerator[ModelEvent]:
        """Yield the answer of the model that the server calls `name`. Closing the iterator drops the connection.

        :raises ModelError: the call failed; the error says what the user can do about it.
        """
        try:
            async with contextlib.aclosing(self._events(request, name)) as events:
                async for event in events:
                    yield event
        except ModelError as error:
            # A message may quote a page or a chunk, and that may repeat the request with the key in it.
            error.message = redact(error.message, self.endpoint.key)
            error.args = (error.message,)
            error.next_step = error.next_step or next_step(error.code, self.endpoint)
            raise

    async def _events(self, request: ModelRequest, name: str) -> AsyncGenerator[ModelEvent]:
        client = await self._ready()
        answer = Answer(self.endpoint)
        try:
            response = await self._ask(client, request, name)
            for status in self._refused(request, name):
                yield status
            async with contextlib.aclosing(self._deltas(response, answer)) as deltas:
                async for delta in deltas:
                    yield delta
        except WIRE_ERRORS as error:
            lost = connection_error(error, self.endpoint, answered=answer.begun)
            if lost.code != "incomplete":
                raise answer.add_unfinished(lost) from error
        except RecursionError as error:
            raise ModelError("the model's answer is nested too deeply", code="protocol") from error
        except ModelError as error:
            answer.add_unfinished(error)
            raise
        for event in answer.finish():
            yield event

    async def models(self, *, timeout: float = 5.0) -> list[str]:
        """Return the names of the models that the server lists.

        :raises ModelError: the server does not answer, or its answer is not a list.
        """
        client = await self._ready()
        try:
            async with asyncio.timeout(timeout):
                response = await self._send(client, "GET", "/models")
                if response.status != 200:
                    raise await self._failure(response)
                return _names(await _limited(response, LIST_BODY))
        except (*WIRE_ERRORS, TimeoutError) as error:
            raise connection_error(error, self.endpoint) from error

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def _ready(self) -> HttpClient:
        loop = asyncio.get_running_loop()
        if self._client is not None and self._loop is loop:
            return self._client
        check(self.endpoint)
        # Shielded: if one caller is cancelled during the load, later callers still need it.
        context = await asyncio.shield(asyncio.wrap_future(self._warm_up.start()))
        if self._client is None or self._loop is not loop:
            try:
                self._client, self._loop = HttpClient(self.endpoint, context), loop
            except ValueError:  # a header that cannot be written
                raise unsendable(self.endpoint) from None
        return self._client

    async def _ask(self, client: HttpClient, request: ModelRequest, name: str) -> HttpResponse:
        """Send a request; send it again without a parameter, a field or a tool that the server names in its refusal."""
        profile = self._profiles.setdefault(name, Profile())
        for attempt in count(1):
            response = await self._send(client, "POST", "/chat/completions", self._encoder.body(request, name, profile))
            if 200 <= response.status < 300:
                return response
            error = await self._failure(response)
            if attempt > ADAPTATIONS or not self._encoder.learn(error, request, name, profile):
                raise error
        raise AssertionError("unreachable")

    def _refused(self, request: ModelRequest, name: str) -> Iterator[Status]:
        for what in self._encoder.left_out(request, self._profiles[name]):
            if (name, what) not in self._said:
                self._said.add((name, what))
                yield refusal_of(self.endpoint, what, name)

    async def _send(self, client: HttpClient, method: str, path: str, body: bytes | None = None) -> HttpResponse:
        try:
            return await client.send(method, path, body)
        except ValueError:
            raise unsendable(self.endpoint) from None

    async def _failure(self, response: HttpResponse) -> ModelError:
        body = b""
        with contextlib.suppress(*WIRE_ERRORS, TimeoutError):
            async with asyncio.timeout(self.endpoint.timeout):
                body = await _limited(response, ERROR_BODY)
        return from_status(response.status, response.headers, body, self.endpoint)

    async def _deltas(self, response: HttpResponse, answer: Answer) -> AsyncGenerator[Delta]:
        """Yield deltas until ``[DONE]`` or the end. A connection lost after the end of the answer is not an error."""
        reader = AnswerReader()
        heard = time.monotonic()
        ended = False
        try:
            async with contextlib.aclosing(in_turn(response.pieces())) as pieces:
                while not ended:
                    piece = await self._next(pieces, heard, answer)
                    ended = piece is None
                    for value in reader.close() if piece is None else reader.feed(piece):
                        before = answer.finished, answer.parts
                        for delta in answer.feed(value):
                            yield delta
                        if before != (True, answer.parts):  # after the end, only parts of the answer extend the wait
                            heard = time.monotonic()
                        if value is DONE:
                            ended = True
                await self._drain(response, pieces)
        finally:
            await response.aclose()

    async def _next(self, pieces: AsyncIterator[bytes], heard: float, answer: Answer) -> bytes | None:
        """Return the next bytes, or ``None`` at the end. If only token counts may still come, the wait is short."""
        wait = AFTER_FINISH if answer.finished else MAX_SILENT_TIMEOUTS * self.endpoint.timeout
        try:
            async with asyncio.timeout(max(heard + wait - time.monotonic(), 0.0)):
                return await anext(pieces, None)
        except (*WIRE_ERRORS, TimeoutError) as error:
            if answer.finished:
                return None
            if isinstance(error, TimeoutError):
                raise TimedOut("no part of the answer came in time") from None
            raise

    @staticmethod
    async def _drain(response: HttpResponse, pieces: AsyncIterator[bytes]) -> None:
        rest = 0
        with contextlib.suppress(*WIRE_ERRORS, TimeoutError):
            if response.has_ended:
                return
            async with asyncio.timeout(AFTER_DONE):
                async for piece in pieces:
                    rest += len(piece)
                    if rest > ERROR_BODY:
                        return


def refusal_of(endpoint: Endpoint, what: str, name: str) -> Status:
    """Return the event that says that a model takes a parameter or a tool not."""
    return Status(text=f"{endpoint.label} refuses {what} for {name}; the request goes without it", lasting=True)


async def in_turn(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield `pieces` in small parts, so that other tasks of the host run in between when many events come at once."""
    async for piece in pieces:
        yield piece[:MAX_AT_ONCE]
        for start in range(MAX_AT_ONCE, len(piece), MAX_AT_ONCE):
            await asyncio.sleep(0)
            yield piece[start : start + MAX_AT_ONCE]


async def _limited(response: HttpResponse, limit: int) -> bytes:
    body = bytearray()
    try:
        async for piece in response.pieces():
            body += piece
            if len(body) > limit:
                break
    finally:
        await response.aclose()
    return bytes(body[:limit])


def _names(body: bytes) -> list[str]:
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    items: Any = cast("dict[str, Any]", document).get("data") if isinstance(document, dict) else document
    if not isinstance(items, list):
        raise ModelError("the server's list of models is not one", code="protocol")
    found = [cast("dict[str, Any]", item).get("id") for item in cast("list[Any]", items) if isinstance(item, dict)]
    return [name for name in found if isinstance(name, str) and name]

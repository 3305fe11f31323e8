"""How the helper process reaches a server: a program whose lines have a limit, or an address that is checked."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter
from mcp_types.methods import parse_server_result
from moryflow_sdk.support.processes import CALL_MARK, children
from moryflow_sdk.support.urls import NotPublic, public, vetted
from pydantic import ValidationError

from .helper import servers_mark

MAX_BYTES = 32 * 1024 * 1024
"""The largest message, or HTTP response, in bytes."""
MAX_NOISE = 1000
"""How many lines on standard output may be no messages before the connection ends."""
_GRACE = 1.0
_LAST_WORDS = 20
_PARSE_ERROR = -32700
_ID = re.compile(rb'"id"\s*:\s*"?(\d{1,18})')
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


class ServerGone(Exception):
    """The server cannot be reached any more; the message says why."""


class Programs:
    """The programs of all servers of this process.

    :ivar running: their process ids.
    :ivar starting: how many programs are being started, so that their process ids are not known yet.
    """

    def __init__(self) -> None:
        self.running = set[int]()
        self.starting = 0

    def reap_orphans(self) -> None:
        """Reap adopted children that have ended; asyncio waits for the programs themselves."""
        for child in () if self.starting else children(os.getpid()):
            if child not in self.running:
                with suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)


class ServerProgram:
    """A running server program. The last lines of its standard error are kept, for the message when it ends."""

    def __init__(self, spec: Mapping[str, Any], programs: Programs) -> None:
        self._spec = spec
        self._programs = programs
        self._noise = 0
        self._ending = False
        self._words: deque[str] = deque(maxlen=_LAST_WORDS)
        self.ended = ""

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Any]:
        """Start the program and yield the streams of its messages; afterwards end it, with all processes that it started.

        :raises OSError: the program cannot be started.
        """
        process = await self._start()
        to_client, messages = anyio.create_memory_object_stream[SessionMessage | Exception](16)
        outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](0)
        reading = (self._read(process, to_client), self._watch(process, to_client), self._listen(process))
        tasks = [asyncio.create_task(work) for work in (*reading, self._write(process, from_client))]
        try:
            yield messages, outgoing
        finally:
            self._ending = True
            await _end(process)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (to_client, messages, outgoing, from_client):
                stream.close()
            if process.returncode is not None:
                self._programs.running.discard(process.pid)

    async def _start(self) -> Any:
        self._programs.starting += 1
        try:
            process = await asyncio.create_subprocess_exec(
                self._spec["command"],
                *self._spec["args"],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**self._spec["env"], CALL_MARK: servers_mark(os.environ.get(CALL_MARK, "mcp"))},
                cwd=self._spec["cwd"],
                start_new_session=True,
                preexec_fn=_die_with_parent,
                limit=MAX_BYTES,
            )
            self._programs.running.add(process.pid)
        finally:
            self._programs.starting -= 1
        return process

    def last_words(self) -> str:
        """Return why the program ended, and the last lines that it printed."""
        words = " / ".join(word for word in self._words if word.strip())
        return "; ".join(part for part in (self.ended, f"it said: {words[-1500:]}" if words else "") if part)

    async def _read(self, process: Any, into: Any) -> None:
        async with into:
            try:
                async for line in process.stdout:
                    message = self._message(line)
                    if message is not None:
                        await into.send(message)
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _GRACE)
                if not self._ending:  # if we end it ourselves, its exit code explains nothing
                    code = process.returncode
                    how = "it closed its standard output" if code is None else f"the program ended with code {code}"
                    self.ended = self.ended or how
            except ValueError:
                self.ended = f"it printed a line of more than {MAX_BYTES // 2**20} MiB"
            except ServerGone as error:
                self.ended = str(error)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def _watch(self, process: Any, into: Any) -> None:
        """End the messages after the program, also if a process that it started keeps its standard output open."""
        while process.returncode is None:  # `wait` may wait for the pipes too
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _GRACE)
        await asyncio.sleep(_GRACE)  # for what it printed before
        if not self._ending:
            self.ended = self.ended or f"the program ended with code {process.returncode}"
            into.close()

    def _message(self, line: bytes) -> SessionMessage | None:
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValidationError as error:
            if failed := _failed_answer(line, error):
                return failed
            self._noise += 1
            self._words.append(line.decode("utf-8", "replace")[:200])
            if self._noise > MAX_NOISE:
                raise ServerGone(f"it printed more than {MAX_NOISE} lines that are not messages") from None
            return None

    async def _write(self, process: Any, messages: Any) -> None:
        async with messages:
            async for item in messages:
                line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(line.encode() + b"\n")
                try:
                    await process.stdin.drain()
                except OSError:
                    return

    async def _listen(self, process: Any) -> None:
        while chunk := await process.stderr.read(65536):
            self._words.extend(line[:200] for line in chunk.decode("utf-8", "replace").splitlines()[-_LAST_WORDS:])


UNREADABLE = "its answer cannot be read: "
NO_ANSWER = "it has neither a result that is an object nor an error"
NO_REQUEST = "it does not have the id of the request"


def _failed_answer(line: bytes, error: ValidationError) -> SessionMessage | None:
    """Return an error message in place of an answer that cannot be parsed, so that its call does not wait in vain."""
    first = error.errors(include_url=False)[0]
    why = first["msg"] if first["type"] == "json_invalid" else NO_ANSWER
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        numbers = _ID.findall(line)
        sole = len(numbers) == 1 and b'"jsonrpc"' in line and b'"method"' not in line
        return _error(int(numbers[0]), why) if sole else None
    if not isinstance(value, dict) or "jsonrpc" not in value or "method" in value:
        return None
    number = str(value.get("id"))
    return _error(int(number), why) if _NUMBER.fullmatch(number) else _error(None, NO_REQUEST)


def _error(number: int | None, why: str) -> SessionMessage:
    data = ErrorData(code=_PARSE_ERROR, message=f"{UNREADABLE}{why}")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=data))


def _die_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


async def _end(process: Any) -> None:
    """Close the input of the process, and end its whole process group, by force if needed."""
    with suppress(OSError, RuntimeError):
        process.stdin.close()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _GRACE)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.killpg(process.pid, number)
        if process.returncode is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _GRACE)


# ---------------------------------------------------------------- errors for which the SDK would refuse too much


PROBLEM = "moryflow.app/problem"
"""The key in ``_meta`` of a placeholder for an invalid entry of a list; its value says what is wrong."""
_LISTS = {
    "tools/list": ("tools", {"inputSchema": {"type": "object"}}),
    "prompts/list": ("prompts", {}),
    "resources/list": ("resources", None),
    "resources/templates/list": ("resourceTemplates", None),
}
"""Method of a request for a list → the field with the list, and the placeholder for an invalid entry (its name is added);
``None`` if invalid entries are left out."""


class Exchange:
    """Repairs messages of a connection on their way to the SDK.

    Without it, the SDK refuses a whole list because of one invalid entry, and lets a call wait for its deadline if its answer
    has a wrong id.

    :param version: returns the negotiated version of the protocol.
    """

    def __init__(self, version: Callable[[], str]) -> None:
        self._version = version
        self._asked: dict[int, str] = {}
        self._last = -1

    @asynccontextmanager
    async def over(self, transport: Any) -> AsyncGenerator[Any]:
        """Open `transport` and yield its streams."""
        async with transport as (messages, outgoing):
            yield _Stream(messages, self._received), _Stream(outgoing, self._sent)

    def _sent(self, item: SessionMessage) -> SessionMessage:
        message = item.message
        if isinstance(message, JSONRPCRequest) and isinstance(message.id, int):
            self._asked[message.id] = message.method
            self._last = max(self._last, message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._asked.pop((message.params or {}).get("requestId", -1), None)
        return item

    def _received(self, item: Any) -> Any:
        message = getattr(item, "message", None)
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            return item
        number = int(str(message.id)) if _NUMBER.fullmatch(str(message.id)) else None
        if number is not None and number <= self._last:  # perhaps a late answer to a cancelled call
            method = self._asked.pop(number, "")
            if method in _LISTS and isinstance(message, JSONRPCResponse):
                self._repair_list(method, message.result)
        elif len(self._asked) == 1:  # with several open calls, it would not be clear which one it answers
            waiting, _ = self._asked.popitem()
            if not isinstance(message, JSONRPCError):
                return _error(waiting, NO_REQUEST)
            message.id = waiting
        return item

    def _repair_list(self, method: str, result: dict[str, Any]) -> None:
        """Replace the invalid entries of a list by placeholders, or leave them out."""
        field, shape = _LISTS[method]
        entries = result.get(field)
        if isinstance(entries, list) and self._fault(method, result):
            checked = [(each, self._fault(method, {**result, field: [each]})) for each in entries]
            mended = [_stand_in(each, why, shape) if why else each for each, why in checked]
            result[field] = [each for each in mended if each is not None]

    def _fault(self, method: str, result: Mapping[str, Any]) -> str:
        """Return what is wrong with a result; empty if it is valid."""
        try:
            parse_server_result(method, self._version(), result)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return ": ".join(filter(None, (".".join(map(str, first["loc"][2:])), first["msg"])))
        return ""


def _stand_in(entry: Any, why: str, shape: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if shape is None:
        return None
    name = entry.get("name") if isinstance(entry, dict) else None
    return {"name": str(name)[:200], **shape, "_meta": {PROBLEM: f"the protocol does not allow its definition: {why}"[:300]}}


class _Stream:
    """A stream of messages that passes each of them through a function."""

    def __init__(self, inner: Any, look: Callable[[Any], Any]) -> None:
        self._inner = inner
        self._look = look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send(self, item: Any) -> None:
        await self._inner.send(self._look(item))

    async def receive(self) -> Any:
        return self._look(await self._inner.receive())

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> _Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._inner.aclose()


# ---------------------------------------------------------------- addresses


_failure: ContextVar[list[str]] = ContextVar("moryflow_mcp_failure")


def noted_failure() -> list[str]:
    """Return a list that will contain the HTTP error of the last message, which the SDK does not report.

    It covers the messages of this task only, because the SDK sends a message in the context of its caller.
    """
    _failure.set([])
    return _failure.get()


def _note(why: str) -> None:
    _failure.get([])[:] = [why] if why else []


class JudgedTransport(httpx2.AsyncBaseTransport):
    """Connects to exactly the address that was checked: any address for the configured server, a public one for all others.

    If the configured server is on this machine, the hosts that it names, such as its authorization server, may be too. All
    hosts that are neither on this machine nor the server itself must use https, because keys are sent to them.

    :ivar refused: whether the server required a login.
    :ivar lost: whether the server does not know the session any more.
    """

    def __init__(self, url: str) -> None:
        self._own, self._path = _place(httpx2.URL(url)), httpx2.URL(url).path
        self._local = False
        self.refused = self.lost = False
        self._connections: dict[str, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.host
        address = await self._checked_address(request.url)
        inner = self._connections.setdefault(host, httpx2.AsyncHTTPTransport(trust_env=False))
        sent = httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers={**request.headers, "accept-encoding": "identity"},
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        response = await inner.handle_async_request(sent)
        if own := (_place(request.url), request.url.path) == (self._own, self._path):
            more = response.status_code == 403 and "insufficient_scope" in response.headers.get("www-authenticate", "")
            self.refused = more or response.status_code == 401
            self.lost = self.lost or (response.status_code == 404 and "mcp-session-id" in request.headers)
        if (packed := response.headers.get("content-encoding", "identity")) != "identity":
            await response.aclose()  # the size of its decompressed body would have no limit
            raise _unreadable(f"the answer is compressed with {packed[:20]!r}, which was not requested")
        response.stream = _Bounded(response.stream)
        if own and request.method == "POST":
            said = f"HTTP {response.status_code} {httpx2.codes.get_reason_phrase(response.status_code)}".rstrip()
            _note("" if not response.is_error or await _explains_itself(response) else said)
        return response

    async def aclose(self) -> None:
        for connection in self._connections.values():
            await connection.aclose()

    async def check(self, url: httpx2.URL) -> None:
        """Check an address that a browser will open.

        :raises httpx2.ConnectError: this transport would refuse to connect to it.
        """
        await self._checked_address(url)

    async def _checked_address(self, url: httpx2.URL) -> str:
        if url.scheme not in ("http", "https") or url.userinfo:
            raise httpx2.ConnectError(
                f"connections to {str(url)[:200]} are refused: it is not an http or https address without a password"
            )
        place = _place(url)
        found = await asyncio.get_running_loop().getaddrinfo(place[1], place[2], type=socket.SOCK_STREAM)
        answers = [str(entry[4][0]) for entry in found]
        if place == self._own:
            if wrong := _unintended_address(url.host, answers):
                raise httpx2.ConnectError(f"{url.host} resolves to {wrong}; connections to it are refused")
            self._local = all(map(_is_loopback, answers))
            return answers[0]
        if self._local and all(map(_is_loopback, answers)):
            return answers[0]
        if url.scheme != "https":
            raise httpx2.ConnectError(f"connections to {str(url)[:200]} are refused: it is not https")
        try:
            return str(vetted(answers)[0])
        except NotPublic as error:
            raise httpx2.ConnectError(f"connections to {str(url)[:200]} are refused: {error}") from error


def _place(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback


_PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))


def _unintended_address(host: str, answers: Sequence[str]) -> str:
    """Return an address that the author of `host` cannot have meant: neither public nor in a private network.

    Such addresses, in whatever form, are those of this machine or its cloud services.
    """
    if host == "localhost" or host in answers:
        return ""
    found = ((each, ip_address(each)) for each in answers)
    return next((each for each, address in found if not (public(address) or any(address in one for one in _PRIVATE))), "")


async def _explains_itself(response: httpx2.Response) -> bool:
    """Whether the body is an error message of the protocol; the SDK passes those on, and replaces all others by its own."""
    if not response.headers.get("content-type", "").lower().startswith("application/json"):
        return False
    try:
        return isinstance(jsonrpc_message_adapter.validate_json(await response.aread(), by_name=False), JSONRPCError)
    except (ValidationError, httpx2.HTTPError):
        return False


def _unreadable(why: str) -> httpx2.ReadError:
    _note(why)
    return httpx2.ReadError(why)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_BYTES
        async for piece in self._inner:
            left -= len(piece)
            if left < 0:
                raise _unreadable(f"the answer is larger than {MAX_BYTES // 2**20} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


def host_of(url: str) -> str:
    """Return the part of the address that belongs to a server's identity: scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"

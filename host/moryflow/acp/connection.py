"""JSON-RPC 2.0 over two descriptors, one message a line: requests and notifications in, answers out, and our own requests.

One thread reads messages, and the loop handles them in order. Another thread writes, so that a client that does not read
cannot block the loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NoReturn

from moryflow_sdk import MoryflowError

# The most bytes of a message.
MAX_LINE = 10 << 20
# The most bytes that may wait for a client to read them; with more, the client counts as gone.
UNREAD = 64 << 20
# How many messages may be read before the first of them is handled.
AHEAD = 1_000
# How long the last answers may take to be written.
FLUSH_SECONDS = 2.0

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
AUTH_REQUIRED, NOT_FOUND = -32000, -32002
Params = Mapping[str, Any]
# For a request's method, the notification that stops its work.
CANCELLED_BY = {"session/prompt": "session/cancel"}


class RpcError(MoryflowError):
    """An error that is sent as the answer to a request.

    :ivar number: the code of JSON-RPC or of the protocol.
    """

    def __init__(self, number: int, message: str, next_step: str = "", code: str = "invalid") -> None:
        super().__init__(message, next_step=next_step)
        self.number, self.code = number, code


def lines_of(read: Callable[[], bytes]) -> Iterator[bytes | None]:
    """Yield the lines of the data that `read` returns, until it returns none; ``None`` for a line longer than :data:`MAX_LINE`.

    Data after the last newline is an incomplete message and is dropped.
    """
    parts: list[bytes] = []
    size = 0
    while data := read():
        *ended, rest = data.split(b"\n")
        for piece in ended:
            yield None if size + len(piece) > MAX_LINE else b"".join((*parts, piece))
            parts, size = [], 0
        size += len(rest)
        parts = [*parts, rest] if size <= MAX_LINE else []


def message_in(line: bytes) -> dict[str, Any]:
    """Return the message in a line.

    :raises RpcError: the line is not JSON, or not an object.
    """
    try:
        message = json.loads(line.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RpcError(
            PARSE_ERROR, f"this line is not JSON: {str(error)[:200]}", "send one message a line, in UTF-8"
        ) from error
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, "a message is a JSON object", "batches are not part of the protocol")
    return message


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class EditorConnection:
    """The connection to one client.

    :param requests: by method, the function that answers a request: it takes the parameters and returns the result.
    :param notifications: by method, the function that takes the parameters of a notification.
    :ivar ended: set when the client has disconnected.
    """

    def __init__(
        self,
        requests: Mapping[str, Callable[[Params], Awaitable[Any]]],
        notifications: Mapping[str, Callable[[Params], None]],
    ) -> None:
        self._requests, self._notifications = requests, notifications
        self._loop = asyncio.get_running_loop()
        self._our_requests: dict[int, asyncio.Future[Any]] = {}
        self._client_requests: dict[Any, tuple[asyncio.Task[None], str, Params]] = {}
        self._number = 0
        self._ahead = threading.Semaphore(AHEAD)
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._queued = 0
        self._written = 0
        self._draining, self._room = False, asyncio.Event()
        self._writer: threading.Thread | None = None
        self.ended = asyncio.Event()

    def start(self, read_from: int, write_to: int) -> None:
        self._writer = threading.Thread(target=self._write, args=(write_to,), name="moryflow-acp-out", daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, args=(read_from,), name="moryflow-acp-in", daemon=True).start()

    # ---------------------------------------------------------------- incoming messages

    def _read(self, descriptor: int) -> None:
        try:
            for line in lines_of(lambda: os.read(descriptor, 1 << 16)):
                self._ahead.acquire()
                self._loop.call_soon_threadsafe(self._on_line, line)
        except OSError:  # the descriptor's other end is gone
            pass
        except RuntimeError:  # the loop is closed
            return
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.ended.set)

    def _on_line(self, line: bytes | None) -> None:
        self._ahead.release()
        if line is not None and not line.strip():
            return
        message: dict[str, Any] = {}
        try:
            if line is None:
                raise RpcError(
                    INVALID_REQUEST, f"a message has at most {MAX_LINE >> 20} MiB", "send large files as resource links"
                )
            message = message_in(line)
            self._handle(message)
        except RpcError as error:
            self._send_error(_id_of(message), error)

    def _handle(self, message: dict[str, Any]) -> None:
        if message.get("jsonrpc") != "2.0":
            raise RpcError(INVALID_REQUEST, 'a message says "jsonrpc": "2.0"')
        if "method" not in message and ("result" in message or "error" in message):
            self._on_answer(message)
            return
        method, params = message.get("method"), message.get("params")
        if not isinstance(method, str):
            raise RpcError(INVALID_REQUEST, "a message has a method, or is an answer")
        if "id" not in message:
            self._on_notification(method, params if isinstance(params, dict) else {})
            return
        number = message["id"]
        if isinstance(number, bool) or not isinstance(number, str | int | None):
            raise RpcError(INVALID_REQUEST, "the id of a request is a text or a whole number")
        if number in self._client_requests:
            raise RpcError(INVALID_REQUEST, f"the request {number!r} is still being worked on", "use an id once")
        if not isinstance(params, dict | None):
            raise RpcError(INVALID_PARAMS, "the parameters are an object")
        if method not in self._requests:
            raise RpcError(NO_METHOD, f"there is no method {method[:100]!r} here", code="no_method")
        task = self._loop.create_task(self._answer(number, self._requests[method], params or {}))
        self._client_requests[number] = (task, method, params or {})
        task.add_done_callback(lambda _: self._client_requests.pop(number, None))

    def _on_notification(self, method: str, params: Params) -> None:
        """Handle a notification after all requests that came before it have begun."""
        if method == "$/cancel_request":
            of = self._client_requests.get(_id_of({"id": params.get("requestId")}))
            method, params = (CANCELLED_BY.get(of[1], ""), of[2]) if of else ("", params)
        hear = self._notifications.get(method)
        if hear is not None:
            self._loop.call_soon(hear, params)

    async def _answer(self, number: Any, work: Callable[[Params], Awaitable[Any]], params: Params) -> None:
        try:
            result = await work(params)
        except MoryflowError as error:
            self._send_error(number, error)
        except Exception as error:  # the boundary around one request: the client gets an error, other requests continue
            self._loop.call_exception_handler({"message": "a request of the editor failed", "exception": error})
            self._send_error(number, RpcError(INTERNAL, f"{type(error).__name__}: {error}", "moryflow doctor", "internal"))
        else:
            self.send({"jsonrpc": "2.0", "id": number, "result": result})

    def _on_answer(self, message: dict[str, Any]) -> None:
        number = message.get("id")
        waiting = self._our_requests.pop(number, None) if isinstance(number, int) else None
        if waiting is None or waiting.done():
            return
        if "error" in message:
            error = message["error"]
            said = error.get("message") if isinstance(error, dict) else None
            waiting.set_exception(RpcError(INTERNAL, str(said or "the client answered with an error")[:500], code="client"))
        else:
            waiting.set_result(message["result"])

    # ---------------------------------------------------------------- outgoing messages

    async def ask(self, method: str, params: Params) -> Any:
        """Send a request and return its result. If the caller is cancelled, the request is withdrawn.

        :raises RpcError: the client answered with an error.
        """
        self._number += 1
        number, future = self._number, self._loop.create_future()
        self._our_requests[number] = future
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        try:
            return await future
        finally:
            if self._our_requests.pop(number, None) is not None:
                self.notify("$/cancel_request", {"requestId": number})

    def notify(self, method: str, params: Params) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def _send_error(self, number: Any, error: MoryflowError) -> None:
        code = error.number if isinstance(error, RpcError) else INTERNAL
        about = {"code": error.code, "where": error.where, "next": error.next_step}
        shown = {"code": code, "message": str(error), "data": {name: text for name, text in about.items() if text}}
        self.send({"jsonrpc": "2.0", "id": number, "error": shown})

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message after the earlier ones. A lone surrogate becomes ``?``, because many clients reject its escape."""
        if self.ended.is_set() and self._queued - self._written > UNREAD:
            return
        data = json.dumps(message, ensure_ascii=False, separators=(",", ":"), default=str).encode("utf-8", "replace") + b"\n"
        self._queued += len(data)
        self._out.put(data)
        if self._queued - self._written > UNREAD:
            self.ended.set()

    async def drain(self) -> None:
        """Wait until the client has read most of what was sent."""
        self._draining = True
        while self._queued - self._written > UNREAD // 8:
            self._room.clear()
            await self._room.wait()
        self._draining = False

    def _write(self, descriptor: int) -> None:
        try:
            while (data := self._out.get()) is not None:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                self._written += len(data)
                if self._draining and not self._loop.is_closed():
                    self._loop.call_soon_threadsafe(self._room.set)
        except OSError:  # the client no longer reads
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.ended.set)

    async def aclose(self) -> None:
        """Wait for the answers to open requests, whose work the caller has interrupted, and write them."""
        for future in self._our_requests.values():
            future.cancel()
        if tasks := [task for task, _, _ in self._client_requests.values()]:
            _, late = await asyncio.wait(tasks, timeout=FLUSH_SECONDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        self._out.put(None)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.join, FLUSH_SECONDS)


def _id_of(message: Mapping[str, Any]) -> Any:
    number = message.get("id")
    return number if isinstance(number, str | int) and not isinstance(number, bool) else None

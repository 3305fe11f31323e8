"""A scripted model server on loopback, and functions that make its replies: streams, stalls, cuts, resets, throttles, errors.

It implements just enough HTTP/1.1, on its own threads, so that it works with any event loop and with other processes.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

End = Literal["close", "cut", "reset", "stall", "silent", "refuse"]
"""How a reply ends: properly (``close``), in the middle (``cut``), with a TCP reset (``reset``), that before any header
(``refuse``), never (``stall``), never, without headers (``silent``)."""


@dataclass(frozen=True)
class Reply:
    """A reply of the server. It sends `body` in writes of `chunking` bytes, `pause` seconds apart, after `before` seconds."""

    body: bytes | Iterable[bytes] = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content_type: str = "application/json"
    end: End = "close"
    chunking: int = 0
    before: float = 0.0
    pause: float = 0.0

    def but(self, **changes: Any) -> Reply:
        """Return a copy of this reply with `changes`."""
        return replace(self, **changes)


def stream(*chunks: Any, done: bool = True, end: End = "close") -> Reply:
    """Return an event stream of `chunks`; objects are sent as JSON, texts as they are."""
    lines = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    body = [f"data: {line}\n\n".encode() for line in [*lines, *(["[DONE]"] if done else [])]]
    return Reply(body, content_type="text/event-stream", end=end)


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """Return one chunk of a chat-completions stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "test-model", "choices": [choice]}


def usage(prompt: int = 10, completion: int = 5, cached: int = 0) -> dict[str, Any]:
    """Return the chunk with the token counts."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": {"cached_tokens": cached}}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "test-model", "choices": [], "usage": counts}


def text(answer: str) -> Reply:
    """Return an answer with text only."""
    return stream(*[chunk(content=piece) for piece in re.findall(r"\S+\s*|\s+", answer)], chunk("stop"), usage())


def calls(*requests: tuple[str, Any], said: str = "", ids: Sequence[str] = ()) -> Reply:
    """Return an answer that calls tools: ``calls(("read", {"path": "a"}), ("ls", {}))``."""
    deltas: list[dict[str, Any]] = [chunk(content=said)] if said else []
    for index, (name, arguments) in enumerate(requests):
        id = ids[index] if index < len(ids) else f"call_{index}"
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        head = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        rest = {"index": index, "function": {"arguments": written}}
        deltas += [chunk(tool_calls=[head]), chunk(tool_calls=[rest])]
    return stream(*deltas, chunk("tool_calls"), usage())


def failure(status: int, message: str = "it failed", *, retry_after: str | float | None = None, **fields: Any) -> Reply:
    """Return an HTTP error, for example ``failure(429, retry_after=2)``."""
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return Reply(json.dumps({"error": {"message": message, **fields}}).encode(), status=status, headers=headers)


@dataclass(frozen=True)
class Recorded:
    """A request that the server received. Header names are lower case; `body` is parsed JSON, or ``None``."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes = field(repr=False)
    body: Any = None


class LoopbackServer:
    """A model server that answers with the replies from :meth:`add`, in order, and after that with `otherwise`.

    :ivar requests: all requests except those for the list of models.
    :ivar names: the names of models that ``GET /v1/models`` lists.
    """

    def __init__(self, *replies: Reply, otherwise: Reply | None = None) -> None:
        self.requests: list[Recorded] = []
        self.names: list[str] = ["test-model"]
        self.connections = 0
        self._replies = deque(replies)
        self._otherwise = otherwise or text("ok")
        self._stop = threading.Event()
        self._asked = threading.Event()
        self._lock = threading.Lock()
        self._http = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="loopback-model", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """``http://127.0.0.1:PORT``, for services whose base URL has no ``/v1``."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def url(self) -> str:
        """The base URL of the chat-completions service."""
        return f"{self.address}/v1"

    def add(self, *replies: Reply) -> None:
        """Append replies to the script."""
        with self._lock:
            self._replies.extend(replies)

    def wait_for_request(self, timeout: float = 60.0) -> None:
        """Block until the server has received a request.

        :raises TimeoutError: it received none in time.
        """
        if not self._asked.wait(timeout):
            raise TimeoutError("no request came")

    def close(self) -> None:
        """Stop the server, and end replies that stall."""
        self._stop.set()
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answer(self, request: Recorded, handler: BaseHTTPRequestHandler) -> bool:
        """Send the reply for `request`; return whether the connection may be used again."""
        if request.method == "GET" and request.path.endswith("/models"):
            reply = Reply(json.dumps({"object": "list", "data": [{"id": name} for name in self.names]}).encode())
        else:
            with self._lock:
                self.requests.append(request)
                self._asked.set()
                reply = self._replies.popleft() if self._replies else self._otherwise
        return self._send(reply, handler)

    def _send(self, reply: Reply, handler: BaseHTTPRequestHandler) -> bool:
        if reply.before and self._stop.wait(reply.before):
            return False
        if reply.end == "silent":
            self._stop.wait()
            return False
        if reply.end == "refuse":
            _reset(handler.connection)
            return False
        with contextlib.suppress(OSError):
            self._write(reply, handler)
            return reply.end == "close"
        return False

    def _write(self, reply: Reply, handler: BaseHTTPRequestHandler) -> None:
        headers = {"content-type": reply.content_type, **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} Reply", *(f"{name}: {value}" for name, value in headers.items())]
        handler.wfile.write("\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode("latin-1"))
        for piece in _pieces(reply):
            if reply.pause and self._stop.wait(reply.pause):
                return
            if piece:
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                handler.wfile.flush()
        match reply.end:
            case "close":
                handler.wfile.write(b"0\r\n\r\n")
            case "stall":
                self._stop.wait()
            case "reset":
                _reset(handler.connection)
            case _:
                pass


def _pieces(reply: Reply) -> Iterator[bytes]:
    body = (reply.body,) if isinstance(reply.body, bytes) else reply.body
    for part in body:
        step = reply.chunking or max(len(part), 1)
        for start in range(0, len(part), step):
            yield part[start : start + step]


def _reset(connection: socket.socket) -> None:
    """Close the connection with a TCP reset, as a crashed server or a proxy does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients that disconnect are a normal part of these tests."""


def _handler(server: LoopbackServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

        def setup(self) -> None:
            server.connections += 1
            super().setup()

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            try:
                body: Any = json.loads(raw) if raw else None
            except ValueError:
                body = None
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.close_connection = not server.answer(Recorded(self.command, self.path, headers, raw, body), self)

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return Handler

"""What strangers may hold: a connection ends if its request does not come, or if its answer is not read."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from functools import partial
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .replies import SAFE_HEADERS, encoded, error_document

# How long a new connection may take to send the head of its first request.
HEAD_SECONDS = 15.0
# How long the body of a request may take.
BODY_SECONDS = 120.0
# How long a connection may take from an answer to the head of its next request.
KEEP_SECONDS = 75
# How long a client may read nothing of what waits for it.
STALLED_SECONDS = 30.0
MAX_CONNECTIONS = 2_048
_NOTICE_SECONDS = 60.0


class ConnectionLimits:
    """What the connections of a server share.

    :ivar most: how many there may be: half of the files that this process may have open.
    :ivar backlog: how many the event loop accepts at once; they are not counted until then.
    :ivar waiting: the connections whose client has to do something, with their deadlines; the longest first.
    """

    def __init__(self) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = min(MAX_CONNECTIONS, files // 2) if files != resource.RLIM_INFINITY else MAX_CONNECTIONS
        self.backlog = max(4, self.most // 8)
        self.waiting: dict[HttpConnection, asyncio.TimerHandle] = {}


class HttpConnection(H11Protocol):
    """A connection with deadlines, which nothing that a client sends extends.

    uvicorn has one only between an answer and the first byte of the next request. If there are too many connections, the one
    that has waited longest for its client gives way.
    """

    def __init__(self, limits: ConnectionLimits, **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self._arriving: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(HEAD_SECONDS)
        if len(self.connections) > self._limits.most:
            longest = next(iter(self._limits.waiting))  # there is always one, if only this
            longest._go_on()
            longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._go_on()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._answering:
            return
        if not self.cycle.more_body:
            self._go_on()
        elif self._arriving is not self.cycle:
            self._arriving = self.cycle
            self._wait(BODY_SECONDS)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._answering:  # else the next request is there already
            self._wait(KEEP_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait(STALLED_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answering:
            self._go_on()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP with the form and the headers of all other refusals."""
        body = encoded(error_document("bad_request", "this is not a request of HTTP/1.1", "GET /openapi.json lists all"))
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *SAFE_HEADERS]
        head = h11.Response(status_code=400, headers=[*headers, (b"content-length", b"%d" % len(body))], reason=b"Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self, seconds: float) -> None:
        """Give the client this long to do what it has to do next."""
        self._go_on()
        self._limits.waiting[self] = self.loop.call_later(seconds, self.transport.abort)

    def _go_on(self) -> None:
        if (deadline := self._limits.waiting.pop(self, None)) is not None:
            deadline.cancel()


def protocol(limits: ConnectionLimits) -> Any:
    """Return what makes the connections of a server."""
    return partial(HttpConnection, limits)


class Seldom(logging.Filter):
    """Lets a message that strangers can cause at will pass once a minute; failures of the server's own always."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key = str(record.msg).partition("\n")[0]
        if record.exc_info and not key.startswith("socket.accept"):
            return True
        due = time.monotonic() - self._last.get(key, -_NOTICE_SECONDS) >= _NOTICE_SECONDS
        if due:
            self._last[key] = time.monotonic()
        return due

"""Read the JSON values from the bytes of an answer: an event stream, or one JSON document where a server does not stream.

Every buffer here has a limit, and an event that is not JSON is an error: it might have been a piece of a tool call, and
arguments that lack a piece may still be valid JSON and mean something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, cast

from moryflow_sdk.errors import ModelError

from .failures import plain, whole

LINE_LIMIT = 16 * 1024 * 1024
"""Bytes of one line; 4 MiB of arguments fit even if they are escaped twice."""

BODY_LIMIT = 64 * 1024 * 1024
"""Bytes of a whole answer; 128,000 tokens that are sent one by one take about 40 MB."""

_BOM = b"\xef\xbb\xbf"
_FIELD = re.compile(rb"(?i)(data|event|id|retry)?(:|\Z)")
"""How a line of an event stream begins; a first line that does not is the beginning of a document."""


class EndOfStream:
    """The ``[DONE]`` mark."""


DONE: Final = EndOfStream()
_BROKEN: Final = object()


class AnswerReader:
    """Turns bytes, fed in pieces of any size, into JSON values, and into :data:`DONE` if the server sent it."""

    def __init__(self, *, line_limit: int = LINE_LIMIT, body_limit: int = BODY_LIMIT) -> None:
        self._line_limit = line_limit
        self._body_limit = body_limit
        self._size = 0
        self._tail: list[bytes] = []
        self._tail_size = 0
        self._after_return = False
        self._document: list[bytes] | None = None
        self._is_first = True
        self._event = b""
        self._data: list[bytes] = []
        self._done = False

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the values that `data` completes.

        :raises ModelError: ``too_large`` or ``protocol``.
        """
        self._size += len(data)
        if self._size > self._body_limit:
            raise _too_large("the answer", self._body_limit)
        for line in self._lines(data):
            yield from self._line(line)

    def close(self) -> Iterator[Any]:
        """Yield the values that are complete now that the connection has ended; an incomplete event is left out.

        :raises ModelError: ``protocol`` if the answer was neither a stream nor JSON; ``incomplete`` if its JSON broke off.
        """
        if self._tail:
            line, self._tail = b"".join(self._tail), []
            yield from self._line(line)
        if self._document is not None:
            body = b"\n".join(self._document)
            if _parsed(body) is _BROKEN and body.lstrip()[:1] in (b"{", b"[") and body.rstrip()[-1:] not in (b"}", b"]"):
                raise ModelError("the model's answer broke off in the middle of a JSON document", code="incomplete")
            yield from (_checked(body), DONE)
        elif self._data and _parsed(b"\n".join(self._data)) is not _BROKEN:
            yield from self._dispatch()

    def _lines(self, data: bytes) -> Iterator[bytes]:
        """Split `data` into lines at LF, CR or CRLF. Only new bytes are searched, so that a long line takes linear time."""
        if not data:
            return
        if self._after_return and data[0] == 10:
            data = data[1:]
        self._after_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *rest = data.split(b"\n")
        self._keep_tail(first)
        if not rest:
            return
        yield b"".join(self._tail)
        self._tail, self._tail_size = [], 0
        yield from rest[:-1]
        self._keep_tail(rest[-1])

    def _keep_tail(self, piece: bytes) -> None:
        if piece:
            self._tail.append(piece)
            self._tail_size += len(piece)
        if self._tail_size > self._line_limit:
            raise _too_large("one line of the answer", self._line_limit)

    def _line(self, line: bytes) -> Iterator[Any]:
        if self._done:
            return  # nothing after [DONE] belongs to the answer
        if self._is_first and line.strip() and not line.startswith(b":"):
            self._is_first = False
            line = line.removeprefix(_BOM)
            if not _FIELD.match(line):
                self._document = []
        if self._document is not None:
            self._document.append(line)
        elif not line:
            yield from self._dispatch()
        else:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name == b"event":
                self._event = value.strip()
            elif name == b"data" and (self._data or value.strip()):
                parsed = _BROKEN if self._data else _parsed(value)
                if parsed is _BROKEN:
                    self._data.append(value.removeprefix(b" "))
                else:  # many servers leave out the empty lines between events: a line that is JSON is an event
                    yield self._value(parsed)

    def _dispatch(self) -> Iterator[Any]:
        if self._data:
            data, self._data = b"\n".join(self._data), []
            yield self._value(_checked(data))
        self._event = b""

    def _value(self, value: Any) -> Any:
        self._done = value is DONE
        if self._event != b"error" or self._done or (isinstance(value, dict) and "error" in value):
            return cast("Any", value)
        return {"error": cast("Any", value)}


def _parsed(data: bytes) -> Any:
    """Return the JSON value in `data`, :data:`DONE` or ``_BROKEN``.

    Bytes that are not UTF-8 count as broken: with replaced characters, a tool call would run as something else.
    """
    if data.strip() == b"[DONE]":
        return DONE
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        return _BROKEN


def _checked(data: bytes) -> Any:
    value = _parsed(data)
    if value is not _BROKEN:
        return value
    page = data.lstrip()[:1] == b"<"
    raise ModelError(
        f"the server's answer is not a chat-completions stream: {plain(data[:2000].decode(errors='replace'))[:200]!r}",
        code="protocol",
        next_step="check the base URL; most servers want it to end with /v1" if page else "",
    )


def _too_large(what: str, limit: int) -> ModelError:
    return ModelError(f"{what} is larger than {limit // (1024 * 1024)} MiB; it was not read further", code="too_large")


class TextJoiner:
    """Joins surrogate pairs that a server split over two pieces of text."""

    def __init__(self) -> None:
        self._high = ""

    def add(self, text: str) -> str:
        """Return `text` without a last half of a pair, which is kept for the next piece."""
        text, self._high = self._high + text, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._high = text[:-1], text[-1]
        return whole(text)

    def end(self) -> str:
        """Return the rest: a replacement character if half a pair is left."""
        rest, self._high = self._high, ""
        return whole(rest)

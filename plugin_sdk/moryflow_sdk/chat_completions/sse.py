"""Read the JSON values from the bytes of an answer, in whatever form a server sends them.

Most answers are event streams. Some servers send a whole JSON document, JSON Lines or an error page although a stream was
asked for. Every buffer here has a limit, and nothing is skipped that could be a piece of a tool call: arguments that lack a
piece may still be valid JSON and mean something else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, cast

from moryflow_sdk.errors import ModelError

from .failures import plain, whole

LINE_LIMIT = 16 * 1024 * 1024
"""Bytes of one line or one event; 4 MiB of arguments fit even if they are escaped twice."""

BODY_LIMIT = 64 * 1024 * 1024
"""Bytes of a whole answer; 128,000 tokens that are sent one by one take about 40 MB."""

_BOM = b"\xef\xbb\xbf"
_AROUND = b" \t" + _BOM


class Repeated(dict[str, Any]):
    """A JSON object in a tool call that has the same key twice, with different values.

    Dumped as JSON it has all of them, so that contradictory arguments are never reduced to the last value.
    """

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    is_plain = len(found) == len(pairs) or all(found[key] == value for key, value in pairs)
    return found if is_plain else Repeated(pairs)


_with_calls = json.JSONDecoder(object_pairs_hook=_object).decode


class EndOfStream:
    """The ``[DONE]`` mark."""


DONE: Final = EndOfStream()


class AnswerReader:
    """Turns bytes, fed in pieces of any size, into JSON values, and into :data:`DONE` if the server sent it.

    :ivar seen: whether a value or :data:`DONE` has been found.
    """

    def __init__(self, *, line_limit: int = LINE_LIMIT, body_limit: int = BODY_LIMIT) -> None:
        self.seen = False
        self._line_limit = line_limit
        self._body_limit = body_limit
        self._size = 0
        self._tail: list[bytes] = []
        self._tail_size = 0
        self._after_return = False
        self._first = True
        self._raw: list[bytes] | None = None
        self._stray = b""
        self._event = ""
        self._data: list[bytes] = []
        self._data_size = 0
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
        if self._raw is not None:
            yield from _document(b"\n".join(self._raw))
        elif _parsed(b"\n".join(self._data)) is not _BROKEN:
            yield from self._dispatch()
        elif self._stray and not self.seen:
            raise _not_json(self._stray)

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
        if self._first and line.strip(_AROUND) and not line.startswith(b":"):
            self._first = False
            line = line.removeprefix(_BOM)
            if line.lstrip()[:1] in (b"{", b"[", b"<"):
                self._raw = []
        if self._done:
            return  # nothing after [DONE] belongs to the answer
        if self._raw is not None:
            self._append_limited(self._raw, line)
        elif not line:
            yield from self._dispatch()
        else:
            yield from self._field(line)

    def _field(self, line: bytes) -> Iterator[Any]:
        name, _, value = line.partition(b":")
        match name.strip(_AROUND).lower():
            case b"data":
                yield from self._payload(value.removeprefix(b" "))
            case b"event":
                self._event = value.strip().decode(errors="replace")
            case b"error":  # llama.cpp sends its errors this way
                self._event = "error"
                yield from self._payload(value)
            case b"" | b"id" | b"retry":
                pass
            case _ if line.lstrip()[:1] == b"{":  # an error as JSON without `data:`
                yield from self._payload(line)
            case _ if _has_call(line):
                raise ModelError(
                    f"the model's answer has a tool call in a line that is not an event: {line[:80]!r}", code="protocol"
                )
            case _:
                self._stray = self._stray or line[:2000]

    def _payload(self, value: bytes) -> Iterator[Any]:
        """Read one ``data`` line. Many servers leave out the empty lines between events, so a line that is a JSON value counts
        as an event; only a line that is not waits for the lines that complete it."""
        if not self._data and not value.strip():
            return
        if not self._data and value.strip() == b"[DONE]":
            self.seen = self._done = True
            yield DONE
            return
        if not self._data:
            parsed = _parsed(value)
            if parsed is not _BROKEN:
                yield self._as_error_event(parsed)
                return
        self._append_limited(self._data, value)

    def _append_limited(self, lines: list[bytes], line: bytes) -> None:
        lines.append(line)
        self._data_size += len(line) + 1
        if self._data_size > self._line_limit:
            raise _too_large("one event of the answer", self._line_limit)

    def _dispatch(self) -> Iterator[Any]:
        """End an event: its ``data`` lines together are one value, or else each line is a value."""
        lines, self._data, self._data_size = self._data, [], 0
        if lines:
            joined = b"\n".join(lines)
            parsed = _parsed(joined)
            values = [parsed] if parsed is not _BROKEN else _each(lines)
            for value in values:
                if value is DONE:
                    self.seen = self._done = True
                    yield DONE
                    return
                yield self._as_error_event(value)
        self._event = ""

    def _as_error_event(self, value: Any) -> Any:
        self.seen = True
        if self._event != "error" or (isinstance(value, dict) and "error" in cast("dict[str, Any]", value)):
            return cast("Any", value)
        return {"error": cast("Any", value)}


_BROKEN: Final = object()


def _parsed(data: bytes) -> Any:
    """Return the JSON value in `data`, or ``_BROKEN``.

    Bytes that are not UTF-8 become replacement characters in text. In a tool call that would change what runs, so it is an
    error there.
    """
    has_call = _has_call(data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        if has_call:
            raise ModelError("the model's answer has a tool call that is not valid UTF-8", code="protocol") from None
        text = data.decode(errors="replace")
    try:
        return _with_calls(text) if has_call else json.loads(text)
    except (ValueError, RecursionError):
        return _BROKEN


def _has_call(data: bytes) -> bool:
    return b"tool_calls" in data or b"function_call" in data


def _each(lines: list[bytes]) -> list[Any]:
    values: list[Any] = []
    for line in lines:
        if not line.strip():
            continue
        value = DONE if line.strip() == b"[DONE]" else _parsed(line)
        if value is _BROKEN:
            raise _not_json(b"\n".join(lines))
        values.append(value)
    return values


def _document(body: bytes) -> Iterator[Any]:
    """Read an answer that is not a stream: one JSON document, or JSON Lines."""
    parsed = _parsed(body)
    if parsed is not _BROKEN:
        yield parsed
        yield DONE
    elif body.lstrip()[:1] != b"<" and body.rstrip()[-1:] not in (b"}", b"]"):
        raise ModelError("the model's answer broke off in the middle of a JSON document", code="incomplete")
    else:
        yield from _each(body.split(b"\n"))


def _too_large(what: str, limit: int) -> ModelError:
    return ModelError(f"{what} is larger than {limit // (1024 * 1024)} MiB; it was not read further", code="too_large")


def _not_json(data: bytes) -> ModelError:
    start = plain(data[:2000].decode(errors="replace"))[:200]
    page = data.lstrip()[:1] == b"<"
    hint = "check the base URL; most servers want it to end with /v1" if page else ""
    return ModelError(f"the server's answer is not a chat-completions stream: {start!r}", code="protocol", next_step=hint)


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


def text_of(content: Any) -> tuple[str, str]:
    """Return ``(text, reasoning)`` of a message's content: a string, or a list of typed parts."""
    if isinstance(content, str):
        return content, ""
    parts = cast("list[Any]", content if isinstance(content, list) else [content])
    pairs = [_part(part) for part in parts]
    return "".join(text for text, _ in pairs), "".join(thought for _, thought in pairs)


def _part(part: Any) -> tuple[str, str]:
    if isinstance(part, str):
        return part, ""
    if not isinstance(part, dict):
        return "", ""
    found = cast("dict[str, Any]", part)
    if found.get("type") in ("thinking", "reasoning"):
        thought = found.get("thinking") or found.get("text") or found.get("reasoning") or ""
        return "", thought if isinstance(thought, str) else "".join(text_of(thought))
    value: Any = found.get("text") or found.get("refusal") or ""
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("value")
    return (value if isinstance(value, str) else ""), ""

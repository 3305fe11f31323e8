"""Replies from the cases of ``streams.jsonl``, the corpus of malformed model streams."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from moryflow.testing.replies import Reply, chunk, stream

_END = {"close": "close", "reset": "reset", "stall": "stall"}
_PIECE = 64 * 1024


def replies(case: Mapping[str, Any]) -> list[Reply]:
    """Return what a server sends in `case`, one reply for each request."""
    status, headers = case.get("status", 200), {str(k).lower(): str(v) for k, v in case.get("headers", {}).items()}
    kind = headers.pop("content-type", "text/event-stream" if status == 200 else "application/json")
    end = _END[case.get("end", "close")]
    settings = {"status": status, "headers": headers, "content_type": kind, "end": end, "chunking": case.get("chunking", 0)}
    return [Reply(body).but(**settings) for body in _bodies(case)]


def _bodies(case: Mapping[str, Any]) -> list[Any]:
    if "gen" in case:
        return _generated(case["gen"])
    if "b64" in case:
        return [base64.b64decode(case["b64"])]
    lines: list[str] = []
    for line, following in zip(case["lines"], [*case["lines"][1:], None], strict=False):
        lines.append(line)
        if line.startswith("data") and following != "":
            lines.append("")
    return ["".join(f"{line}\n" for line in lines).encode(errors="surrogatepass")]


def _generated(gen: Mapping[str, Any]) -> list[Any]:
    match gen["kind"]:
        case "huge_args":
            return [_Endless(lambda: _arguments(gen["bytes"]))]
        case "pieces":
            return [_Endless(lambda: _pieces(gen["n"]))]
        case "parallel":
            items = [_item(index, f"x{index}", "ls", '{"path":"."}') for index in range(gen["n"])]
            return [stream(*[chunk(tool_calls=[item]) for item in items], chunk("tool_calls")).body]
        case "repeat_turns":
            return [_turn(index, gen.get("vary", False)) for index in range(gen["n"])]
        case "huge_text":
            return [_Endless(lambda: _text(gen["bytes"]))]
        case "endless":
            return [_Endless(lambda: _text(None))]
        case "huge_line":
            return [_Endless(lambda: _line(gen["bytes"]))]
        case kind:
            raise ValueError(f"unknown generator {kind!r}")


class _Endless:
    """An iterable that begins anew each time and never holds more than a piece."""

    def __init__(self, begin: Any) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[bytes]:
        return self._begin()


def _event(value: Any) -> bytes:
    return b"data: %s\n\n" % json.dumps(value).encode()


def _item(index: int, id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _more(arguments: str) -> bytes:
    return _event(chunk(tool_calls=[{"index": 0, "function": {"arguments": arguments}}]))


def _tail(reason: str) -> Iterator[bytes]:
    yield _event(chunk(reason))
    yield b"data: [DONE]\n\n"


def _arguments(size: int) -> Iterator[bytes]:
    yield _event(chunk(tool_calls=[_item(0, "x", "write", '{"path":"a","content":"')]))
    for start in range(0, size, _PIECE):
        yield _more("a" * min(_PIECE, size - start))
    yield _more('"}')
    yield from _tail("tool_calls")


def _pieces(count: int) -> Iterator[bytes]:
    yield _event(chunk(tool_calls=[_item(0, "x", "ls", '{"path":')]))
    piece = _more(" ")
    for start in range(0, count, 100):
        yield piece * min(100, count - start)
    yield _more('"."}')
    yield from _tail("tool_calls")


def _text(size: int | None) -> Iterator[bytes]:
    piece = _event(chunk(content="a" * _PIECE))
    sent = 0
    while size is None or sent < size:
        yield piece
        sent += _PIECE
    yield from _tail("stop")


def _line(size: int) -> Iterator[bytes]:
    yield b'data: {"choices":[{"index":0,"delta":{"content":"'
    for start in range(0, size, _PIECE):
        yield b"a" * min(_PIECE, size - start)


def _turn(index: int, vary: bool) -> Any:
    path = f"./{index}" if vary else "."
    item = _item(0, f"x{index}", "ls", json.dumps({"path": path}))
    return stream(chunk(tool_calls=[item]), chunk("tool_calls")).body

"""Replies of :class:`~moryflow.testing.server.LoopbackServer`, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

End = Literal["close", "cut", "reset", "stall", "silent", "refuse"]
"""``close``: properly. ``cut``: the connection ends in the middle. ``reset``: with a TCP reset. ``stall``: nothing more
comes. ``silent``: not even headers come. ``refuse``: a reset before any header."""


@dataclass(frozen=True)
class Reply:
    """What the server sends: `body` in network writes of `chunking` bytes, `pause` seconds apart."""

    body: bytes | Iterable[bytes] = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content_type: str = "application/json"
    end: End = "close"
    chunking: int = 0
    before: float = 0.0
    pause: float = 0.0

    def but(self, **changes: Any) -> Reply:
        """Return this reply with `changes`."""
        return replace(self, **changes)


def stream(*chunks: Any, done: bool = True, end: End = "close") -> Reply:
    """Return an event stream of `chunks` (objects are encoded, text is sent as the data of an event)."""
    lines = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    body = [f"data: {line}\n\n".encode() for line in [*lines, *(["[DONE]"] if done else [])]]
    return Reply(body, content_type="text/event-stream", end=end)


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """Return one chunk of a chat-completions stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "test-model", "choices": [choice]}


def usage(prompt: int = 10, completion: int = 5, cached: int = 0) -> dict[str, Any]:
    """Return the chunk that carries token counts."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": {"cached_tokens": cached}}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "test-model", "choices": [], "usage": counts}


def text(answer: str) -> Reply:
    """Return an answer in words."""
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

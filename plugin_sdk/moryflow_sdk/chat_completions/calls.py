"""Tool calls, put together from the pieces a stream brings them in.

Servers disagree about indexes, ids and names; the rules here give each call one place, one id of its own and its whole
arguments, or a `problem` that keeps it from running.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from moryflow_sdk.errors import ModelError
from moryflow_sdk.messages import ToolRequest

from .text import whole

ARGUMENTS_LIMIT = 4 * 1024 * 1024
"""Characters of one call's arguments; a longer call is not run and not kept."""

CALLS_LIMIT = 4096
NAME_LIMIT = 256
ID_LIMIT = 200
Problem = Literal["truncated", "incomplete", "args_too_large"]
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEF"


@dataclass(eq=False, repr=False)
class _Call:
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    size: int = 0
    too_large: bool = False

    def add_name(self, name: str) -> None:
        """Names come whole, repeated with every piece, or in pieces."""
        if name and name != self.name:
            self.name = (self.name + name)[: NAME_LIMIT + 1]

    def add_arguments(self, piece: str) -> None:
        self.size += len(piece)
        self.too_large = self.too_large or self.size > ARGUMENTS_LIMIT
        if self.too_large:
            self.pieces.clear()
        elif piece:
            self.pieces.append(piece)


class CallCollector:
    """Collects the pieces; :meth:`requests` gives the calls in the order in which they began."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._at: dict[str, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, delta: Any, position: int = 0) -> None:
        """Take one item of ``tool_calls``; `position` stands in for an index that is missing."""
        if not isinstance(delta, dict):
            return
        item = cast("dict[str, Any]", delta)
        raw: Any = item.get("function")
        function = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
        name = _text(function.get("name"))
        call = self._place(_index(item.get("index")), _text(item.get("id")), name, position)
        call.add_name(name)
        call.add_arguments(_arguments(function.get("arguments")))

    def add_function(self, delta: Any) -> None:
        """Take the old ``function_call`` form, which has neither index nor id."""
        self.add({"index": "function_call", "function": delta})

    def requests(self, problem: Problem | None = None) -> tuple[ToolRequest, ...]:
        """Return the calls; each id is there once, and `problem` is on all of them."""
        taken: set[str] = set()
        return tuple(self._request(call, problem, taken) for call in self._calls)

    def _place(self, index: str | None, id: str, name: str, position: int) -> _Call:
        """Return the call a piece belongs to.

        With an index it is the call at that index, unless the piece plainly begins another one there (some servers give
        index 0 to every call). Without an index it is the call with that id, or the latest one when there is neither id
        nor name.
        """
        if index is None and not id and not name and self._calls:
            return self._calls[-1]
        key = index if index is not None else f"id {id}" if id else f"position {position}"
        call = self._at.get(key)
        if call is None or (name and _begins_another(call, id, name)):
            call = self._at[key] = self._begin(id)
        return call

    def _begin(self, id: str) -> _Call:
        if len(self._calls) >= CALLS_LIMIT:
            raise ModelError(f"the model made more than {CALLS_LIMIT} tool calls in one answer", code="too_large")
        call = _Call(id)
        self._calls.append(call)
        return call

    @staticmethod
    def _request(call: _Call, problem: Problem | None, taken: set[str]) -> ToolRequest:
        id = call.id
        while not id or id in taken or len(id) > ID_LIMIT or not id.isprintable():
            id = new_id()
        taken.add(id)
        name = whole(call.name)
        if len(name) > NAME_LIMIT:
            name = f"{name[:NAME_LIMIT]}…"
        if call.too_large:
            return ToolRequest(id=id, name=name, problem="args_too_large")
        return ToolRequest(id=id, name=name, arguments=whole("".join(call.pieces)), problem=problem)


def new_id() -> str:
    """Return a fresh call id: nine letters or digits, which every provider accepts back."""
    return "".join(_ALPHABET[byte % 32] for byte in os.urandom(9))


def _begins_another(call: _Call, id: str, name: str) -> bool:
    """A name under a new id, another name after arguments, or any name after arguments that came whole in one piece."""
    if id and call.id and id != call.id:
        return True
    if not call.size or not call.name:
        return False
    return name != call.name or (len(call.pieces) == 1 and _is_object(call.pieces[0]))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _index(value: Any) -> str | None:
    """Return an index as a key: ``0``, ``"0"`` and ``0.0`` are the same place, and a huge one is only a key."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"index {value:x}"
    if isinstance(value, str) and value.strip():
        text = value.strip()
        return f"index {int(text):x}" if text.isdecimal() and len(text) < 20 else f"index {text[:64]}"
    return None


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:d}" if abs(value) < 1 << 64 else ""
    return value if isinstance(value, str) else ""


def _arguments(value: Any) -> str:
    """Return arguments as JSON text; some servers send them as an object."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)

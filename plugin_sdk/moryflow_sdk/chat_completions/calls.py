"""Tool calls, put together from the pieces a stream brings them in.

Servers disagree about indexes, ids and names; the rules here give each call one place, one id of its own and its whole
arguments, or a `problem` that keeps it from running. What is valid JSON is not always whole: no arguments at all are valid
for many tools, and so may be what is left when a piece in the middle went astray.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from moryflow_sdk.errors import ModelError
from moryflow_sdk.messages import ToolRequest
from moryflow_sdk.models import ToolInputDelta

from .sse import Repeated
from .text import whole

ARGUMENTS_LIMIT = 4 * 1024 * 1024
"""Characters of one call's arguments; a longer call is not run and not kept."""

CALLS_LIMIT = 4096
NAME_LIMIT = 256
ID_LIMIT = 200
Problem = Literal["truncated", "incomplete", "args_too_large", "invalid_args"]
_ARGUMENTS = ("arguments", "parameters", "input", "args")
"""What servers call them."""
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEF"


@dataclass(eq=False, repr=False)
class _Call:
    id: str = ""
    index: str | None = None
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    reported: int = 0
    size: int = 0
    too_large: bool = False
    unclear: bool = False

    @property
    def text(self) -> str:
        """The arguments; where the same whole ones were said again, once."""
        return self.pieces[0] if self._is_said_again else "".join(self.pieces)

    @property
    def _is_said_again(self) -> bool:
        first = self.pieces[0] if len(self.pieces) > 1 else ""
        return bool(first) and all(piece == first for piece in self.pieces) and _is_object(first)

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
        self._function: _Call | None = None
        self._lost = False
        self._owners: dict[str, _Call] = {}
        self._grown: dict[_Call, None] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, delta: Any, position: int = 0) -> None:
        """Take one item of ``tool_calls``; `position` stands in for an index that is missing."""
        if not isinstance(delta, dict):
            self._lost = self._lost or bool(delta)
            return
        item = cast("dict[str, Any]", delta)
        raw: Any = item.get("function")
        function = cast("dict[str, Any]", raw) if isinstance(raw, dict) else item
        name, id = _text(function.get("name")), _text(item.get("id"))
        call = self._place(_index(item.get("index")), id, name, position)
        call.id = call.id or id
        call.add_name(name)
        given = (found.get(key) for found in (function, item) for key in _ARGUMENTS)
        call.add_arguments(_arguments(next((value for value in given if value not in (None, "")), "")))
        if isinstance(item, Repeated) or isinstance(function, Repeated) or isinstance(raw, str | list):
            call.unclear = True
        self._owners.setdefault(call.id, call)
        self._grown[call] = None

    def add_function(self, delta: Any) -> None:
        """Take the old ``function_call`` form, which has neither index nor id."""
        self.add({"index": "function_call", "function": delta})
        self._function = self._at[_key("function_call")]

    def news(self) -> Iterator[ToolInputDelta]:
        """Yield the arguments that have come since the last time, of calls whose id and name are known."""
        for call in self._grown:
            if not (call.name and call.pieces and _is_id(call.id)) or self._owners[call.id] is not call:
                continue
            text = "".join(call.pieces[call.reported :])
            call.reported = len(call.pieces)
            if text:
                yield ToolInputDelta(call=call.id, name=whole(call.name[:NAME_LIMIT]), text=whole(text))
        self._grown.clear()

    def lose(self) -> None:
        """Take note that a piece may be missing."""
        self._lost = True

    def requests(self, problem: Problem | None = None) -> tuple[ToolRequest, ...]:
        """Return the calls; each id is there once, and `problem` is on all of them."""
        taken: set[str] = set()
        calls = [call for call in self._calls if not self._is_double(call)]
        self._doubt(calls)
        return tuple(self._request(call, problem, taken) for call in calls)

    def _is_double(self, call: _Call) -> bool:
        """Whether `call` only says in the old form what another one says: some servers send both."""
        said = ((other.name, other.text) for other in self._calls if other is not call)
        return call is self._function and (call.name, call.text) in said

    def _doubt(self, calls: list[_Call]) -> None:
        """Mark the calls that may lack a piece: one that found no place may belong to any call that is not whole by itself."""
        if not self._lost and len(calls) < 2:
            return
        astray = self._lost or any(call.size and not call.name for call in calls)
        broken = astray or any(call.size and not call.too_large and not _is_object(call.text) for call in calls)
        for call in calls:
            if call.name and ((broken and not call.size) or (astray and len(call.pieces) > 1)):
                call.unclear = True

    def _place(self, index: str | None, id: str, name: str, position: int) -> _Call:
        """Return the call a piece belongs to.

        With an index it is the call at that index, unless the piece plainly begins another one there (some servers give
        index 0 to every call). Without one it is the call with that id, or the latest when there is neither id nor name.
        A piece without a name whose index is new goes on with a call that has none yet.
        """
        if index is None and not id and not name and self._calls:
            return self._calls[-1]
        keys = [key for key in (index, f"id {id}" if id else "") if key] or [f"position {position}"]
        call = self._at.get(keys[0])
        if call is None and not name:
            call = self._goes_on(index, id)
        if call is None or (name and _begins_another(call, id, name)):
            if call is not None:
                call.unclear = call.unclear or not call.size
            call = self._begin(id)
        call.index = call.index or index
        for key in keys:
            self._at[key] = call
        return call

    def _goes_on(self, index: str | None, id: str) -> _Call | None:
        """Return the call that a piece without a name goes on with, although nothing was at its index."""
        found = self._at.get(f"id {id}") if id else self._calls[-1] if self._calls else None
        return found if found is not None and (index is None or found.index is None) else None

    def _begin(self, id: str) -> _Call:
        if len(self._calls) >= CALLS_LIMIT:
            raise ModelError(f"the model made more than {CALLS_LIMIT} tool calls in one answer", code="too_large")
        call = _Call(id)
        self._calls.append(call)
        return call

    @staticmethod
    def _request(call: _Call, problem: Problem | None, taken: set[str]) -> ToolRequest:
        id = call.id
        while id in taken or not _is_id(id):
            id = new_id()
        taken.add(id)
        name = whole(call.name)
        if len(name) > NAME_LIMIT:
            name = f"{name[:NAME_LIMIT]}…"
        if call.too_large:
            return ToolRequest(id=id, name=name, problem="args_too_large")
        problem = problem or ("invalid_args" if call.unclear else None)
        return ToolRequest(id=id, name=name, arguments=whole(call.text), problem=problem)


def new_id() -> str:
    """Return a fresh call id: nine letters or digits, which every provider accepts back."""
    return "".join(_ALPHABET[byte % 32] for byte in os.urandom(9))


def _is_id(text: str) -> bool:
    return bool(text) and len(text) <= ID_LIMIT and text.isprintable()


def _begins_another(call: _Call, id: str, name: str) -> bool:
    """A name under a new id, another name after arguments, or any name after arguments that came whole in one piece."""
    if id and call.id:
        return id != call.id or (name != call.name and bool(call.size and call.name))
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
        return _key(f"{value:x}")
    if isinstance(value, str) and value.strip():
        text = value.strip()
        return _key(f"{int(text):x}" if text.isdecimal() and len(text) < 20 else text[:64])
    return None


def _key(index: str) -> str:
    return f"index {index}"


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:d}" if abs(value) < 1 << 64 else ""
    return value if isinstance(value, str) else ""


def _arguments(value: Any) -> str:
    """Return arguments as JSON text; some servers send them as an object."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)

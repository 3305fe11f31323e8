"""Assemble an answer from the chunks of a chat-completions stream, and its tool calls from the pieces in these chunks.

Servers disagree about indexes and ids. The rules here give each call one place, its own id and its complete arguments, or a
`problem` that keeps it from running. Valid JSON is not always complete: many tools accept no arguments at all, and arguments
may still be valid after a piece in the middle was lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from moryflow_sdk.errors import ModelError
from moryflow_sdk.models import Finished, ReasoningDelta, TextDelta, ToolInputDelta, ToolRequest, Usage

from .endpoint import Endpoint
from .failures import from_object, is_error, whole
from .kept_fields import THOUGHTS, KeptFields, joined, kept_of_call, merged, text_of
from .sse import DONE, TextJoiner

ARGUMENTS_LIMIT = 4 * 1024 * 1024
"""Characters of one call's arguments; longer arguments are dropped, and the call does not run."""

TEXT_LIMIT = 16 * 1024 * 1024
"""Characters of text and reasoning together; arguments have their own limit."""

CALLS_LIMIT = 4096
NAME_LIMIT = 256
ID_LIMIT = 200
Problem = Literal["truncated", "incomplete", "args_too_large", "invalid_args"]
Reason = Literal["stop", "tool_calls", "length", "content_filter", "refusal", "pause"]
_REASONS: dict[str, Reason] = {
    "length": "length", "max_tokens": "length", "model_length": "length", "content_filter": "content_filter",
    "safety": "content_filter", "refusal": "refusal", "pause_turn": "pause",
}  # fmt: skip
"""Reasons other than a plain end, of OpenAI, Mistral, Gemini and Anthropic, as gateways pass them on."""
_BROKEN_OFF = frozenset({"error", "abort", "network_error", "malformed_function_call"})
_PROBLEMS: dict[str, Problem] = {"length": "truncated", "content_filter": "incomplete", "refusal": "incomplete"}
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEF"

Delta = TextDelta | ReasoningDelta | ToolInputDelta


class Answer:
    """Turns the chunks that it is fed into deltas, and at the end into a :class:`Finished` or an error.

    :param endpoint: the server, for error messages.
    :ivar parts: how many pieces of text, reasoning and calls have arrived.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.parts = 0
        self._endpoint = endpoint
        self._calls = CallCollector()
        self._text = TextJoiner()
        self._reasoning = TextJoiner()
        self._kept = KeptFields()
        self._size = 0
        self._reason = ""
        self._usage = Usage()
        self._done = False
        self._is_late = False
        self._is_refused = False

    @property
    def finished(self) -> bool:
        """Whether the model said why it stopped; after that only token counts may come."""
        return bool(self._reason) or self._done

    @property
    def begun(self) -> bool:
        """Whether any part of the answer has arrived."""
        return self.parts > 0

    def add_unfinished(self, error: ModelError) -> ModelError:
        """Add the calls received so far to `error`, each with the problem ``incomplete``, so that none can run."""
        if not error.tool_calls:
            error.tool_calls = self._calls.requests("incomplete")
            error.extra, error.origin = self._kept.fields(), self._endpoint.origin
        return error

    def feed(self, chunk: Any) -> Iterator[Delta]:
        """Yield the deltas of one chunk, or record :data:`DONE`.

        :raises ModelError: the chunk reports an error, the answer is too large, or it is not a chunk at all.
        """
        if chunk is DONE:
            self._done = True
            return
        for item in cast("list[Any]", chunk if isinstance(chunk, list) else [chunk]):
            if item is None:
                continue
            if not isinstance(item, dict):
                raise ModelError(f"the model's answer has a chunk that is not an object: {str(item)[:80]!r}", code="protocol")
            found = cast("dict[str, Any]", item)
            self._raise_if_error(found)
            self._take_usage(_mapping(found, "usage"))
            choices: Any = found.get("choices")
            for choice in cast("list[Any]", choices if isinstance(choices, list) else []):
                if isinstance(choice, dict) and cast("dict[str, Any]", choice).get("index") in (None, 0):
                    yield from self._choice(cast("dict[str, Any]", choice))
                    break  # a server may send several answers although one was asked for

    def _raise_if_error(self, found: dict[str, Any]) -> None:
        if is_error(found):
            raise self.add_unfinished(from_object(found, self._endpoint))

    def finish(self) -> Iterator[TextDelta | ReasoningDelta | Finished]:
        """Yield the end of the answer.

        :raises ModelError: ``incomplete``, with the calls received so far, if the answer broke off; ``empty`` if there is no
            answer at all.
        """
        if reasoning := self._reasoning.end():
            yield ReasoningDelta(text=reasoning)
        if text := self._text.end():
            yield TextDelta(text=text)
        if not self.begun and self._reason in ("", "tool_calls", "function_call"):
            raise ModelError(
                f"{self._endpoint.label} gave an empty answer",
                code="empty",
                next_step="ask again, or choose another model with -m",
            )
        late = self._is_late and not self._done
        if not self.finished or late or self._reason in _BROKEN_OFF or (not self._reason and self._calls):
            message = f"{self._endpoint.label}: the answer broke off before its end"
            step = "ask again; what had arrived is kept"
            raise self.add_unfinished(ModelError(message, code="incomplete", next_step=step))
        reason = _REASONS.get(self._reason, "refusal" if self._is_refused else "tool_calls" if self._calls else "stop")
        yield Finished(
            reason=reason,
            tool_calls=self._calls.requests(_PROBLEMS.get(reason)),
            usage=self._usage,
            extra=self._kept.fields(),
            origin=self._endpoint.origin,
        )

    def _choice(self, choice: dict[str, Any]) -> Iterator[Delta]:
        delta = _mapping(choice, "delta") or _mapping(choice, "message")
        self._raise_if_error({"error": choice.get("error") or delta.get("error")})
        thoughts = (delta.get(key) for key in THOUGHTS)
        reasoning = next((thought for thought in thoughts if thought and isinstance(thought, str)), "")
        text, thought = text_of(delta.get("content"))
        if refusal := delta.get("refusal"):
            self._is_refused = True
            text += refusal if isinstance(refusal, str) else ""
        yield from self._deltas(reasoning + thought, text)
        self._count_size(self._kept.add(delta))
        # If pieces of calls come after the finish reason, the calls were not complete when it came.
        calls: Any = delta.get("tool_calls")
        function: Any = delta.get("function_call")
        self._is_late = self._is_late or bool(self._reason and (calls or function))
        for position, item in enumerate(cast("list[Any]", calls if isinstance(calls, list) else [calls])):
            self._calls.add(item, position)
        if isinstance(function, dict) and not calls:  # the old form, which has neither index nor id
            self._calls.add({"index": "function_call", "function": function})
        self.parts += 1 if (calls or function) and self._calls else 0
        yield from self._calls.new_arguments()
        reason = str(choice.get("finish_reason") or "").lower()
        if reason:
            self._is_late = False
            if self._reason not in _REASONS and self._reason not in _BROKEN_OFF:
                self._reason = reason

    def _deltas(self, reasoning: str, text: str) -> Iterator[Delta]:
        self.parts += bool(reasoning or text)
        self._count_size(len(reasoning) + len(text))
        if reasoning and (shown := self._reasoning.add(reasoning)):
            yield ReasoningDelta(text=shown)
        if text and (shown := self._text.add(text)):
            yield TextDelta(text=shown)

    def _count_size(self, size: int) -> None:
        self._size += size
        if self._size > TEXT_LIMIT:
            most = TEXT_LIMIT // (1024 * 1024)
            message = f"the model's answer is longer than {most} Mi characters; it was not read further"
            raise self.add_unfinished(ModelError(message, code="too_large"))

    def _take_usage(self, usage: dict[str, Any]) -> None:
        if usage:
            total = _count(usage, "prompt_tokens")
            cached = _count(_mapping(usage, "prompt_tokens_details"), "cached_tokens")
            self._usage = Usage(
                input=total,
                output=_count(usage, "completion_tokens"),
                cached=min(cached or _count(usage, "prompt_cache_hit_tokens"), total),
                reasoning=_count(_mapping(usage, "completion_tokens_details"), "reasoning_tokens"),
            )


def _mapping(found: dict[str, Any], key: str) -> dict[str, Any]:
    value: Any = found.get(key)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _count(usage: dict[str, Any], key: str) -> int:
    value: Any = usage.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e10 else 0


@dataclass(eq=False, repr=False)
class _Call:
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    reported: int = 0
    size: int = 0
    too_large: bool = False
    unclear: bool = False
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def add_name(self, name: str) -> None:
        """Add a name; servers send it whole, repeat it with every piece, or send it in pieces."""
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
    """Collects the pieces of calls; :meth:`requests` returns the calls in the order in which they began."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._at: dict[str, _Call] = {}
        self._lost = False
        self._owners: dict[str, _Call] = {}
        self._grown: dict[_Call, None] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, delta: Any, position: int = 0) -> None:
        """Add one item of ``tool_calls``; `position` is used if the item has neither index nor id."""
        if not isinstance(delta, dict):
            self._lost = self._lost or bool(delta)
            return
        item = cast("dict[str, Any]", delta)
        function = _mapping(item, "function")
        self._lost = self._lost or (bool(item.get("function")) and not function)
        name, id = _text(function.get("name")), _text(item.get("id"))
        call = self._place(item.get("index"), id, name, position)
        call.id = call.id or id
        call.add_name(name)
        arguments: Any = function.get("arguments")
        call.add_arguments(arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments))
        call.extra = merged(call.extra, kept_of_call(item))
        self._owners.setdefault(call.id, call)
        self._grown[call] = None

    def new_arguments(self) -> Iterator[ToolInputDelta]:
        """Yield the arguments that arrived since the last call of this method, for tool calls whose id and name are known."""
        for call in self._grown:
            if not (call.name and call.pieces and _is_id(call.id)) or self._owners[call.id] is not call:
                continue
            text = "".join(call.pieces[call.reported :])
            call.reported = len(call.pieces)
            if text:
                yield ToolInputDelta(call=call.id, name=whole(call.name[:NAME_LIMIT]), text=whole(text))
        self._grown.clear()

    def requests(self, problem: Problem | None = None) -> tuple[ToolRequest, ...]:
        """Return the calls, each with a unique id, and all of them with `problem`."""
        self._mark_incomplete()
        used_ids: set[str] = set()
        return tuple(_request(call, problem, used_ids) for call in self._calls)

    def _mark_incomplete(self) -> None:
        """Mark the calls that may lack a piece: a stray piece may belong to any call that did not come in one piece."""
        astray = self._lost or (len(self._calls) > 1 and any(call.size and not call.name for call in self._calls))
        broken = astray or any(call.size and not call.too_large and not _is_object(call.text) for call in self._calls)
        for call in self._calls:
            if call.name and ((broken and not call.size) or (astray and len(call.pieces) > 1)):
                call.unclear = True

    def _place(self, index: Any, id: str, name: str, position: int) -> _Call:
        """Return the call that a piece belongs to.

        With an index it is the call at that index, unless the piece clearly begins another call there (some servers give
        index 0 to every call). Without an index it is the call with that id, or the latest call if there is neither id nor
        name.
        """
        if index is None and not id and not name and self._calls:
            return self._calls[-1]
        index = int(index) if isinstance(index, float) and index.is_integer() else index
        key = f"index {index!s:.64}" if isinstance(index, int | str) else f"id {id}" if id else f"position {position}"
        call = self._at.get(key)
        if call is None or (name and _begins_another(call, id, name)):
            if call is not None:
                call.unclear = call.unclear or not call.size
            if len(self._calls) >= CALLS_LIMIT:
                raise ModelError(f"the model made more than {CALLS_LIMIT} tool calls in one answer", code="too_large")
            call = self._at[key] = _Call(id)
            self._calls.append(call)
        if id:
            self._at.setdefault(f"id {id}", call)
        return call


def _request(call: _Call, problem: Problem | None, used_ids: set[str]) -> ToolRequest:
    id = call.id
    while id in used_ids or not _is_id(id):
        id = "".join(_ALPHABET[byte % 32] for byte in os.urandom(9))  # every provider accepts it back
    used_ids.add(id)
    name = whole(call.name)
    name = name if len(name) <= NAME_LIMIT else f"{name[:NAME_LIMIT]}…"
    if call.too_large:
        return ToolRequest(id=id, name=name, problem="args_too_large", extra=joined(call.extra))
    problem = problem or ("invalid_args" if call.unclear else None)
    return ToolRequest(id=id, name=name, arguments=whole(call.text), problem=problem, extra=joined(call.extra))


def _is_id(text: str) -> bool:
    return bool(text) and len(text) <= ID_LIMIT and text.isprintable()


def _begins_another(call: _Call, id: str, name: str) -> bool:
    """Whether a piece begins another call: a name with a new id, another name after arguments, or any name after arguments
    that came complete in one piece."""
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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""

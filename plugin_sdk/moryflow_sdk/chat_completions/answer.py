"""Assemble an answer from the chunks of a chat-completions stream, and its tool calls from the pieces in these chunks.

Servers disagree about indexes, ids and names. The rules here give each call one place, its own id and its complete
arguments, or a `problem` that keeps it from running. Valid JSON is not always complete: many tools accept no arguments at
all, and arguments may still be valid after a piece in the middle was lost.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from moryflow_sdk.errors import ModelError
from moryflow_sdk.models import Finished, ReasoningDelta, TextDelta, ToolInputDelta, ToolRequest, Usage

from .endpoint import Endpoint
from .failures import from_object, is_error, whole
from .kept_fields import THOUGHTS, KeptFields, joined, kept_of_call, merged
from .sse import DONE, Repeated, TextJoiner, text_of

ARGUMENTS_LIMIT = 4 * 1024 * 1024
"""Characters of one call's arguments; longer arguments are dropped, and the call does not run."""

CALLS_LIMIT = 4096
NAME_LIMIT = 256
ID_LIMIT = 200
Problem = Literal["truncated", "incomplete", "args_too_large", "invalid_args"]
_ARGUMENTS = ("arguments", "parameters", "input", "args")
"""The names that servers use for the arguments."""
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEF"


TEXT_LIMIT = 16 * 1024 * 1024
"""Characters of text and reasoning together; arguments have their own limit."""

Reason = Literal["stop", "tool_calls", "length", "content_filter", "refusal", "pause"]
_REASONS: dict[str, Reason] = {
    "length": "length", "max_tokens": "length", "model_length": "length", "max_output_tokens": "length",
    "maxtokens": "length", "max_completion_tokens": "length", "token_limit": "length", "error_limit": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter", "safety": "content_filter", "recitation": "content_filter",
    "prohibited_content": "content_filter", "blocklist": "content_filter", "sensitive": "content_filter",
    "spii": "content_filter", "image_safety": "content_filter", "image_prohibited_content": "content_filter",
    "content_filtered": "content_filter", "contentfilter": "content_filter", "guardrail_intervened": "content_filter",
    "error_toxic": "content_filter", "refusal": "refusal", "refused": "refusal",
    "pause_turn": "pause", "pause": "pause",
}  # fmt: skip
"""Reasons other than a plain end, in the spelling of :func:`_reason`. Gateways pass on the names of other protocols too."""

_BROKEN_OFF = frozenset({
    "error", "abort", "aborted", "cancelled", "canceled", "network_error", "incomplete", "interrupted", "failed", "timeout",
    "malformed_function_call", "unexpected_tool_call",
})  # fmt: skip
_NO_REASON = frozenset({"null", "none"})
_OVERLOADED = frozenset({"insufficient_system_resource", "overloaded"})
_PROBLEMS: dict[str, Problem] = {"length": "truncated", "content_filter": "incomplete", "refusal": "incomplete"}

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
        self._reason: str | None = None
        self._usage = Usage()
        self._done = False
        self._is_late = False
        self._is_refused = False
        self._is_odd = False

    @property
    def finished(self) -> bool:
        """Whether the model said why it stopped; after that only token counts may come."""
        return self._reason is not None or self._done

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
            if isinstance(item, dict):
                yield from self._chunk(cast("dict[str, Any]", item))
            elif item not in (None, "", "ping"):
                raise ModelError(f"the model's answer has a chunk that is not an object: {str(item)[:80]!r}", code="protocol")

    def _chunk(self, found: dict[str, Any]) -> Iterator[Delta]:
        self._raise_if_error(found)
        self._take_usage(found)
        for choice in _choices(found.get("choices")):
            if isinstance(found, Repeated) or isinstance(choice, Repeated):
                self._calls.lose()
            yield from self._choice(choice)

    def _raise_if_error(self, found: dict[str, Any]) -> None:
        if is_error(found):
            raise self.add_unfinished(from_object(found, self._endpoint))

    def finish(self) -> Iterator[TextDelta | ReasoningDelta | Finished]:
        """Yield the end of the answer.

        :raises ModelError: ``incomplete``, with the calls received so far, if the answer broke off; ``empty`` if there is no
            answer at all.
        """
        reasoning, text = self._reasoning.end(), self._text.end()
        if reasoning:
            yield ReasoningDelta(text=reasoning)
        if text:
            yield TextDelta(text=text)
        self._check_not_empty()
        if self._is_cut():
            raise self._cut_off_error()
        reason = _REASONS.get(self._reason or "", "stop")
        if reason == "stop" and self._is_refused:
            reason = "refusal"
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        yield Finished(
            reason=reason,
            tool_calls=self._calls.requests(_PROBLEMS.get(reason)),
            usage=self._usage,
            extra=self._kept.fields(),
            origin=self._endpoint.origin,
        )

    def _is_cut(self) -> bool:
        late = self._is_late and not self._done
        return not self.finished or late or self._reason in _BROKEN_OFF or (self._reason is None and bool(self._calls))

    def _cut_off_error(self) -> ModelError:
        message = f"{self._endpoint.label}: the answer broke off before its end"
        return self.add_unfinished(ModelError(message, code="incomplete", next_step="ask again; what had arrived is kept"))

    def _check_not_empty(self) -> None:
        if self._reason in _OVERLOADED:
            message = f"{self._endpoint.label} ran out of capacity in the middle of the answer"
            raise self.add_unfinished(ModelError(message, code="overloaded"))
        if not self.begun and self._is_odd:
            raise ModelError("the model's answer has content that is not text", code="protocol")
        if not self.begun and self._reason in (None, "tool_calls", "function_call"):
            raise ModelError(
                f"{self._endpoint.label} gave an empty answer",
                code="empty",
                next_step="ask again, or choose another model with -m",
            )

    def _choice(self, choice: dict[str, Any]) -> Iterator[Delta]:
        delta = _first_mapping(choice, "delta", "message")
        for place in (choice, delta):
            if place.get("error"):
                self._raise_if_error(place)
        thoughts = (delta.get(key) for key in THOUGHTS)
        reasoning = next((thought for thought in thoughts if thought and isinstance(thought, str)), "")
        content = delta.get("content") if "content" in delta else choice.get("text")
        self._is_odd = self._is_odd or isinstance(content, int | float)
        text, thought = text_of(content)
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            text += refusal
        self._is_refused = self._is_refused or bool(refusal) or _refuses(content)
        yield from self._deltas(reasoning + thought, text)
        self._count_size(self._kept.add(delta))
        self._take_calls(delta)
        yield from self._calls.new_arguments()
        reason = _reason(choice.get("finish_reason"))
        if reason and reason not in _NO_REASON:
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

    def _take_calls(self, delta: dict[str, Any]) -> None:
        """Add the pieces of calls in `delta`. If any come after the finish reason, the calls were not complete when it came."""
        calls: Any = delta.get("tool_calls")
        if isinstance(delta, Repeated):
            self._calls.lose()
        has_calls = bool(calls or delta.get("function_call"))
        self._is_late = self._is_late or (self._reason is not None and has_calls)
        items = cast("list[Any]", calls if isinstance(calls, list) else [calls])
        for position, item in enumerate(items):
            self._calls.add(item, position)
        if isinstance(delta.get("function_call"), dict):
            self._calls.add_function(delta["function_call"])
        self.parts += 1 if has_calls and self._calls else 0

    def _count_size(self, size: int) -> None:
        self._size += size
        if self._size > TEXT_LIMIT:
            most = TEXT_LIMIT // (1024 * 1024)
            message = f"the model's answer is longer than {most} Mi characters; it was not read further"
            raise self.add_unfinished(ModelError(message, code="too_large"))

    def _take_usage(self, chunk: dict[str, Any]) -> None:
        usage = _first_mapping(chunk, "usage") or _first_mapping(_first_mapping(chunk, "x_groq"), "usage")
        if not usage:
            return
        total = _count_of(usage, "prompt_tokens", "input_tokens")
        cached = _count_of(_first_mapping(usage, "prompt_tokens_details", "input_tokens_details"), "cached_tokens")
        details = _first_mapping(usage, "completion_tokens_details", "output_tokens_details")
        self._usage = Usage(
            input=total,
            output=_count_of(usage, "completion_tokens", "output_tokens"),
            cached=min(cached or _count_of(usage, "prompt_cache_hit_tokens", "cached_tokens"), total),
            reasoning=_count_of(details, "reasoning_tokens"),
        )


def _reason(value: Any) -> str:
    """Return a finish reason in one spelling: ``FinishReason.MAX_TOKENS`` and ``max-tokens`` become ``max_tokens``."""
    word = str(value or "")[:64].strip().lower().rpartition(".")[2]
    return re.sub(r"[^a-z0-9]+", "_", word).removeprefix("finish_reason_").strip("_") or word


def _refuses(content: Any) -> bool:
    """Whether a part of a message's content is a refusal."""
    parts = cast("list[Any]", content if isinstance(content, list) else [content])
    return any(isinstance(part, dict) and bool(cast("dict[str, Any]", part).get("refusal")) for part in parts)


def _choices(value: Any) -> list[dict[str, Any]]:
    """Return the choices with index 0; a server may send several answers although one was asked for."""
    items = cast("list[Any]", value if isinstance(value, list) else [value])
    found = [(place, cast("dict[str, Any]", item)) for place, item in enumerate(items) if isinstance(item, dict)]
    return [choice for place, choice in found if choice.get("index") in ((0, "0") if place else (None, 0, "0"))]


def _first_mapping(found: dict[str, Any], *keys: str) -> dict[str, Any]:
    return next((cast("dict[str, Any]", found[key]) for key in keys if isinstance(found.get(key), dict)), dict[str, Any]())


def _count_of(usage: dict[str, Any], *keys: str) -> int:
    """Return a number of tokens; an invalid number from a provider counts as zero, not as an error."""
    for key in keys:
        value: Any = usage.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e10:
            return int(value)
    return 0


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
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        """The arguments; if a server sent the same complete arguments several times, only once."""
        return self.pieces[0] if self._is_said_again else "".join(self.pieces)

    @property
    def _is_said_again(self) -> bool:
        first = self.pieces[0] if len(self.pieces) > 1 else ""
        return bool(first) and all(piece == first for piece in self.pieces) and _is_object(first)

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
        self._function: _Call | None = None
        self._lost = False
        self._owners: dict[str, _Call] = {}
        self._grown: dict[_Call, None] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, delta: Any, position: int = 0) -> None:
        """Add one item of ``tool_calls``; `position` is used if the item has no index."""
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
        call.extra = merged(call.extra, kept_of_call(item))
        if isinstance(item, Repeated) or isinstance(function, Repeated) or isinstance(raw, str | list):
            call.unclear = True
        self._owners.setdefault(call.id, call)
        self._grown[call] = None

    def add_function(self, delta: Any) -> None:
        """Add a piece in the old ``function_call`` form, which has neither index nor id."""
        self.add({"index": "function_call", "function": delta})
        self._function = self._at[_key("function_call")]

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

    def lose(self) -> None:
        """Record that a piece may be missing."""
        self._lost = True

    def requests(self, problem: Problem | None = None) -> tuple[ToolRequest, ...]:
        """Return the calls, each with a unique id, and all of them with `problem`."""
        used_ids: set[str] = set()
        calls = [call for call in self._calls if not self._is_double(call)]
        self._mark_incomplete(calls)
        return tuple(self._request(call, problem, used_ids) for call in calls)

    def _is_double(self, call: _Call) -> bool:
        """Whether `call` repeats another call in the old form: some servers send both forms."""
        said = ((other.name, other.text) for other in self._calls if other is not call)
        return call is self._function and (call.name, call.text) in said

    def _mark_incomplete(self, calls: list[_Call]) -> None:
        """Mark the calls that may lack a piece: a stray piece may belong to any call that did not come in one piece."""
        if not self._lost and len(calls) < 2:
            return
        astray = self._lost or any(call.size and not call.name for call in calls)
        broken = astray or any(call.size and not call.too_large and not _is_object(call.text) for call in calls)
        for call in calls:
            if call.name and ((broken and not call.size) or (astray and len(call.pieces) > 1)):
                call.unclear = True

    def _place(self, index: str | None, id: str, name: str, position: int) -> _Call:
        """Return the call that a piece belongs to.

        With an index it is the call at that index, unless the piece clearly begins another call there (some servers give
        index 0 to every call). Without an index it is the call with that id, or the latest call if there is neither id nor
        name. A piece without a name and with a new index continues a call that has no index yet.
        """
        if index is None and not id and not name and self._calls:
            return self._calls[-1]
        keys = [key for key in (index, f"id {id}" if id else "") if key] or [f"position {position}"]
        call = self._at.get(keys[0])
        if call is None and not name:
            call = self._continued_call(index, id)
        if call is None or (name and _begins_another(call, id, name)):
            if call is not None:
                call.unclear = call.unclear or not call.size
            call = self._begin(id)
        call.index = call.index or index
        for key in keys:
            self._at[key] = call
        return call

    def _continued_call(self, index: str | None, id: str) -> _Call | None:
        """Return the call that a piece without a name continues, although no call was at its index."""
        found = self._at.get(f"id {id}") if id else self._calls[-1] if self._calls else None
        return found if found is not None and (index is None or found.index is None) else None

    def _begin(self, id: str) -> _Call:
        if len(self._calls) >= CALLS_LIMIT:
            raise ModelError(f"the model made more than {CALLS_LIMIT} tool calls in one answer", code="too_large")
        call = _Call(id)
        self._calls.append(call)
        return call

    @staticmethod
    def _request(call: _Call, problem: Problem | None, used_ids: set[str]) -> ToolRequest:
        id = call.id
        while id in used_ids or not _is_id(id):
            id = new_id()
        used_ids.add(id)
        name = whole(call.name)
        if len(name) > NAME_LIMIT:
            name = f"{name[:NAME_LIMIT]}…"
        if call.too_large:
            return ToolRequest(id=id, name=name, problem="args_too_large", extra=joined(call.extra))
        problem = problem or ("invalid_args" if call.unclear else None)
        return ToolRequest(id=id, name=name, arguments=whole(call.text), problem=problem, extra=joined(call.extra))


def new_id() -> str:
    """Return a new call id: nine letters or digits, which every provider accepts back."""
    return "".join(_ALPHABET[byte % 32] for byte in os.urandom(9))


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


def _index(value: Any) -> str | None:
    """Return an index as a key: ``0``, ``"0"`` and ``0.0`` give the same key; a number is never used as a position."""
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
    """Return arguments as JSON text; some servers send an object instead."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)

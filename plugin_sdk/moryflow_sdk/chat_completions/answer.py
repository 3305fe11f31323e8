"""An answer, put together from the chunks of a chat-completions stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, cast

from moryflow_sdk.errors import ModelError
from moryflow_sdk.messages import ToolRequest, Usage
from moryflow_sdk.models import Finished, ReasoningDelta, TextDelta, ToolInputDelta

from .calls import CallCollector, Problem
from .endpoint import Endpoint
from .failures import from_object, is_error
from .sse import DONE, Repeated
from .text import TextJoiner, text_of

TEXT_LIMIT = 16 * 1024 * 1024
"""Characters of text and reasoning together; arguments have a limit of their own."""

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
"""Reasons that are more than a plain end; names of other protocols come through gateways, spelt as :func:`_reason` writes."""

_BROKEN_OFF = frozenset({
    "error", "abort", "aborted", "cancelled", "canceled", "network_error", "incomplete", "interrupted", "failed", "timeout",
    "malformed_function_call", "unexpected_tool_call",
})  # fmt: skip
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoning_text")
"""Where servers put reasoning; some fill two with the same."""
_NO_REASON = frozenset({"null", "none"})
_OVERLOADED = frozenset({"insufficient_system_resource", "overloaded"})
_PROBLEMS: dict[str, Problem] = {"length": "truncated", "content_filter": "incomplete", "refusal": "incomplete"}

Delta = TextDelta | ReasoningDelta | ToolInputDelta


class Answer:
    """Feed it chunks; it gives deltas, and at the end a :class:`Finished` or an error.

    :param endpoint: for the words of errors.
    :ivar parts: pieces of text, reasoning and calls that have come.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.parts = 0
        self._endpoint = endpoint
        self._calls = CallCollector()
        self._text = TextJoiner()
        self._reasoning = TextJoiner()
        self._size = 0
        self._reason: str | None = None
        self._usage = Usage()
        self._done = False
        self._is_late = False
        self._is_refused = False
        self._is_odd = False

    @property
    def finished(self) -> bool:
        """Whether the model said why it stopped; only token counts may still come."""
        return self._reason is not None or self._done

    @property
    def begun(self) -> bool:
        """Whether any part of the answer has come."""
        return self.parts > 0

    def unfinished_calls(self) -> tuple[ToolRequest, ...]:
        """Return the calls so far, marked so that none can run."""
        return self._calls.requests("incomplete")

    def feed(self, chunk: Any) -> Iterator[Delta]:
        """Yield the deltas of one chunk, or take note of :data:`DONE`.

        :raises ModelError: the chunk reports an error, the answer is too large, or it is no chunk at all.
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
        self._fail_on(found)
        self._take_usage(found)
        for choice in _choices(found.get("choices")):
            if isinstance(found, Repeated) or isinstance(choice, Repeated):
                self._calls.lose()
            yield from self._choice(choice)

    def _fail_on(self, found: dict[str, Any]) -> None:
        if is_error(found):
            error = from_object(found, self._endpoint)
            error.tool_calls = self.unfinished_calls()
            raise error

    def finish(self) -> Iterator[TextDelta | ReasoningDelta | Finished]:
        """Yield the end of the answer.

        :raises ModelError: ``incomplete`` when it broke off, with the calls that had come; ``empty`` when there is no answer
            at all.
        """
        reasoning, text = self._reasoning.end(), self._text.end()
        if reasoning:
            yield ReasoningDelta(text=reasoning)
        if text:
            yield TextDelta(text=text)
        self._refuse_nothing()
        if self._is_cut():
            raise self._cut()
        reason = _REASONS.get(self._reason or "", "stop")
        if reason == "stop" and self._is_refused:
            reason = "refusal"
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        yield Finished(reason=reason, tool_calls=self._calls.requests(_PROBLEMS.get(reason)), usage=self._usage)

    def _is_cut(self) -> bool:
        late = self._is_late and not self._done
        return not self.finished or late or self._reason in _BROKEN_OFF or (self._reason is None and bool(self._calls))

    def _cut(self) -> ModelError:
        return ModelError(
            f"{self._endpoint.label}: the answer broke off before its end",
            code="incomplete",
            tool_calls=self.unfinished_calls(),
            next_step="ask again; what had arrived is kept",
        )

    def _refuse_nothing(self) -> None:
        if self._reason in _OVERLOADED:
            raise ModelError(
                f"{self._endpoint.label} ran out of capacity in the middle of the answer",
                code="overloaded",
                tool_calls=self.unfinished_calls(),
            )
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
                self._fail_on(place)
        thoughts = (delta.get(key) for key in _THOUGHTS)
        reasoning = next((thought for thought in thoughts if thought and isinstance(thought, str)), "")
        content = delta.get("content") if "content" in delta else choice.get("text")
        self._is_odd = self._is_odd or isinstance(content, int | float)
        text, thought = text_of(content)
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            text += refusal
        self._is_refused = self._is_refused or bool(refusal) or _refuses(content)
        yield from self._deltas(reasoning + thought, text)
        self._take_calls(delta)
        yield from self._calls.news()
        reason = _reason(choice.get("finish_reason"))
        if reason and reason not in _NO_REASON:
            self._is_late = False
            if self._reason not in _REASONS and self._reason not in _BROKEN_OFF:
                self._reason = reason

    def _deltas(self, reasoning: str, text: str) -> Iterator[Delta]:
        self._count(len(reasoning) + len(text))
        if reasoning and (shown := self._reasoning.add(reasoning)):
            yield ReasoningDelta(text=shown)
        if text and (shown := self._text.add(text)):
            yield TextDelta(text=shown)

    def _take_calls(self, delta: dict[str, Any]) -> None:
        """Take pieces of calls. Those behind the reason for the end were not whole when it came."""
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

    def _count(self, size: int) -> None:
        self.parts += size > 0
        self._size += size
        if self._size > TEXT_LIMIT:
            raise ModelError(
                f"the model's answer is longer than {TEXT_LIMIT // (1024 * 1024)} Mi characters; it was not read further",
                code="too_large",
                tool_calls=self.unfinished_calls(),
            )

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
    """Return a reason for the end in one spelling: ``FinishReason.MAX_TOKENS`` and ``max-tokens`` are ``max_tokens``."""
    word = str(value or "")[:64].strip().lower().rpartition(".")[2]
    return re.sub(r"[^a-z0-9]+", "_", word).removeprefix("finish_reason_").strip("_") or word


def _refuses(content: Any) -> bool:
    """Whether a part of a message's content says no."""
    parts = cast("list[Any]", content if isinstance(content, list) else [content])
    return any(isinstance(part, dict) and bool(cast("dict[str, Any]", part).get("refusal")) for part in parts)


def _choices(value: Any) -> list[dict[str, Any]]:
    """Return the choices of the first answer; a server may send several although one was asked for."""
    items = cast("list[Any]", value if isinstance(value, list) else [value])
    found = [(place, cast("dict[str, Any]", item)) for place, item in enumerate(items) if isinstance(item, dict)]
    return [choice for place, choice in found if choice.get("index") in ((0, "0") if place else (None, 0, "0"))]


def _first_mapping(found: dict[str, Any], *keys: str) -> dict[str, Any]:
    return next((cast("dict[str, Any]", found[key]) for key in keys if isinstance(found.get(key), dict)), dict[str, Any]())


def _count_of(usage: dict[str, Any], *keys: str) -> int:
    """Return a count of tokens; a provider's nonsense is zero, not an error."""
    for key in keys:
        value: Any = usage.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e10:
            return int(value)
    return 0

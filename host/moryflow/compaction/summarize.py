"""Asks the compact agent for a summary: bounded input, folded in chunks, everything inside the conversation is data."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moryflow_sdk import (
    ChatParams,
    Finished,
    Message,
    ModelError,
    ModelInfo,
    ModelProvider,
    ModelRequest,
    MoryflowError,
    TextDelta,
    Usage,
)

from moryflow.kernel.models import stream

from .agent import CLOSING, REMINDER, TURN_BEGINS, turn_instructions
from .measure import script_aware
from .sections import cleaned, headings_in, is_summary, merged
from .transcript import entries, shortened, whole_or_chunks

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext

UNKNOWN_WINDOW = 16_000
_MARGIN = 0.85
_PREVIOUS, _TOLD = 0.25, 0.1
"""Shares of the input for the summary so far and for what plugins add."""
_HALVINGS = 4
_HUGE = 4
_WORDS = 0.6
"""Of a token, about; for telling a model how long it may write."""
_BROKEN = {
    "length": "the summary was cut off at its length, compaction.maxOutputTokens",
    "content_filter": "the summary was cut off by the service's filter",
    "refusal": "the model refused to write a summary",
}
"""Why an answer that ended so is not whole."""


class SummaryFailed(MoryflowError):
    """There is no summary; the message says why."""

    code = "no_summary"


@dataclass
class Summarizer:
    """One fork of ``default_compact_agent``.

    :ivar fork: its own scope; the run, its events and its hook calls are stored with it.
    :ivar usage: what it has used so far, with `cost`.
    :ivar answers: what it was answered, also where that is no summary.
    :ivar closed: whether every answer ended with the line that was asked for.
    """

    fork: TurnContext
    provider: ModelProvider
    model: ModelInfo
    instructions: str
    most_tokens: int
    context: Sequence[str] = ()
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    steps: int = 0
    closed: bool = True
    language: str = "en"
    answers: list[str] = field(default_factory=list[str])

    async def summary(self, history: Sequence[Message], prefix: Sequence[Message], previous: str) -> str:
        """Return the written sections, merged with those of `previous`; the beginning of a split turn has its own.

        :raises SummaryFailed: the answer is no summary, far too long, or a tool call.
        :raises ModelError: the model cannot be asked.
        """
        told = f"{self.instructions}{turn_instructions(self.language)}" if prefix else self.instructions
        room = self._room(told)

        def write(width: int) -> list[str]:
            turn = [TURN_BEGINS, *entries(prefix, width)] if prefix else []
            return [*entries(history, width), *turn]

        for attempt in range(_HALVINGS + 1):
            try:
                return await self._fold(write, told, previous, room / 2**attempt)
            except ModelError as error:
                if error.code != "context" or attempt == _HALVINGS:
                    raise
        raise AssertionError("unreachable")

    async def _fold(self, write: Callable[[int], Sequence[str]], instructions: str, previous: str, room: float) -> str:
        """Read the conversation, piece by piece where it must be, each time with what was written so far."""
        written, told = previous, _within(self._told, room * _TOLD)
        free = room - script_aware(told)
        pieces = whole_or_chunks(write, script_aware, max(free - min(free * _PREVIOUS, script_aware(previous)), 64.0))
        if len(pieces) > 1:
            pieces = whole_or_chunks(write, script_aware, max(free * (1 - _PREVIOUS), 64.0))
        asked = headings_in(instructions)
        for piece in pieces:
            answer = cleaned(await self._ask(instructions, piece, _within(written, free * _PREVIOUS), told))
            if not is_summary(answer, asked):
                raise SummaryFailed("the answer has none of the sections that were asked for, or nothing in them")
            written = merged(answer, written, asked)
        return written

    @property
    def _told(self) -> str:
        return "\n\n".join(self.context)

    def _room(self, instructions: str) -> float:
        window = self.model.context_window or UNKNOWN_WINDOW
        return max((window - self._output) * _MARGIN - script_aware(instructions) - 100, 128.0)

    @property
    def _output(self) -> int:
        return output_of(self.model, self.most_tokens)

    async def _ask(self, instructions: str, conversation: str, previous: str, told: str) -> str:
        closing = CLOSING.format(number=secrets.token_hex(4))
        parts = [f"<conversation>\n{conversation}\n</conversation>"]
        if previous:
            parts.insert(0, f"<previous-summary>\n{previous}\n</previous-summary>")
        if told:
            parts.append(f"<context>\n{told}\n</context>")
        reminder = REMINDER.format(words=int(self._output * _WORDS), closing=closing)
        first = first_params(self.model, self.most_tokens)
        params = await self.fork.around.dispatcher.transform(self.fork, "chat_params", first)
        request = ModelRequest(
            model=self.model,
            messages=(
                Message(role="system", text=instructions),
                Message(role="user", text="\n\n".join([*parts, reminder])),
            ),
            params=params,
            purpose="compact",
            session=self.fork.session,
        )
        return await self._answer(request, closing)

    async def _answer(self, request: ModelRequest, closing: str) -> str:
        said, most = "", _HUGE * 4 * self._output
        finished = Finished()
        self.steps += 1

        async def again(attempt: int, seconds: float, reason: str) -> None:
            """Forget what broke off. Nothing is said of a retry: the turn's own status stays what it is."""
            nonlocal said
            self.answers.append(said)
            said = ""

        try:
            async for event in stream(self.provider, request, again):
                if isinstance(event, TextDelta):
                    said += event.text
                    if len(said) > most:
                        raise SummaryFailed(f"the summary did not end after {len(said)} characters")
                elif isinstance(event, Finished):
                    finished = event
        finally:
            self.answers.append(said)
        self._account(finished.usage)
        text, closed, _ = said.partition(closing)
        text, self.closed = text.strip(), self.closed and bool(closed)
        if finished.tool_calls:
            raise SummaryFailed(f"the summarizer tried to call {finished.tool_calls[0].name!r}; it has no tools")
        if finished.reason in _BROKEN and not closed:
            raise SummaryFailed(_BROKEN[finished.reason])
        if not cleaned(text):
            raise SummaryFailed("the summary is empty")
        return text

    def _account(self, usage: Usage) -> None:
        self.usage = self.usage + usage
        cost = self.model.cost(usage)
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost


def output_of(model: ModelInfo, most: int) -> int:
    """Return how many tokens a summary may take: `most`, or what the model can say, or a share of a small window."""
    return max(64, min(most, model.max_output or most, (model.context_window or UNKNOWN_WINDOW) // 4))


def first_params(model: ModelInfo, most: int) -> ChatParams:
    """Return the parameters of a summary's requests before any plugin."""
    return ChatParams(max_tokens=output_of(model, most), temperature=0)


def _within(text: str, room: float) -> str:
    """Return `text`, its middle left out where it is larger than `room` tokens."""
    tokens = script_aware(text)
    return text if tokens <= room else shortened(text, max(80, int(len(text) * room / tokens * 0.95)))

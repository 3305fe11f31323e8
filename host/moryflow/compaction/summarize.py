"""Asks the compact agent for a summary: bounded input, folded in chunks, everything inside the conversation is data."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
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

from .agent import CLOSING, REMINDER, TURN_INSTRUCTIONS
from .measure import script_aware
from .sections import TURN, cleaned, has_sections
from .transcript import chunks, entries, shortened

if TYPE_CHECKING:
    from moryflow.kernel.scope import TurnScope

UNKNOWN_WINDOW = 16_000
_MARGIN = 0.85
_PREVIOUS, _TOLD = 0.25, 0.1
"""Shares of the input for the summary so far and for what plugins add."""
_HALVINGS = 4
_HUGE = 4


class SummaryFailed(MoryflowError):
    """There is no summary; the message says why."""

    code = "no_summary"


@dataclass
class Summarizer:
    """One fork of ``default_compact_agent``.

    :ivar fork: its own scope; the run, its events and its hook calls are stored with it.
    :ivar usage: what it has used so far, with `cost`.
    :ivar structured: whether the answer had any of the sections that were asked for.
    :ivar closed: whether every answer ended with the line that was asked for.
    """

    fork: TurnScope
    provider: ModelProvider
    model: ModelInfo
    instructions: str
    most_tokens: int
    context: Sequence[str] = ()
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    steps: int = 0
    structured: bool = True
    closed: bool = True

    async def summary(self, history: Sequence[Message], prefix: Sequence[Message], previous: str) -> str:
        """Return the written sections; the beginning of a split turn gets its own (S1.11).

        :raises SummaryFailed: the answer is empty, far too long, or a tool call.
        :raises ModelError: the model cannot be asked.
        """
        text = previous
        if history:
            answer = await self._folded(history, self.instructions, previous)
            self.structured = has_sections(answer)
            text = cleaned(answer)
        if prefix:
            turn = await self._folded(prefix, TURN_INSTRUCTIONS, "")
            text = f"{text}\n\n## {TURN}\n{turn.strip()}".strip()
        return text

    async def _folded(self, messages: Sequence[Message], instructions: str, previous: str) -> str:
        """Read the messages piece by piece, each time with what was written so far."""
        room = self._room(instructions)
        for attempt in range(_HALVINGS + 1):
            try:
                return await self._fold(entries(messages), instructions, previous, room / 2**attempt)
            except ModelError as error:
                if error.code != "context" or attempt == _HALVINGS:
                    raise
        raise AssertionError("unreachable")

    async def _fold(self, texts: Sequence[str], instructions: str, previous: str, room: float) -> str:
        written, told = previous, _within(self._told, room * _TOLD)
        free = room * (1 - (_PREVIOUS if previous else 0) - (_TOLD if told else 0))
        pieces = chunks(texts, script_aware, max(free, 64.0))
        if len(pieces) > 1 and not previous:
            pieces = chunks(texts, script_aware, max(free - room * _PREVIOUS, 64.0))
        for piece in pieces:
            written = await self._ask(instructions, piece, _within(written, room * _PREVIOUS), told)
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
        first = first_params(self.model, self.most_tokens)
        params = await self.fork.around.dispatcher.transform(self.fork, "chat_params", first)
        request = ModelRequest(
            model=self.model,
            messages=(
                Message(role="system", text=instructions),
                Message(role="user", text="\n\n".join([*parts, REMINDER.format(closing=closing)])),
            ),
            params=params,
            purpose="compact",
            session=self.fork.session,
        )
        return await self._answer(request, closing)

    async def _answer(self, request: ModelRequest, closing: str) -> str:
        parts: list[str] = []
        length, most = 0, _HUGE * 4 * self._output
        finished = Finished()
        self.steps += 1
        async for event in stream(self.provider, request, _quietly):
            if isinstance(event, TextDelta):
                parts.append(event.text)
                length += len(event.text)
                if length > most:
                    raise SummaryFailed(f"the summary did not end after {length} characters")
            elif isinstance(event, Finished):
                finished = event
        self._account(finished.usage)
        text, closed, _ = "".join(parts).partition(closing)
        text, self.closed = text.strip(), self.closed and bool(closed)
        if finished.tool_calls:
            raise SummaryFailed(f"the summarizer tried to call {finished.tool_calls[0].name!r}; it has no tools")
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


async def _quietly(attempt: int, seconds: float, reason: str) -> None:
    """Say nothing of a retry: the turn's own status stays what it is. The waiting is the caller's."""


def _within(text: str, room: float) -> str:
    """Return `text`, its middle left out where it is larger than `room` tokens."""
    tokens = script_aware(text)
    return text if tokens <= room else shortened(text, max(80, int(len(text) * room / tokens * 0.95)))

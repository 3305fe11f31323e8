"""A model that answers from a list: for examples, for developing a plugin, and for tests."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from moryflow_sdk._frozen import Frozen, FrozenMapping, ValidationError
from moryflow_sdk.errors import ModelError, ModelErrorCode
from moryflow_sdk.field_types import Between
from moryflow_sdk.models import (
    BaseProvider,
    Finished,
    ModelEvent,
    ModelInfo,
    ModelRequest,
    Purpose,
    ReasoningDelta,
    TextDelta,
    ToolRequest,
    Usage,
)

ASIDE: dict[Purpose, str] = {
    "title": "Scripted session",
    "compact": "## Goal\nA scripted conversation.\n## Progress\nIt goes on.",
}
"""Answers for calls that the host makes by itself; they use no turn of the script unless a turn names their purpose."""


_Seconds = Annotated[float, Between(0, math.inf)]


class ScriptedCall(Frozen):
    """A tool call; `arguments` is an object, or a text that is sent as it is, even if it is not JSON."""

    name: str
    arguments: FrozenMapping | str = {}
    id: str = ""
    problem: str | None = None


class ScriptedError(Frozen):
    """A failure to raise in place of the rest of the answer."""

    code: ModelErrorCode = "overloaded"
    message: str = "scripted failure"
    retry_after: float | None = None
    next_step: str = ""


class ScriptedTurn(Frozen):
    """One answer.

    :param delay: seconds before the first piece; `pause`: seconds between two pieces of the text.
    :param purpose: answer only calls with this purpose; by default, all calls except ``title`` and ``compact``.
    :param finish: the finish reason; by default ``tool_calls`` or ``stop``.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    usage: Usage | None = None
    error: ScriptedError | None = None
    delay: _Seconds = 0.0
    pause: _Seconds = 0.0
    purpose: Purpose | None = None
    finish: str | None = None

    def answers(self, purpose: Purpose) -> bool:
        """Whether this turn is for a call of `purpose`."""
        return purpose not in ASIDE if self.purpose is None else purpose == self.purpose


Turns = Sequence[str | Mapping[str, Any] | ScriptedTurn]


def read_script(path: Path) -> list[ScriptedTurn]:
    """Return the turns in a JSON file, which is a list of them; an empty file has none.

    :raises ModelError: there is no such file, or it is not a script; the message names the turn.
    """
    where, step = str(path), "check the path after script:, and that the file is a list of turns"
    try:
        text = path.read_text(encoding="utf-8-sig")
        turns: Any = json.loads(text) if text.strip() else []
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"the script cannot be read: {reason}", code="missing", where=where, next_step=step) from error
    if not isinstance(turns, list):
        raise ModelError("the script is not a list of turns", code="missing", where=where, next_step=step)
    return [_turn(turn, f"{path}, turn {number}") for number, turn in enumerate(cast("list[Any]", turns), 1)]


def _turn(value: Any, where: str) -> ScriptedTurn:
    if isinstance(value, ScriptedTurn):
        return value
    try:
        return ScriptedTurn.model_validate(_written_out(value))
    except ValidationError as error:
        first = error.errors()[0]
        reason = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        message, step = f"this turn of the script is not valid: {reason}", "correct that turn"
        raise ModelError(message, code="missing", where=where, next_step=step) from error


def _written_out(turn: Any) -> Any:
    """Return a turn with its short forms expanded: a text instead of an object, and a code instead of an error."""
    if isinstance(turn, str):
        return {"text": turn}
    fields = cast("dict[str, Any]", turn)
    short = isinstance(turn, Mapping) and isinstance(fields.get("error"), str)
    return {**fields, "error": {"code": fields["error"]}} if short else fields


class ScriptedModel(BaseProvider):
    """Answers each call with the next turn for its purpose; when all turns are used, calls fail.

    :ivar requests: the requests that it received, for tests.
    """

    name = "scripted"

    def __init__(self, turns: Turns, *, info: ModelInfo | None = None) -> None:
        self.info = info or ModelInfo(id="scripted", name="scripted", provider=self.name, context_window=128_000, images=True)
        self.requests: list[ModelRequest] = []
        self._turns = [_turn(turn, f"turn {number}") for number, turn in enumerate(turns, 1)]
        self._total = len(self._turns)

    @property
    def left(self) -> int:
        """How many turns have not been used yet."""
        return len(self._turns)

    def add(self, *turns: str | Mapping[str, Any] | ScriptedTurn) -> None:
        """Append turns to the script."""
        self._turns += [_turn(turn, f"turn {self._total + number}") for number, turn in enumerate(turns, 1)]
        self._total += len(turns)

    def find(self, model: str) -> ModelInfo | None:
        """Return the model if `model` is its id."""
        return self.info if model == self.info.id else None

    def default(self, environ: Mapping[str, str]) -> str | None:
        """Be the model when nobody chose one."""
        return self.info.id

    async def available(self) -> Sequence[ModelInfo]:
        """List the one model."""
        return (self.info,)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Yield the next turn.

        :raises ModelError: the turn has an error, or no turn is left.
        """
        self.requests.append(request)
        async for event in play(self._next(request.purpose), number=len(self.requests)):
            yield event

    def _next(self, purpose: Purpose) -> ScriptedTurn:
        turn = next((turn for turn in self._turns if turn.answers(purpose)), None)
        if turn is not None:
            self._turns.remove(turn)
            return turn
        if purpose in ASIDE:
            return ScriptedTurn(text=ASIDE[purpose])
        raise ModelError(
            f"the script has only {self._total} turns, and all were used",
            code="bad_request",
            next_step="add a turn to the script",
        )


async def play(turn: ScriptedTurn, *, number: int) -> AsyncGenerator[ModelEvent]:
    """Yield `turn` as a model would: reasoning, text word by word, then calls. `number` makes call ids unique."""
    await asyncio.sleep(turn.delay)
    if turn.reasoning:
        yield ReasoningDelta(text=turn.reasoning)
    for piece in re.findall(r"\S+\s*|\s+", turn.text):
        yield TextDelta(text=piece)
        if turn.pause:
            await asyncio.sleep(turn.pause)
    calls = tuple(_request(call, f"call_{number}_{index}") for index, call in enumerate(turn.calls, 1))
    if turn.error is not None:
        broken = tuple(call.replace(problem=call.problem or "incomplete") for call in calls)
        error = turn.error
        raise ModelError(
            error.message, code=error.code, retry_after=error.retry_after, next_step=error.next_step, tool_calls=broken
        )
    usage = turn.usage or Usage(input=10, output=max(1, len(turn.text) // 4))
    yield Finished.model_validate(
        {"reason": turn.finish or ("tool_calls" if calls else "stop"), "tool_calls": calls, "usage": usage}
    )


def _request(call: ScriptedCall, id: str) -> ToolRequest:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    return ToolRequest.model_validate({"id": call.id or id, "name": call.name, "arguments": arguments, "problem": call.problem})

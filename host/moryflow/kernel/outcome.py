"""What a turn may spend and how it ends: options in, result out, the exit code of each end reason, what children share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from moryflow_sdk import MoryflowError, Rule, Usage

from .events import now

if TYPE_CHECKING:
    from moryflow.store import CallRow

OnAsk = Literal["prompt", "deny", "fail"]
EndReason = Literal[
    "completed", "stopped", "denied", "approval_required", "max_steps", "doom_loop", "budget", "prompt_too_long",
    "plugin_failed", "model_error", "interrupted", "host_error",
]  # fmt: skip

EXIT_CODES: dict[str, int] = {
    "completed": 0,
    "host_error": 1,
    "denied": 4,
    "approval_required": 4,
    "max_steps": 5,
    "doom_loop": 5,
    "budget": 5,
    "prompt_too_long": 5,
    "plugin_failed": 6,
    "model_error": 7,
    "stopped": 130,
    "interrupted": 130,
}


class Shortfall(NamedTuple):
    """What is said of a turn that completed with an answer that is not a whole one."""

    exit_code: int
    sentence: str
    next_step: str


_OTHERWISE = "say it in other words, or choose another model with -m"
SHORTFALLS: dict[str, Shortfall] = {
    "length": Shortfall(
        5,
        "the answer was cut at its length limit",
        'moryflow run -c "go on", or raise maxTokens (moryflow config prompt edit)',
    ),
    "content_filter": Shortfall(7, "the model's service filtered the answer", _OTHERWISE),
    "refusal": Shortfall(7, "the model refused to answer", _OTHERWISE),
    "empty": Shortfall(7, "the model's last answer was empty", "ask again, or choose another model with -m"),
}
"""By ``finish``."""
NOBODY_ASKED = 4
DEFAULT_MAX_STEPS = 200


class RunOptions(NamedTuple):
    """How one turn is run.

    :param on_ask: ``prompt`` waits for a person, ``deny`` tells the model no, ``fail`` ends the turn.
    :param max_cost: US dollars.
    """

    on_ask: OnAsk = "deny"
    max_steps: int | None = None
    max_cost: float | None = None

    def within(self, limits: Mapping[str, Any], agent_steps: int | None) -> RunOptions:
        """Return the options with the configured limits where a turn was given none, and its agent has no lower one."""
        steps = limits.get("maxSteps")
        if steps and agent_steps and agent_steps < steps:
            steps = None
        return self._replace(max_steps=self.max_steps or steps, max_cost=self.max_cost or limits.get("maxCost"))


class TurnResult(NamedTuple):
    """What a turn gave; the fields of the ``result`` object of ``--output json``.

    :param finish: why the last answer ended: what the model gave as the reason, or ``empty``; nothing when no model answered.
    """

    session: str
    end_reason: EndReason
    text: str
    usage: Usage
    cost: float | None
    steps: int
    denied: tuple[dict[str, Any], ...] = ()
    unasked: bool = False
    error: MoryflowError | None = None
    finish: str = ""

    @property
    def exit_code(self) -> int:
        """The process's exit code. An answer that is not whole shows, and a call refused because nobody could be asked."""
        code = self.shortfall.exit_code if self.shortfall else EXIT_CODES[self.end_reason]
        return NOBODY_ASKED if code == 0 and self.unasked else code

    @property
    def shortfall(self) -> Shortfall | None:
        """What the answer of a completed turn lacks."""
        return SHORTFALLS.get(self.finish) if self.end_reason == "completed" else None

    @property
    def status(self) -> str:
        """``completed`` or ``failed``."""
        return "completed" if self.end_reason == "completed" else "failed"

    def as_json(self) -> dict[str, Any]:
        """Return the ``result`` event."""
        usage = {"input": self.usage.input, "output": self.usage.output, "cached": self.usage.cached}
        found = {
            "v": 1,
            "type": "result",
            "ts": now(),
            "status": self.status,
            "end_reason": self.end_reason,
            "finish": self.finish,
            "exit_code": self.exit_code,
            "text": self.text,
            "usage": usage,
            "cost": self.cost,
            "steps": self.steps,
            "denied": list(self.denied),
            "session": self.session,
        }
        return found if self.error is None else {**found, "error": error_json(self.error)}


def error_json(error: MoryflowError) -> dict[str, Any]:
    """Return the fields of an ``error`` event."""
    return {"code": error.code, "message": error.message, "where": error.where, "next": error.next_step}


class SessionPermissions:
    """Mode and grants of a session. A child has its parent's very object: what a person changes holds for both at once."""

    def __init__(self, mode: str, grants: list[Rule] | None = None) -> None:
        self.mode = mode
        self.grants = [] if grants is None else grants


class Budget:
    """What a turn may spend. What its children spend counts here too, while they spend it.

    :ivar max_cost: US dollars; `max_steps` counts model calls.
    :ivar above: the budget of the turn that started this one.
    """

    def __init__(self, max_steps: int | None = None, max_cost: float | None = None, above: Budget | None = None) -> None:
        self.max_steps, self.max_cost, self.above = max_steps, max_cost, above
        self.steps, self.cost = 0, 0.0

    def spend(self, *, steps: int = 0, cost: float | None = None) -> None:
        """Count a step or a cost, here and in every budget above."""
        self.steps += steps
        self.cost += cost or 0.0
        if self.above is not None:
            self.above.spend(steps=steps, cost=cost)

    def reached(self) -> Literal["budget", "max_steps"] | None:
        """Return which limit is reached, of this turn or of one above it."""
        if self.max_cost is not None and self.cost >= self.max_cost:
            return "budget"
        if self.max_steps is not None and self.steps >= self.max_steps:
            return "max_steps"
        return self.above.reached() if self.above is not None else None


class ChildUsage(NamedTuple):
    """What a child used and met, for its parent's own account."""

    usage: Usage
    cost: float | None
    steps: int
    denied: tuple[Mapping[str, Any], ...] = ()
    unasked: bool = False


class LeftoverProcesses(NamedTuple):
    """What was found; nothing, as a rule.

    :ivar by_call: what the result of an interrupted call says of it, by the call's id.
    :ivar notice: what the person is told.
    :ivar calls: the session's own calls that had begun and never ended.
    """

    by_call: Mapping[str, str] = {}
    notice: str = ""
    calls: Sequence[CallRow] = ()

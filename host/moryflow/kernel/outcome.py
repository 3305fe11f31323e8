"""A turn's limits and usage, the reasons why it ends, and what sub-agents share with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, NamedTuple, get_args

from moryflow_sdk import ConfigError, MoryflowError, Rule, Usage
from moryflow_sdk.models import Effort

OnAsk = Literal["prompt", "deny", "fail"]
EndReason = Literal[
    "completed", "stopped", "denied", "approval_required", "max_steps", "doom_loop", "budget", "prompt_too_long",
    "plugin_failed", "model_error", "interrupted", "host_error",
]  # fmt: skip

# Why an answer is not complete, by its `finish`.
NOT_WHOLE = {
    "length": "the answer was cut at its length limit",
    "content_filter": "the model's service filtered the answer",
    "refusal": "the model refused to answer",
    "empty": "the model's last answer was empty",
}
DEFAULT_MAX_STEPS = 200
# The most turns that plugins can let follow one prompt.
MAX_FOLLOWING = 5


class RunOptions(NamedTuple):
    """How to run one turn.

    :param on_ask: what a question to the user does: ``prompt`` waits for the answer, ``deny`` tells the model no, ``fail``
        ends the turn.
    :param max_cost: US dollars.
    :param effort: how long the model reasons, for this turn and the later ones of the session; ``default`` ends that.
    :param schema: a JSON Schema for the answer; the prompt must say it too.
    :param key: a client's own name for the prompt; the ``turn.start`` event carries it.
    :param turn: the id of the turn; empty: a new one. A turn that was cut off goes on under its own.
    """

    on_ask: OnAsk = "deny"
    max_steps: int | None = None
    max_cost: float | None = None
    key: str = ""
    effort: Effort | Literal["default"] | None = None
    schema: Mapping[str, Any] | None = None
    turn: str = ""

    def check(self) -> None:
        """Refuse wrong values: a wrong limit must not count as no limit.

        :raises ConfigError: a value is wrong.
        """
        steps, cost = self.max_steps, self.max_cost
        if self.on_ask not in get_args(OnAsk):
            problem = f"on_ask is 'prompt', 'deny' or 'fail', not {self.on_ask!r}"
        elif steps is not None and not (type(steps) is int and steps > 0):
            problem = f"max_steps is a whole number from 1, not {steps!r}"
        elif cost is not None and not (type(cost) in (int, float) and 0 < cost < inf):
            problem = f"max_cost is a number above 0, not {cost!r}"
        elif self.effort not in (None, "default", *get_args(Effort)):
            problem = f"effort is {', '.join(get_args(Effort))} or default, not {self.effort!r}"
        else:
            return
        raise ConfigError(problem, next_step="correct it, or leave it out")

    def within(self, limits: Mapping[str, Any], agent_steps: int | None) -> RunOptions:
        """Return the options with the configured `limits` filled in, unless the turn has its own or its agent a lower one."""
        steps = limits.get("maxSteps")
        if steps and agent_steps and agent_steps < steps:
            steps = None
        return self._replace(max_steps=self.max_steps or steps, max_cost=self.max_cost or limits.get("maxCost"))


def error_json(error: MoryflowError) -> dict[str, Any]:
    """Return the fields of an ``error`` event."""
    return {"code": error.code, "message": error.message, "where": error.where, "next": error.next_step}


class SessionPermissions:
    """Mode and grants of a session. A child session shares its parent's object, so the user's change applies to both."""

    def __init__(self, mode: str, grants: list[Rule] | None = None) -> None:
        self.mode = mode
        self.grants = [] if grants is None else grants


@dataclass(eq=False, repr=False)
class Budget:
    """What a turn may spend. What its children spend counts here at once.

    :ivar max_cost: US dollars; `max_steps` counts model calls.
    :ivar above: the budget of the parent turn.
    """

    max_steps: int | None = None
    max_cost: float | None = None
    above: Budget | None = None
    steps: int = 0
    cost: float = 0.0

    def spend(self, *, steps: int = 0, cost: float | None = None) -> None:
        """Count a step or a cost, here and in every budget above."""
        self.steps += steps
        self.cost += cost or 0.0
        if self.above is not None:
            self.above.spend(steps=steps, cost=cost)

    def reached(self) -> Literal["budget", "max_steps"] | None:
        """Return which limit is reached, of this turn or of a turn above it."""
        if self.max_cost is not None and self.cost >= self.max_cost:
            return "budget"
        if self.max_steps is not None and self.steps >= self.max_steps:
            return "max_steps"
        return self.above.reached() if self.above is not None else None


class ChildUsage(NamedTuple):
    """What a child turn used and which of its calls were denied; its parent adds both to its own account."""

    usage: Usage
    cost: float | None
    steps: int
    denied: tuple[Mapping[str, Any], ...] = ()
    unasked: bool = False


@dataclass(eq=False, repr=False)
class TurnUsage:
    """What a turn has used so far, and which of its calls were denied."""

    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    text: str = ""
    finish: str = ""
    denied: list[dict[str, Any]] = field(default_factory=list)
    child_steps: int = 0
    unasked: bool = False

    def add(self, usage: Usage, cost: float | None) -> None:
        self.usage = self.usage + usage
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    def add_child(self, spent: ChildUsage) -> None:
        """Add a child's usage and denials to this turn's account."""
        self.add(spent.usage, spent.cost)
        self.denied += [dict(denial) for denial in spent.denied]
        self.child_steps += spent.steps
        self.unasked = self.unasked or spent.unasked

"""What a turn shares with its child sessions (permissions, a budget, usage), and what an earlier turn left running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from moryflow_sdk import Rule, Usage

if TYPE_CHECKING:
    from moryflow.store import CallRow


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

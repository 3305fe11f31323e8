"""Budgets by name: of a session, of a day, of an agent's day, of a folder's day, in US dollars.

When one is used up, the next tool call is a question: whoever can answer questions can let the work go on, for as much again.
Without anybody to ask, the turn ends with the reason ``budget``. An answer that calls no tool is not held up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from moryflow_sdk import Allow, Ask, Remember, Ruling, Stop, ToolCall, Turn, Verdict, hookimpl
from moryflow_sdk.support.settings import Meta, Settings

name = "budgets"
services = ("history",)
config_path = "agents.runtime.budgets"
gate = True

MAX_DOLLARS = 1_000_000


def _amounts(given: Mapping[str, Any]) -> Mapping[str, Any]:
    # Here and not by type, so that one wrong amount puts the strictest ones in the place of all.
    for key, amount in given.items():
        if type(amount) not in (int, float) or not 0 < amount <= MAX_DOLLARS:
            raise ValueError(f"{key}: US dollars, above 0 and up to {MAX_DOLLARS}")
    return given


Dollars = Annotated[float, Meta("US dollars", gt=0, le=MAX_DOLLARS, allow_inf_nan=False, strict=True)]
Amounts = Annotated[Mapping[str, Any], Meta("US dollars", then=_amounts)]


class BudgetSettings(Settings):
    """What may be spent before the user is asked.

    :ivar session: in one session, its sub-agents included.
    :ivar day: in all sessions since midnight.
    :ivar agent: by agent, what its turns may cost since midnight, also as another's sub-agent; `*` is each that is not named.
    :ivar folder: by folder, what sessions in it and below it may cost since midnight.
    """

    strictest = {"session": 0.01, "day": 0.01, "agent": {"*": 0.01}, "folder": {"/": 0.01}}

    session: Dollars | None = None
    day: Dollars | None = None
    agent: Amounts = {}
    folder: Amounts = {}


config_model = BudgetSettings

# The domain of the session grant that *always* stores; no permission rule has this domain.
DOMAIN = "budget"
ALWAYS = "lets this session go on without asking about this budget again; it holds for this session only and is not stored"


class NamedBudget(NamedTuple):
    """One budget: its name, how much, and which turns count, as ``history.spent`` takes it."""

    name: str
    most: float
    counts: Mapping[str, Any]


def _limits(turn: Turn) -> Iterator[NamedBudget]:
    """Yield the budgets that this turn spends from."""
    settings: BudgetSettings = turn.config
    if settings.session:
        yield NamedBudget("session", settings.session, {"session": turn.session})
    midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC).isoformat()
    if settings.day:
        yield NamedBudget("day", settings.day, {"since": midnight})
    if most := settings.agent.get(turn.agent.id, settings.agent.get("*")):
        yield NamedBudget(f"agent {turn.agent.id}", most, {"agent": turn.agent.id, "since": midnight})
    for text, most in settings.folder.items():
        folder = Path(text).expanduser().resolve()
        if turn.vault.is_relative_to(folder):
            yield NamedBudget(f"folder {text}", most, {"folder": folder, "since": midnight})


@hookimpl
async def tool_gate(call: ToolCall, turn: Turn) -> Verdict | None:
    """Ask when a budget is used up; the user's yes is good for as much again."""
    open_questions: dict[str, list[Any]] = dict(turn.session_state.get("open", {}))
    if call.id not in open_questions:
        used = [
            (limit, spent)
            for limit in _limits(turn)
            if (spent := await turn.history.spent(**limit.counts)) >= _most(limit, turn)
        ]
        if not used:
            return None
        limit, spent = used[0]
        # The same question, also after a restart: another sum would void the answer.
        open_questions[call.id] = [limit.name, _said(limit, spent), spent + limit.most]
        turn.session_state["open"] = open_questions
    budget, said, _ = open_questions[call.id]
    if _granted(budget, turn):
        return Allow(f"{said}; continued, because always was answered in this session")
    remember = Remember(scope="session", domain=DOMAIN, pattern=budget, says=ALWAYS)
    return Ask(f"{said}; go on?", bypass="never", remember=(remember,))


@hookimpl
def tool_decided(call: ToolCall, ruling: Ruling, turn: Turn) -> Verdict | None:
    """Raise the budget after a yes; end the turn after a no."""
    open_questions: dict[str, list[Any]] = dict(turn.session_state.get("open", {}))
    if ruling.decision == "ask" or call.id not in open_questions:
        return None
    budget, said, raised = open_questions.pop(call.id)
    turn.session_state["open"] = open_questions
    if ruling.decision != "allow":
        return Stop(f"{said}, and nobody let it go on", end_reason="budget")
    turn.session_state["raised"] = {**turn.session_state.get("raised", {}), budget: raised}
    return None


def _most(limit: NamedBudget, turn: Turn) -> float:
    raised: Mapping[str, float] = turn.session_state.get("raised", {})
    return float("inf") if _granted(limit.name, turn) else max(limit.most, raised.get(limit.name, 0.0))


def _granted(budget: str, turn: Turn) -> bool:
    return any(grant.domain == DOMAIN and grant.pattern == budget for grant in turn.grants)


def _said(limit: NamedBudget, spent: float) -> str:
    return f"the budget of the {limit.name} is used up: ${spent:.2f} of ${limit.most:.2f}"

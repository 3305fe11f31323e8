"""The tool ``ask_user``: a model asks the user one to four questions with choices.

The gate of the call asks, so the questions go the way of every question: to the terminal, the page, an editor, over HTTP, and
to whoever answers after the turn has ended. The answer is the message that comes with ``once``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from moryflow_sdk import Allow, Ask, Frozen, Ruling, Tool, ToolCall, ToolContext, ToolError, Turn, Verdict, hookimpl, tool
from moryflow_sdk.field_types import Between

name = "ask_user"

ALONE = "nobody can be asked here: decide yourself, and say in the answer what you took for granted"


class OfferedChoice(Frozen):
    """An answer on offer."""

    label: str
    description: str = ""


class ChoiceQuestion(Frozen):
    """A question with its choices."""

    question: str
    options: Annotated[list[OfferedChoice], "two to four; the user may always use their own words"]
    header: Annotated[str, "one or two words"] = ""
    multiSelect: bool = False  # named as in other systems


def _preview(ctx: ToolContext) -> str:
    lines: list[str] = []
    for one in ctx.call.args["questions"]:
        lines.append(one["question"])
        lines += (": ".join(filter(None, (f"  {item['label']}", item.get("description")))) for item in one["options"])
    return "\n".join(lines)


@tool(domain="read", preview=_preview)
def ask_user(
    questions: Annotated[list[ChoiceQuestion], Between(1, 4)],
    ctx: ToolContext,
) -> str:
    """Ask the user what only they can decide, with choices to pick from; not what the files say."""
    if ctx.headless:
        raise ToolError(ALONE, code="nobody_to_ask")
    given = ctx.session_state.pop(ctx.call.id, "")
    if not given:
        return "The user agreed and chose nothing: take what you would recommend."
    try:
        answers = json.loads(given)
    except ValueError:
        answers = None
    if not isinstance(answers, dict):
        return f"The user answered: {given}"
    return "\n".join(f"{question} → {_words(answer)}" for question, answer in answers.items())


def _words(answer: Any) -> str:
    return ", ".join(map(str, answer)) if isinstance(answer, list) else str(answer)


@hookimpl
def tools() -> Sequence[Tool]:
    """Offer ``ask_user``."""
    return [ask_user]


@hookimpl
def tool_gate(call: ToolCall, turn: Turn) -> Verdict | None:
    """Ask, also in full access: the question is no permission. Without anybody to ask, the tool itself says so."""
    if call.tool != name:
        return None
    return Allow() if turn.headless else Ask("the agent has a question", cause="question", bypass="never", unusual="")


@hookimpl
def tool_decided(call: ToolCall, ruling: Ruling, turn: Turn) -> None:
    """Keep the answer for the call."""
    if call.tool == name and ruling.decision == "allow" and ruling.message:
        turn.session_state[call.id] = ruling.message

"""``/undo`` and ``/redo`` in ``chat``: first the diff, then ``/undo yes``."""

from __future__ import annotations

from moryflow_sdk import SlashResult, Turn

from .showing import shown
from .undoing import carry_out, plan_redo, plan_undo

_YES = frozenset({"yes", "y", "force"})


async def slash(verb: str, rest: str, turn: Turn) -> SlashResult:
    """Show what would change, or do it; files that a person changed since need ``force``."""
    words = set(rest.split())
    plan = await plan_redo(turn) if verb == "redo" else await plan_undo(turn, step="step" in words)
    if not words & _YES:
        scope = " step" if "step" in words else ""
        force = " force" if plan.foreign else " yes"
        return SlashResult(f"{await shown(turn, plan)}\n\n/{verb}{scope}{force} does it")
    if plan.foreign and "force" not in words:
        names = ", ".join(change.path for change in plan.foreign)
        return SlashResult(f"nothing was done: {names} changed since, not by the agent; /{verb} force overwrites")
    touched = await carry_out(turn, plan)
    done = {"undo": "undone", "redo": "done again"}[verb]
    files = f"; restored {', '.join(touched)}" if touched else ""
    return SlashResult(f"{done}: {plan.title}{files}")

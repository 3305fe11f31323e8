"""``/undo`` and ``/redo`` in ``chat``: first the diff, then ``/undo yes``."""

from __future__ import annotations

from moryflow_sdk import SlashResult, Turn

from .showing import overwritten, shown, visible
from .undoing import carry_out, plan_redo, plan_undo

_YES = frozenset({"yes", "y", "force", "keep"})


async def slash(verb: str, rest: str, turn: Turn) -> SlashResult:
    """Show what would change, or do it; files that a person changed since need ``force`` or ``keep``."""
    words = set(rest.split())
    plan = await plan_redo(turn) if verb == "redo" else await plan_undo(turn, step="step" in words)
    if not words & _YES:
        scope = " step" if "step" in words else ""
        how = f"/{verb}{scope} yes does it"
        if plan.foreign:
            how = f"/{verb}{scope} keep does it and leaves alone what changed since; /{verb}{scope} force overwrites that too"
        return SlashResult(f"{await shown(turn, plan)}\n\n{how}")
    if "keep" in words:
        plan = plan.without_foreign()
    if plan.foreign and "force" not in words:
        names = visible(", ".join(change.path for change in plan.foreign))
        return SlashResult(
            f"nothing was done: {names} changed since, not by the agent; /{verb} keep leaves that, /{verb} force overwrites it"
        )
    finished = await carry_out(turn, plan)
    done = {"undo": "undone", "redo": "done again"}[verb]
    files = f"; restored {', '.join(finished.touched)}" if finished.touched else ""
    return SlashResult("\n".join([visible(f"{done}: {plan.title}{files}"), *overwritten(finished)]))

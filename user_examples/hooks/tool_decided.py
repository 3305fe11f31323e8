"""Write down every decision, and keep full access away from the shell."""

from __future__ import annotations

from moryflow_sdk import Deny, Ruling, ToolCall, Turn, hookimpl


@hookimpl
def tool_decided(call: ToolCall, ruling: Ruling, turn: Turn) -> Deny | None:
    """Called when everything is decided and nothing has run yet; a verdict can only be stricter."""
    with (turn.data_dir / "decisions.txt").open("a", encoding="utf-8") as file:
        file.write(f"{call.tool} {ruling.decision} by {ruling.by}\n")
    if call.domain == "bash" and ruling.by == "mode":
        return Deny("no shell without a question here", next_step="use the other tools, or leave full access")
    return None

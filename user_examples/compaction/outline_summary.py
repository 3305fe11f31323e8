"""Write the summary without a model: the first line of everything the user said.

Copy it to ``~/.moryflow/plugins/``. Costs nothing, works offline; the host adds files, outputs, denials and failures.
"""

from __future__ import annotations

from moryflow_sdk import CompactionPlan, Turn, hookimpl

services = ("history",)
WIDTH, MOST = 120, 60


@hookimpl
async def compaction(plan: CompactionPlan, turn: Turn) -> CompactionPlan | None:
    """Supply the summary; the summarizer is then not called."""
    covered = set(plan.covered)
    said = [node for node in await turn.history.path() if node.id in covered and node.kind == "user"]
    lines = [str(node.payload.get("text", "")).strip().split("\n", 1)[0][:WIDTH] for node in said]
    earlier = [line for line in plan.previous_summary.splitlines() if line.startswith("- ")]
    outline = [*earlier, *(f"- {line}" for line in lines if line)][-MOST:]
    return plan.replace(summary="## Progress\nThe user said, in order:\n" + "\n".join(outline)) if outline else None

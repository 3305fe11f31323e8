"""Keep every message that begins with "PIN:" word for word, however often the conversation is compacted.

Copy it to ``~/.moryflow/plugins/``.
"""

from __future__ import annotations

from moryflow_sdk import CompactionPlan, Turn, hookimpl

services = ("history",)


@hookimpl
async def compaction(plan: CompactionPlan, turn: Turn) -> CompactionPlan | None:
    """Protect the pinned messages among those that the summary would stand for."""
    covered = set(plan.covered)
    nodes = await turn.history.path()
    pinned = [node.id for node in nodes if node.id in covered and str(node.payload.get("text", "")).startswith("PIN:")]
    return plan.replace(protect=(*plan.protect, *pinned)) if pinned else None

"""Do not compact while a file named KEEP_CONTEXT stands in the vault.

Copy it to ``~/.moryflow/plugins/``. When the conversation no longer fits, the turn ends with ``prompt_too_long``.
"""

from __future__ import annotations

from moryflow_sdk import CompactionPlan, Turn, hookimpl


@hookimpl
def compaction(plan: CompactionPlan, turn: Turn) -> CompactionPlan | None:
    """Decline, with a reason that the event shows."""
    return plan.replace(decline="KEEP_CONTEXT is in the vault") if (turn.vault / "KEEP_CONTEXT").exists() else None

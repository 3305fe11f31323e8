"""Have decisions survive a long conversation.

Copy it to ``~/.moryflow/plugins/my_compaction.py``. More in ``../compaction/``.
"""

from __future__ import annotations

from moryflow_sdk import CompactionPlan, hookimpl

KEEP = "Keep every decision word for word, with its date and who took it."


@hookimpl
def compaction(plan: CompactionPlan) -> CompactionPlan:
    """Give the summarizer one more thing to mind; what it reads and what stays verbatim is as planned."""
    return plan.replace(context=(*plan.context, KEEP))

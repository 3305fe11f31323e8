"""Change what the summarizer is asked for: one more section, for work on contracts.

Copy it to ``~/.moryflow/plugins/``.
"""

from __future__ import annotations

from moryflow_sdk import CompactionPlan, hookimpl

MORE = """
Add one more section:
## Clauses
Every clause that was discussed: its number, the version agreed on, and who asked for the change.
"""


@hookimpl
def compaction(plan: CompactionPlan) -> CompactionPlan:
    """Append to the instructions; the host's own rules stay before them."""
    return plan.replace(instructions=plan.instructions + MORE)

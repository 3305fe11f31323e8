"""Tell the summarizer what the vault's TODO.md says, so that open tasks reach the summary.

Copy it to ``~/.moryflow/plugins/``.
"""

from __future__ import annotations

from moryflow_sdk import CompactionPlan, Turn, hookimpl

MOST = 4000


@hookimpl
def compaction(plan: CompactionPlan, turn: Turn) -> CompactionPlan | None:
    """Add the open lines of ``TODO.md`` as data."""
    file = turn.vault / "TODO.md"
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    open_tasks = "\n".join(line for line in text.splitlines() if line.lstrip().startswith("- [ ]"))
    return plan.replace(context=(*plan.context, f"Open tasks in TODO.md:\n{open_tasks[:MOST]}")) if open_tasks else None

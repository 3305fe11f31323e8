"""The date and the git branch in the system prompt.

The model then needs no command to find them out. The block is not marked as stable, so it comes last, and the text before it
still comes from the prompt cache.

Try it: ``moryflow run "Which branch is this?"``.
"""

from __future__ import annotations

from datetime import date

from moryflow_sdk import SystemBlock, Turn, hookimpl


@hookimpl
def system_blocks(turn: Turn) -> list[SystemBlock]:
    """Read ``.git/HEAD``, which takes no process."""
    lines = [f"Today is {date.today():%A, %d %B %Y}."]
    head = turn.vault / ".git" / "HEAD"
    if head.is_file():
        lines.append(f"The git branch is {head.read_text(encoding='utf-8').strip().removeprefix('ref: refs/heads/')}.")
    return [SystemBlock(id="git_context", text=" ".join(lines), stable=False)]

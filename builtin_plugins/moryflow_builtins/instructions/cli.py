"""The command ``moryflow instructions``."""

from __future__ import annotations

from typing import Any

import click
from moryflow_sdk import Turn

from . import Instructions, instructions_for


@click.command("instructions")
@click.pass_obj
def instructions(context: Any) -> None:
    """Show which instruction files are read, in which order, what they cost, and what is left out."""

    async def work(turn: Turn) -> tuple[list[dict[str, Any]], str]:
        found = []
        if turn.config.enabled:
            found = instructions_for(turn.vault, turn.home, turn.config)
        rows = [_row(item, turn) for item in found]
        total = sum(item.tokens for item in found)
        lines = [f"{row['tokens']:>6}  {row['file']}" + (f"  ({row['problem']})" if row["problem"] else "") for row in rows]
        nothing = "no AGENTS.md or CLAUDE.md here; folders below are looked at when a file in them is read"
        return rows, "\n".join([*lines, f"{total:>6}  tokens, about, in every request"]) if rows else nothing

    rows, text = context.run(work, vault=context.vault)
    context.print(rows, text=text)


def _row(item: Instructions, turn: Turn) -> dict[str, Any]:
    return {
        "file": item.name(turn.vault),
        "path": str(item.path),
        "tokens": item.tokens,
        "loaded": bool(item.text),
        "problem": item.problem,
    }

"""``moryflow doctor``: one line per thing that could be wrong, and the command that fixes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from moryflow.cli.options import document_options, flags_of
from moryflow.cli.terminal.text import plain, show

_MARKS = {"ok": "ok  ", "warning": "warn", "bad": "BAD "}


@click.command("doctor")
@click.option("--repair", is_flag=True, help="Set a damaged session database aside, and continue with what is sound in it.")
@document_options
@click.pass_context
def command(ctx: click.Context, repair: bool) -> int:
    """Check everything a run needs, and each stored node; exit code 3 if something is broken."""
    from moryflow.cli.open_host import with_host

    from .doctor_checks import examine

    flags = flags_of(ctx)

    async def work(host: Any) -> list[Any]:
        if repair:
            await host.store.repair()
        return await examine(host, flags.vault)

    found = with_host(ctx, work, quiet=True)
    lines: list[str] = []
    for item in found:
        lines.append(f"{_MARKS[item.state]}  {item.name}: {_in_one(item.text)}")
        if item.next_step and item.state != "ok":
            lines.append(f"      next: {_in_one(item.next_step)}")
    broken = any(item.state == "bad" for item in found)
    show(flags, {"ok": not broken, "findings": [asdict(item) for item in found]}, "\n".join(lines))
    return 3 if broken else 0


def _in_one(text: str) -> str:
    """Return `text` as one line: the name of a file may hold the end of one, and must not look like a finding."""
    return plain(" ".join(text.splitlines()))

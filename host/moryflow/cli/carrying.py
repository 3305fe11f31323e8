"""``moryflow session export`` and ``import``: carry a session elsewhere, without loss (S2.14)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click

from .finding import find, summary
from .options import document_options, flags_of
from .stats import descendants
from .text import show


@click.command("export")
@click.argument("session", required=False)
@click.option("-o", "--to", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file.")
@document_options
@click.pass_context
def export(ctx: click.Context, session: str | None, file: Path | None) -> None:
    """Write a session and its sub-agents' as JSON Lines, without loss; to standard output unless --to names a file."""
    from .hosting import with_store

    flags = flags_of(ctx)

    async def work(store: Any) -> tuple[int, int]:
        row = await find(store, session, flags)
        return await _write(store.export(row.id), file), len(await descendants(store, row.id))

    lines, below = with_store(work)
    if file is not None and not flags.quiet:
        click.echo(f"{lines} lines written to {file}{_with(below)}", err=True)


async def _write(lines: AsyncIterator[str], file: Path | None) -> int:
    out = sys.stdout if file is None else file.open("w", encoding="utf-8", newline="\n")
    number = 0
    try:
        async for line in lines:
            out.write(line.rstrip("\n") + "\n")
            number += 1
        out.flush()
    finally:
        if file is not None:
            out.close()
    return number


@click.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@document_options
@click.pass_context
def import_session(ctx: click.Context, file: Any) -> None:
    """Read a session that was exported, with its sub-agents'; - reads standard input."""
    from .hosting import with_store

    async def work(store: Any) -> tuple[Any, list[Any]]:
        row = await store.import_(file)
        return row, await descendants(store, row.id)

    row, below = with_store(work)
    flags = flags_of(ctx)
    if below and not flags.quiet:
        click.echo(f"{row.id} is there{_with(len(below))}; moryflow session tree {row.id}", err=True)
    show(flags, {**summary(row), "sub_agents": [child.id for child in below]}, row.id)


def _with(below: int) -> str:
    return f", with {below} sub-agent{'s' if below != 1 else ''}" if below else ""

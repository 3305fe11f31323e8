"""``moryflow session export`` and ``import``: carry a session elsewhere, without loss (S2.14)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click

from .finding import find, summary
from .options import asking_options, document_options, flags_of
from .text import show


@click.command("export")
@click.argument("session", required=False)
@click.option("-o", "--output", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file.")
@asking_options
@click.pass_context
def export(ctx: click.Context, session: str | None, file: Path | None) -> None:
    """Write a session as JSON Lines, without loss."""
    from .hosting import with_store

    flags = flags_of(ctx)

    async def work(store: Any) -> int:
        row = await find(store, session, flags)
        return await _write(store.export(row.id), file)

    lines = with_store(work)
    if file is not None and not flags.quiet:
        click.echo(f"{lines} lines written to {file}", err=True)


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
    """Read a session that was exported; - reads standard input."""
    from .hosting import with_store

    row = with_store(lambda store: store.import_(file))
    show(flags_of(ctx), summary(row), row.id)

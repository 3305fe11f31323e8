"""``moryflow session export`` and ``import``: carry a session elsewhere, without loss."""

from __future__ import annotations

import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from moryflow.cli.options import document_options, find, flags_of
from moryflow.cli.terminal.text import show
from moryflow.runtime.documents import session_json
from moryflow.runtime.session_stats import descendants

if TYPE_CHECKING:
    from moryflow.store import SessionRow, Store


@click.command("export")
@click.argument("session", required=False)
@click.option("-o", "--to", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file.")
@document_options
@click.pass_context
def export(ctx: click.Context, session: str | None, file: Path | None) -> None:
    """Write a session and its sub-agents as JSON Lines, without loss; to standard output unless --to names a file."""
    from moryflow.cli.open_host import with_store

    flags = flags_of(ctx)

    if str(file) in (
        "-",
        "/dev/stdout",
    ):  # descriptor 1 is not ours: see terminal/stdout.py
        file = None

    async def work(store: Store) -> tuple[int, int]:
        row = await find(store, session, flags)
        with nullcontext(sys.stdout) if file is None else write_whole(file) as out:
            return await write_lines(store.export(row.id), out), len(await descendants(store, row.id))

    lines, below = with_store(work)
    if file is not None and not flags.quiet:
        click.echo(f"{lines} lines written to {file}{_with(below)}", err=True)


async def write_lines(lines: AsyncIterator[str], out: TextIO) -> int:
    """Write lines as they come; return how many they were."""
    number = 0
    async for line in lines:
        out.write(line.rstrip("\n") + "\n")
        number += 1
    out.flush()
    return number


@contextmanager
def write_whole(file: Path) -> Iterator[TextIO]:
    """Open `file` so that it is written whole or stays as it was: an earlier copy may be all that is left.

    What cannot be replaced, a pipe or a device, is written to.

    :raises OSError: with the name of `file`.
    """
    replaced = file.is_file() or not file.exists()
    place = file.resolve() if replaced else file
    part = place.with_name(f".{place.name}.part") if replaced else place
    try:
        with part.open("w", encoding="utf-8", newline="\n") as out:
            yield out
        if replaced:
            if place.exists():
                part.chmod(stat.S_IMODE(place.stat().st_mode))
            part.replace(place)
    except BaseException as error:
        if replaced:
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(part)):
            raise OSError(error.errno, error.strerror, str(file)) from error
        raise


@click.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@document_options
@click.pass_context
def import_session(ctx: click.Context, file: TextIO) -> None:
    """Import an exported session with its sub-agents; - reads standard input."""
    from moryflow.cli.open_host import with_store
    from moryflow.store import StoreError

    async def work(store: Store) -> tuple[SessionRow, list[SessionRow]]:
        try:
            row = await store.import_(file)
        except StoreError as error:
            raise StoreError(
                error.message, code=error.code, where=error.where or file.name, next_step=error.next_step
            ) from error
        return row, await descendants(store, row.id)

    row, below = with_store(work)
    flags = flags_of(ctx)
    if below and not flags.quiet:
        click.echo(f"{row.id} is there{_with(len(below))}; moryflow session tree {row.id}", err=True)
    show(flags, {**session_json(row), "sub_agents": [child.id for child in below]}, row.id)


def _with(below: int) -> str:
    return f", with {below} sub-agent{'s' if below != 1 else ''}" if below else ""

"""``moryflow session``: look at sessions, branch, move, copy and find them."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from moryflow_sdk import Event

from moryflow.base.builtins import CONTRIBUTED, OF_SESSIONS
from moryflow.cli.open_host import with_host, with_store
from moryflow.cli.options import Flags, NounGroup, asking_options, document_options, find, noun
from moryflow.cli.terminal import columns, escaped_json, first_line, plain, say, show
from moryflow.runtime.documents import node_json, session_json, with_title
from moryflow.runtime.session_stats import collect_stats

from .session_history import COMMANDS, node_texts
from .session_worktree import command as worktree

if TYPE_CHECKING:
    from moryflow.runtime.host import Host
    from moryflow.store import Node, RunRow, SessionRow, Store


# The highest limit: more than anybody has, and not too big a number for SQLite.
MAX_LIMIT = 1_000_000_000
_OF_PLUGINS = {name: f"{help_line}." for name, help_line in CONTRIBUTED if name in OF_SESSIONS}


class SessionGroup(NounGroup):
    """Also has the verbs that plugins bring (``undo``, ``redo``, ``summary``); using one loads the plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_OF_PLUGINS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _OF_PLUGINS:
            return super().get_command(ctx, cmd_name)
        from moryflow.cli.contributed import contributed_command

        return contributed_command(ctx, cmd_name)

    def summary(self, ctx: click.Context, name: str) -> str:
        return _OF_PLUGINS.get(name) or super().summary(ctx, name)


command = noun("session", "List, show, branch, export and search sessions.", SessionGroup)

for verb in (*COMMANDS, worktree):
    command.add_command(verb)


@command.command("list")
@click.option(
    "-n", "--limit", type=click.IntRange(1, MAX_LIMIT), default=50, show_default=True, help="How many to list, last used first."
)
@click.option("--all", "hidden", is_flag=True, help="Include hidden ones: sub-agents, and single tool calls.")
@document_options
def list_sessions(flags: Flags, limit: int, hidden: bool) -> None:
    """List sessions, last used first; with --vault only those of that folder."""
    vault = str(flags.vault.resolve()) if flags.vault else None

    async def work(store: Store) -> list[SessionRow]:
        rows = await store.sessions(limit, vault=vault, purpose=None if hidden else "main")
        return [await with_title(store, row) for row in rows]

    rows = with_store(work)
    table = columns((row.id, row.updated[:16].replace("T", " "), row.title or "-", row.vault) for row in rows)
    none = f"no sessions of {vault} yet" if vault else "no sessions yet"
    show(flags, [session_json(row) for row in rows], table or f"{none}; moryflow run starts one")


@command.command("show")
@click.argument("session", required=False)
@click.option("--stats", is_flag=True, help="Show counts instead: turns, tokens, sub-agents, tools, questions, hooks.")
@document_options
def show_session(flags: Flags, session: str | None, stats: bool) -> None:
    """Show a conversation along its active path (default: the last one)."""
    if stats:
        _show_stats(flags, session)
        return

    async def work(store: Store) -> tuple[SessionRow, list[Node], list[RunRow], dict[str, str]]:
        row = await with_title(store, await find(store, session, flags))
        return row, await store.path(row.id), await store.runs(row.id), await store.labels(row.id)

    row, path, runs, named = with_store(work)
    document = {**session_json(row), "nodes": [node_json(node) for node in path], "turns": [run._asdict() for run in runs]}
    document["labels"] = named
    count = sum(not run.is_compaction for run in runs)
    turns = f"{count} turn{'s' if count != 1 else ''}"
    head = f"{row.id}  {row.title or '(no title)'}\n{row.vault} · agent {row.agent} · mode {row.mode} · {turns}"
    show(flags, document, "\n\n".join([plain(head), *node_texts(path, named)]))


def _show_stats(flags: Flags, session: str | None) -> None:

    async def work(store: Store) -> dict[str, Any]:
        return await collect_stats(store, await find(store, session, flags))

    counts = with_store(work)
    show(flags, counts, columns(_rows(counts)))


def _rows(counts: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in counts.items():
        if isinstance(value, Mapping):
            yield from _rows(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value


@command.command("search")
@click.argument("text")
@click.option("-n", "--limit", type=click.IntRange(1, MAX_LIMIT), default=20, show_default=True, help="How many places.")
@document_options
def search(flags: Flags, text: str, limit: int) -> None:
    """Search all sessions for what was said or read."""
    hits = with_store(lambda store: store.search(text, limit))
    table = columns((hit.session, hit.node[:8], hit.kind, first_line(hit.snippet, 100)) for hit in hits)
    show(flags, [hit._asdict() for hit in hits], table or f"nothing found for {text!r}")


@command.command("delete")
@click.argument("sessions", nargs=-1, required=True)
@asking_options
def delete(flags: Flags, sessions: tuple[str, ...]) -> None:
    """Delete whole sessions: messages, outputs, what their sub-agents did, and what undo had recorded. Audit files stay."""
    from moryflow.cli.terminal.stdin import confirm
    from moryflow.runtime.session_commands import delete_session

    deleted: list[str] = []

    async def work(host: Host) -> None:
        host.bus.subscribe(_tell_notice)
        gone: set[str] = set()
        for row in [await host.store.session(name) for name in sessions]:
            if row.id in gone:  # named twice, or deleted with its parent
                continue
            confirm(f"Delete session {row.id} ({row.title or 'no title'})?", flags)
            gone |= set(await delete_session(host, row))
            deleted.append(row.id)

    try:
        with_host(flags, work, quiet=True)
    finally:
        if deleted:  # also if a later session could not be deleted
            show(flags, {"deleted": deleted}, "\n".join(f"deleted {name}" for name in deleted))


def _tell_notice(event: Event) -> None:
    text = event.data.get("text") if event.type.endswith(".notice") else None
    if event.type == "plugin.failed":
        text = f"plugin {event.data['plugin']} failed: {event.data['error']}"
    if text:
        say(f"moryflow: {text}")


# ---------------------------------------------------------------- Carry a session elsewhere


@command.command("export")
@click.argument("session", required=False)
@click.option("-o", "--to", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file.")
@document_options
def export(flags: Flags, session: str | None, file: Path | None) -> None:
    """Write a session and its sub-agents as JSON Lines, without loss; to standard output unless --to names a file.

    If the file ends in .md or .html, it gets the conversation for people to read. Only you can read a new file.
    """
    from moryflow.runtime.readable import ENDINGS, readable

    if str(file) in ("-", "/dev/stdout"):  # descriptor 1 is not ours: see terminal/streams.py
        file = None

    async def work(store: Store) -> tuple[int, int]:
        row = await find(store, session, flags)
        with nullcontext(sys.stdout) if file is None else write_whole(file) as out:
            if file is not None and file.suffix in ENDINGS:
                title = (await with_title(store, row)).title or row.id
                text = readable(file.suffix, title, await store.path(row.id))
                return out.write(text) and text.count("\n"), 0
            return await write_lines(store.export(row.id), out), len(await store.family(row.id)) - 1

    lines, below = with_store(work)
    if file is not None and not flags.quiet:
        click.echo(f"{lines} lines written to {file}{_with(below)}", err=True)


async def write_lines(lines: AsyncIterator[str], out: TextIO) -> int:
    """Write lines as they come, and return their number."""
    number = 0
    async for line in lines:
        out.write(escaped_json(line.rstrip("\n")) + "\n")
        number += 1
    out.flush()
    return number


@contextmanager
def write_whole(file: Path) -> Iterator[TextIO]:
    """Open `file` so that it is written whole or stays as it was: it may hold the only copy of an earlier export.

    It is readable for its owner alone, as the database is.

    :raises OSError: with the name of `file`.
    """
    place = file.resolve()
    # A random name and a new file: in a folder that others may write to, somebody could have put a link under a fixed name.
    part = place.with_name(f".{place.name}.{secrets.token_hex(8)}.part")
    try:
        made = os.open(part, os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(made, "w", encoding="utf-8", newline="\n") as out:
            yield out
        part.replace(place)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(part)):
            raise OSError(error.errno, error.strerror, str(file)) from error
        raise


@command.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@document_options
def import_session(flags: Flags, file: TextIO) -> None:
    """Import an exported session with its sub-agents; - reads standard input.

    It works in the current folder or that of --vault, not in the one that the file names: a stranger may have chosen that.
    """
    from moryflow.base.paths import readable_vault
    from moryflow.store import StoreError

    folder = readable_vault(flags.vault)

    async def work(store: Store) -> tuple[SessionRow, list[str]]:
        try:
            row = await store.import_(file, str(folder))
        except StoreError as error:
            raise StoreError(
                error.message, code=error.code, where=error.where or file.name, next_step=error.next_step
            ) from error
        return row, (await store.family(row.id))[1:]

    row, below = with_store(work)
    if not flags.quiet:
        click.echo(f"{row.id} is there{_with(len(below))}; it works in {plain(row.vault)}", err=True)
    show(flags, {**session_json(row), "sub_agents": below}, row.id)


def _with(below: int) -> str:
    return f", with {below} sub-agent{'s' if below != 1 else ''}" if below else ""

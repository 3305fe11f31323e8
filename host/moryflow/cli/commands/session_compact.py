"""``moryflow session context|compact|records|undo-compaction``: see what the model sees, shorten it, take that back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.open_host import with_host, with_store
from moryflow.cli.options import Flags, document_options, find
from moryflow.cli.terminal.text import columns, first_line, plain, show

if TYPE_CHECKING:
    from moryflow.compaction.measure import Report
    from moryflow.runtime.host import Host
    from moryflow.store import Node, Store


@click.command("context")
@click.argument("session", required=False)
@click.option("-m", "--model", help="Use this model instead of the session's own.")
@document_options
def show_context(flags: Flags, session: str | None, model: str | None) -> None:
    """Show what the model would be sent for this session, with tokens per part and per plugin."""
    from moryflow.runtime.documents import context_report

    async def work(host: Host) -> tuple[str, Report]:
        row = await find(host.store, session, flags)
        return row.id, await context_report(host, await host.resume(row.vault, row.id, model=model), model)

    name, found = with_host(flags, work, quiet=True)
    lines = columns((item["role"], item["tokens"], first_line(gist(item), 100)) for item in found.messages)
    parts = " · ".join(f"{part} {tokens}" for part, tokens in found.parts.items() if tokens)
    plugins = " · ".join(f"{plugin} {tokens}" for plugin, tokens in found.plugins.items() if tokens)
    sources = " · ".join(f"{source} {tokens}" for source, tokens in found.sources.items() if tokens)
    window = f" of a window of {found.window}; compacted above {found.limit}" if found.window else ""
    total = f"about {found.tokens} tokens in {len(found.messages)} messages{window}"
    rows = (total, parts, f"plugins: {plugins}" if plugins else "", f"tools of: {sources}" if sources else "")
    text = "\n".join(row for row in rows if row)
    show(flags, {"session": name, **found.as_json()}, f"{lines}\n\n{text}".lstrip())


def gist(message: Mapping[str, Any]) -> str:
    """Return what a message says, or which tools it calls."""
    calls = " ".join(call.get("name", "") for call in message.get("tool_calls", ()))
    return message.get("text") or (f"calls {calls}" if calls else "")


@click.command("compact")
@click.argument("session", required=False)
@click.option("--focus", default="", help="What the summary must keep above all.")
@click.option("-m", "--model", help="The session's model; compaction.model overrides it.")
@document_options
def compact(flags: Flags, session: str | None, focus: str, model: str | None) -> None:
    """Replace the older part of a conversation by a summary, in the model's view only; nothing is deleted."""

    async def work(host: Host) -> dict[str, Any]:
        from moryflow.runtime.session_commands import compact_now

        row = await find(host.store, session, flags)
        opened = await host.resume(row.vault, row.id, model=model)
        return {"session": row.id, **await compact_now(host, opened, focus)}

    done = with_host(flags, work)
    for remark in () if flags.quiet else done["remarks"]:
        click.echo(plain(f"moryflow: {remark}"), err=True)
    show(flags, done, compaction_text(done))


def compaction_text(done: Mapping[str, object]) -> str:
    """Return the sentence that says what a compaction did."""
    return f"compacted: about {done['tokens_before']} tokens before, {done['tokens_after']} now"


@click.command("undo-compaction")
@click.argument("session", required=False)
@document_options
def undo_compaction(flags: Flags, session: str | None) -> None:
    """Let the model see again what the last compaction replaced."""

    async def work(host: Host) -> dict[str, Any]:
        from moryflow.runtime.session_commands import undo

        row = await find(host.store, session, flags)
        return {"session": row.id, "voided": await undo(await host.resume(row.vault, row.id))}

    done = with_host(flags, work, quiet=True)
    show(flags, done, f"undone: {done['session']} shows everything again that it hid")


@click.command("records")
@click.argument("session", required=False)
@document_options
def show_records(flags: Flags, session: str | None) -> None:
    """List what the host recorded of the summarised part: files, stored outputs, denied and failed calls, sub-agents, hooks."""

    async def work(store: Store) -> tuple[str, Any]:
        from moryflow.compaction.sections import Facts
        from moryflow.store.records import effective

        row = await find(store, session, flags)
        head, _ = effective(await store.path(row.id))
        details = (head.payload.get("details") or {}) if head is not None else {}
        return row.id, Facts.from_json(details.get("facts"))

    name, facts = with_store(work)
    from moryflow.compaction.sections import listing

    text = plain(listing(facts)) or "nothing is recorded: no part of this session stands for a summary; moryflow session show"
    show(flags, {"session": name, **facts.as_json()}, text)


def divider(node: Node, summary_mark: str) -> str:
    """Return the line that a compaction or a prune draws in a conversation."""
    if node.kind == "prune":
        number = len(node.payload.get("nodes", {}))
        return f"──── {number} older tool output{'s' if number != 1 else ''} hidden from the model ────"
    tokens = node.payload.get("tokens_before", "?")
    return f"──── compacted here, about {tokens} tokens ────\n{summary_mark}: {node.payload.get('summary', '')}"


COMMANDS = (show_context, compact, show_records, undo_compaction)

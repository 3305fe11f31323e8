"""``moryflow session tree|switch|fork|label``: branches and labels of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.lookup import find, node_id_of, node_json, summary
from moryflow.cli.options import document_options, flags_of
from moryflow.cli.terminal.text import plain, show

if TYPE_CHECKING:
    from moryflow.runtime.session_commands import Label
    from moryflow.store import Node, SessionRow, Store


@click.command("tree")
@click.argument("session", required=False)
@document_options
@click.pass_context
def tree(ctx: click.Context, session: str | None) -> None:
    """Show all branches and sub-agents; the active node is marked with *."""
    from moryflow.cli.open_host import with_store

    flags = flags_of(ctx)

    async def work(store: Store) -> tuple[dict[str, Any], str]:
        return (await tree_document(store, await find(store, session, flags)))[:2]

    document, text = with_store(work)
    show(flags, document, text)


async def tree_document(store: Store, row: SessionRow) -> tuple[dict[str, Any], str, list[Node], list[tuple[str, str]]]:
    """Return the tree of a session as JSON and as text; its nodes, and the lines of the text, each with its node's id."""
    from dataclasses import asdict

    from .session_tree import kin_of, tree_lines

    nodes, kin, named = await store.nodes(row.id), await kin_of(store, row), await store.labels(row.id)
    document = {"session": row.id, "parent": row.parent, "active": row.active, "nodes": [node_json(node) for node in nodes]}
    document |= {"labels": named, "children": [asdict(child) for child in kin]}
    head = [("", f"{row.id} is a session of {row.agent}, started by {row.parent}")] if row.parent else []
    lines = [*head, *tree_lines(nodes, row.active, kin, named)] if nodes else [("", "the session is empty")]
    return document, "\n".join(line for _, line in lines), nodes, lines


@click.command("switch")
@click.argument("session")
@click.argument("node")
@document_options
@click.pass_context
def switch(ctx: click.Context, session: str, node: str) -> None:
    """Make NODE (an id, the beginning of one, or a label) the active one; nothing is lost."""
    from moryflow.cli.open_host import with_store

    async def work(store: Store) -> tuple[SessionRow, str]:
        row = await store.session(session)
        target = await node_id_of(store, row.id, node)
        hold = await store.hold(row.id)
        try:
            await hold.switch(target)
        finally:
            hold.release()
        return row, target

    row, target = with_store(work)
    show(flags_of(ctx), {"session": row.id, "active": target}, f"{switch_text(row.id, target)}; moryflow run -r {row.id} …")


def switch_text(session: str, node: str | None) -> str:
    """Return the sentence that says from where a session goes on."""
    return f"{session} goes on from {node or 'its beginning'}"


@click.command("fork")
@click.argument("session", required=False)
@click.option("--node", help="Copy the path to this node (an id or a label) instead of the active one.")
@click.option("--title", default="", help="Title of the copy.")
@document_options
@click.pass_context
def fork(ctx: click.Context, session: str | None, node: str | None, title: str) -> None:
    """Copy the path into a new session; the old one stays as it is.

    The copy has the answers of sub-agents; their sessions stay with the original.
    """
    from moryflow.cli.open_host import with_store

    flags = flags_of(ctx)

    async def work(store: Store) -> tuple[SessionRow, str]:
        return await fork_session(store, await find(store, session, flags), node, title)

    copy, remark = with_store(work)
    if remark and not flags.quiet:
        click.echo(remark, err=True)
    show(flags, summary(copy), copy.id)


async def fork_session(store: Store, row: SessionRow, node: str | None, title: str = "") -> tuple[SessionRow, str]:
    """Return the copy, and what is to be said of what it leaves behind."""
    copy = await store.fork(row.id, await node_id_of(store, row.id, node) if node is not None else None, title=title)
    below = len(await store.sessions(1000, purpose=None, parent=row.id))
    said = "sub-agents stay" if below != 1 else "sub-agent stays"
    return copy, f"{below} {said} with {row.id}; what they answered is in the copy" if below else ""


REMOVE = "--remove"


@click.command("label")
@click.argument("words", nargs=-1, required=True, metavar="[SESSION] LABEL")
@click.option("--node", help="The node: its id, the beginning of one, or a label (default: what was said last).")
@click.option(REMOVE, is_flag=True, help="Take this label away; the node stays.")
@document_options
@click.pass_context
def label(ctx: click.Context, words: tuple[str, ...], node: str | None, remove: bool) -> None:
    """Name a node of a session; the name then stands for its id, as in switch and fork --node.

    A label names one node: given to another, it moves there. A node may have several.
    """
    from moryflow.cli.open_host import with_store

    *sessions, text = words
    if len(sessions) > 1:
        raise click.UsageError("give a SESSION, if any, and one LABEL; quote a label of several words", ctx)
    if remove and node is not None:
        raise click.UsageError("--remove takes the label alone, without --node", ctx)
    flags = flags_of(ctx)

    async def work(store: Store) -> tuple[SessionRow, Label]:
        row = await find(store, sessions[0] if sessions else None, flags)
        return row, await _label_node(store, row.id, text, node, remove=remove)

    row, new_label = with_store(work)
    said = {"session": row.id, "label": new_label.label, "node": new_label.node, "was": new_label.was}
    show(flags, said, plain(new_label.sentence))


async def _label_node(store: Store, session: str, text: str, node: str | None, *, remove: bool) -> Label:
    """Record the label as the session's one appender."""
    from moryflow_sdk import Event

    from moryflow.kernel.events import now
    from moryflow.store import Commit, NewNode

    hold = await store.hold(session)
    try:
        new_label = await requested_label(store, hold.session, text, node, remove=remove)
        if new_label.changes:
            event = Event(type="session.label", session=session, ts=now(), data=label_data(new_label))
            await hold.commit(Commit(nodes=[NewNode("marker", new_label.marker)], events=[event]))
        return new_label
    finally:
        hold.release()


async def requested_label(store: Store, row: SessionRow, text: str, node: str | None, *, remove: bool) -> Label:
    """Return what naming a node, or removing the name, comes to; nothing is written."""
    from moryflow.runtime.session_commands import new_label, removal

    named = await store.labels(row.id)
    if remove:
        return removal(text, named)
    target = await node_id_of(store, row.id, node) if node is not None else None
    return new_label(text, target, await store.nodes(row.id), named, row.active)


def label_data(new_label: Label) -> dict[str, Any]:
    """Return what the event of a label says."""
    return {**new_label.marker, "was": new_label.was}

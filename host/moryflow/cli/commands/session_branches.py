"""``moryflow session tree|switch|fork|label``: branches and labels of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.options import document_options, find, flags_of
from moryflow.cli.terminal.text import plain, show
from moryflow.runtime.documents import SessionTree, fork_session, node_id_of, requested_label, session_json, tree_of

if TYPE_CHECKING:
    from moryflow.runtime.session_commands import Label
    from moryflow.store import SessionRow, Store


@click.command("tree")
@click.argument("session", required=False)
@document_options
@click.pass_context
def tree(ctx: click.Context, session: str | None) -> None:
    """Show all branches and sub-agents; the active node is marked with *."""
    from moryflow.cli.open_host import with_store

    flags = flags_of(ctx)

    async def work(store: Store) -> SessionTree:
        return await tree_of(store, await find(store, session, flags))

    found = with_store(work)
    show(flags, found.as_json(), "\n".join(line for _, line in lines_of(found)))


def lines_of(found: SessionTree) -> list[tuple[str, str]]:
    """Return a tree as lines, each behind the id of its node."""
    from .session_tree import tree_lines

    row = found.row
    head = [("", f"{row.id} is a session of {row.agent}, started by {row.parent}")] if row.parent else []
    if not found.nodes:
        return [("", "the session is empty")]
    return [*head, *tree_lines(found.nodes, row.active, found.kin, found.labels)]


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
    show(flags, session_json(copy), copy.id)


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

    from moryflow.base.events import now
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


def label_data(new_label: Label) -> dict[str, Any]:
    """Return what the event of a label says."""
    return {**new_label.marker, "was": new_label.was}

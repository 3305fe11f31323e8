"""Branches and labels of a session: ``tree``, ``switch``, ``fork``, ``label``; in ``chat`` ``/branch`` for ``fork``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.lookup import find, node_id_of, node_json, summary
from moryflow.cli.options import document_options, flags_of
from moryflow.cli.terminal.text import columns, plain, show

if TYPE_CHECKING:
    from moryflow.cli.chat.port import ConversationPort
    from moryflow.kernel.ports import Journal
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

    async def work(store: Store) -> tuple[dict[str, Any], str]:
        return await _tree(store, await find(store, session, flags))

    document, text = with_store(work)
    show(flags, document, text)


async def _tree(store: Store, row: SessionRow) -> tuple[dict[str, Any], str]:
    """Return the tree of a session as JSON and as text."""
    from dataclasses import asdict

    from .session_tree import kin_of, tree_text

    nodes, kin, named = await store.nodes(row.id), await kin_of(store, row), await store.labels(row.id)
    document = {"session": row.id, "parent": row.parent, "active": row.active, "nodes": [node_json(node) for node in nodes]}
    document |= {"labels": named, "children": [asdict(child) for child in kin]}
    head = f"{row.id} is a session of {row.agent}, started by {row.parent}\n" if row.parent else ""
    return document, head + tree_text(nodes, row.active, kin, named) if nodes else "the session is empty"


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
    show(flags_of(ctx), {"session": row.id, "active": target}, f"{_switch_text(row.id, target)}; moryflow run -r {row.id} …")


def _switch_text(session: str, node: str) -> str:
    return f"{session} goes on from {node}"


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
        return await _fork(store, await find(store, session, flags), node, title)

    copy, remark = with_store(work)
    if remark and not flags.quiet:
        click.echo(remark, err=True)
    show(flags, summary(copy), copy.id)


async def _fork(store: Store, row: SessionRow, node: str | None, title: str = "") -> tuple[SessionRow, str]:
    """Return the copy, and what is to be said of what it leaves behind."""
    copy = await store.fork(row.id, await node_id_of(store, row.id, node) if node is not None else None, title=title)
    below = len(await store.sessions(1000, purpose=None, parent=row.id))
    said = "sub-agents stay" if below != 1 else "sub-agent stays"
    return copy, f"{below} {said} with {row.id}; what they answered is in the copy" if below else ""


class BranchCommands:
    """The slash commands about branches; the sentences are those of the verbs of ``session``."""

    def __init__(self, talk: ConversationPort) -> None:
        self._talk = talk

    async def tree(self, _: str) -> str:
        """Show all branches of this session."""
        self._talk.say((await _tree(self._talk.host.store, self._talk.session.row))[1])
        return ""

    async def switch(self, name: str) -> str:
        """Go on from another node of this session."""
        talk = self._talk
        if not name:
            talk.say("/switch NODE: an id, the beginning of one, or a label; /tree shows them")
            return ""
        target = await node_id_of(talk.host.store, talk.session.id, name)
        await talk.session.note(lambda journal: journal.switch(target))
        talk.say(_switch_text(talk.session.id, target))
        return ""

    async def branch(self, name: str) -> str:
        """Copy the path, to a node or as it is, into a new session and go on there."""
        talk, before = self._talk, self._talk.session.id
        copy, remark = await _fork(talk.host.store, talk.session.row, name or None)
        await talk.exchange(await talk.host.resume(copy.vault, copy.id, model=talk.chosen.model))
        if remark:
            talk.say(remark)
        talk.say(f"{copy.id}\nthis conversation goes on in the copy; /resume {before} leads back")
        return ""


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
        new_label = await _requested_label(store, hold.session, text, node, remove=remove)
        if new_label.changes:
            event = Event(type="session.label", session=session, ts=now(), data=_label_data(new_label))
            await hold.commit(Commit(nodes=[NewNode("marker", new_label.marker)], events=[event]))
        return new_label
    finally:
        hold.release()


async def _requested_label(store: Store, row: SessionRow, text: str, node: str | None, *, remove: bool) -> Label:
    from moryflow.runtime.session_commands import new_label, removal

    named = await store.labels(row.id)
    if remove:
        return removal(text, named)
    target = await node_id_of(store, row.id, node) if node is not None else None
    return new_label(text, target, await store.nodes(row.id), named, row.active)


def _label_data(new_label: Label) -> dict[str, Any]:
    return {**new_label.marker, "was": new_label.was}


async def slash_label(talk: ConversationPort, rest: str) -> str:
    """Name what was said last, take a label away, or list them."""
    session, store = talk.session, talk.host.store
    if not rest:
        named = await store.labels(session.id)
        talk.say(columns((text, node[:8]) for text, node in named.items()) or "no labels yet; /label TEXT gives one")
        return ""
    remove = rest.split()[0] == REMOVE
    new_label = await _requested_label(store, session.row, rest.removeprefix(REMOVE) if remove else rest, None, remove=remove)
    if new_label.changes:

        def record(journal: Journal) -> None:
            journal.node("marker", new_label.marker)
            journal.event("session.label", **_label_data(new_label))

        await session.note(record)
    talk.say(new_label.sentence)
    return ""

"""``moryflow session label`` and ``/label``: name a node, to find it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.lookup import find, node_called
from moryflow.cli.options import document_options, flags_of
from moryflow.cli.terminal.text import columns, plain, show

if TYPE_CHECKING:
    from moryflow.cli.chat.port import ConversationPort

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

    async def work(store: Any) -> tuple[Any, Any]:
        row = await find(store, sessions[0] if sessions else None, flags)
        return row, await _named(store, row.id, text, node, remove=remove)

    row, naming = with_store(work)
    said = {"session": row.id, "label": naming.label, "node": naming.node, "was": naming.was}
    show(flags, said, plain(naming.sentence))


async def _named(store: Any, session: str, text: str, node: str | None, *, remove: bool) -> Any:
    """Record the label as the session's one appender."""
    from moryflow_sdk import Event

    from moryflow.kernel.events import now
    from moryflow.store import Commit, NewNode

    hold = await store.hold(session)
    try:
        naming = await _asked(store, hold.session, text, node, remove=remove)
        if naming.changes:
            event = Event(type="session.label", session=session, ts=now(), data=_told(naming))
            await hold.commit(Commit(nodes=[NewNode("marker", naming.marker)], events=[event]))
        return naming
    finally:
        hold.release()


async def _asked(store: Any, row: Any, text: str, node: str | None, *, remove: bool) -> Any:
    from moryflow.runtime.labels import naming, removal

    named = await store.labels(row.id)
    if remove:
        return removal(text, named)
    target = await node_called(store, row.id, node) if node is not None else None
    return naming(text, target, await store.nodes(row.id), named, row.active)


def _told(naming: Any) -> dict[str, Any]:
    return {**naming.marker, "was": naming.was}


async def slash_label(talk: ConversationPort, rest: str) -> str:
    """Name what was said last, take a label away, or list them."""
    session, store = talk.session, talk.host.store
    if not rest:
        named = await store.labels(session.id)
        talk.say(columns((text, node[:8]) for text, node in named.items()) or "no labels yet; /label TEXT gives one")
        return ""
    remove = rest.split()[0] == REMOVE
    naming = await _asked(store, session.row, rest.removeprefix(REMOVE) if remove else rest, None, remove=remove)
    if naming.changes:

        def record(journal: Any) -> None:
            journal.node("marker", naming.marker)
            journal.event("session.label", **_told(naming))

        await session.note(record)
    talk.say(naming.sentence)
    return ""

"""Delete whole sessions, with what lies elsewhere for them: stored outputs, and what plugins keep."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moryflow_sdk import Event

from moryflow.kernel.events import now

from .read_only import looking_scope

if TYPE_CHECKING:
    from moryflow.store import SessionRow

    from .host import Host


async def delete_session(host: Host, row: SessionRow) -> Sequence[str]:
    """Purge a session and those of its sub-agents; return their ids.

    Observers are told by ``session.deleted``, which no store keeps, with a turn that only looks. It names what is gone, and the
    `heirs`: forks and copies that go on, each with the nodes that they were given.

    :raises SessionBusy: someone holds one of them; nothing is deleted then.
    """
    gone = await host.store.family(row.id)
    outputs = [output for id in gone for output in await host.store.artifacts(id, state="stored", limit=1_000_000)]
    heirs = {heir.id: await _inherited(host, heir) for heir in await host.store.heirs(gone)}
    scope = looking_scope(host, row, None)
    await host.store.delete(row.id)
    if not heirs:  # a fork's answers lead to the files of its original; they go when their time has come
        from moryflow.services.artifacts import remove_files

        await asyncio.to_thread(remove_files, outputs)
    told = Event(type="session.deleted", session=row.id, ts=now(), data={"sessions": gone, "heirs": heirs})
    host.bus.publish(told)
    await host.surroundings.dispatcher.observe(scope, told)
    for notice in scope.notices:
        host.bus.publish(notice)
    return gone


async def _inherited(host: Host, heir: SessionRow) -> Sequence[str]:
    """Return the nodes that a fork was made with; of an import, all."""
    node = (heir.origin or {}).get("node")
    nodes = await (host.store.path(heir.id, node) if node else host.store.nodes(heir.id))
    return [node.id for node in nodes]

"""What a process reads when it takes hold of a session: its rights, what plugins kept, and what an earlier turn left open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moryflow_sdk import Rule, thaw

from moryflow.kernel.family import Rights
from moryflow.kernel.journal import Journal
from moryflow.kernel.scope import LiveSession
from moryflow.sessions import Hold, Store, Unfinished, unfinished

from .settling import ends_with_calls

Records = list[Callable[[Journal], None]]


async def live_session(store: Store, hold: Hold, above: Rights | None, *, inbox: Records, notes: Records) -> LiveSession:
    """Return a session as it stands.

    :param above: the rights of the turn that started it; a child has no others.
    """
    session = hold.session
    rights = above or Rights(session.mode, [Rule(**grant) for grant in session.grants])
    live = LiveSession(hold=hold, rights=rights, inbox=inbox, notes=notes)
    if hold.path or hold.epoch > 1:  # a new session has nothing to load
        live.state = await _states(store, session.id, "session")
        live.cut_off = [run for run in await store.runs(session.id) if run.state == "running"]
        live.call_ids = {call["id"] for node in hold.path if node.kind == "assistant" for call in node.payload["calls"]}
        if any(node.kind == "compaction" for node in hold.path):  # the calls of what it covers are only on the disk
            live.call_ids |= await store.call_ids(session.id)
    return live


async def last_turn_states(store: Store, session: str) -> dict[str, dict[str, Any]]:
    """Return the plugins' state of the last turn, for the turn that goes on where it ended."""
    runs = [run for run in await store.runs(session) if run.purpose in ("main", "child")]
    return await _states(store, session, f"turn:{runs[-1].id}") if runs else {}


async def left_open(store: Store, live: LiveSession) -> list[Unfinished]:
    """Return the calls without a result at the end of the path."""
    if not ends_with_calls(live):
        return []
    calls = await store.calls(session=live.row.id)
    live.asked = {row.id for row in calls if row.state == "waiting"}
    return unfinished(live.hold.path, calls)


async def _states(store: Store, session: str, place: str) -> dict[str, dict[str, Any]]:
    """Return what plugins kept for the session or for one turn, by plugin, free to change."""
    states = await store.plugin_state(session)
    return {plugin: thaw(value) for (plugin, kept), value in states.items() if kept == place}

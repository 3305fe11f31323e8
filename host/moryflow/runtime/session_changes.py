"""A person's changes to a session: mode, agent, model. Each is recorded in its tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moryflow_sdk import ConfigError

if TYPE_CHECKING:
    from moryflow.kernel.ports import Journal

    from .ports import SessionHost, SessionPort


MODES = ("agent", "full_access")


async def change_mode(host: SessionHost, session: SessionPort, mode: str, by: str) -> None:
    """Change the mode; it holds from the next gate on.

    :raises ConfigError: `mode` is not one of the two.
    """
    chosen = "agent" if mode == "ask" else mode
    if chosen not in MODES:
        raise ConfigError(f"unknown mode {mode!r}", next_step="use agent or full_access")
    if chosen == session.mode:
        return
    change = {"from": session.mode, "to": chosen, "by": by}

    def record(journal: Journal) -> None:
        journal.node("marker", {"mode": chosen})
        journal.session(mode=chosen)
        journal.event("session.mode", **change)

    await session.note(record, now=lambda live: setattr(live.permissions, "mode", chosen))
    host.approvals.reconsider(session.id)


async def change_agent(host: SessionHost, session: SessionPort, name: str) -> None:
    """Let another agent go on, from the next turn on.

    :raises ConfigError: there is none of that name, or this is the session of a sub-agent.
    """
    chosen, before = host.agent(name), session.row.agent
    if chosen.id == before:
        return
    if session.row.parent is not None:
        raise ConfigError(
            f"the session of a sub-agent stays with its agent, {before}", next_step=f"moryflow session fork {session.id}"
        )

    def record(journal: Journal) -> None:
        journal.node("marker", {"agent": chosen.id})
        journal.session(agent=chosen.id)
        journal.event("session.agent", **{"from": before, "to": chosen.id})

    session.agent = chosen
    await session.note(record)


async def change_model(host: SessionHost, session: SessionPort, name: str) -> None:
    """Let another model answer, from the next turn on and when the session is opened again.

    :raises ConfigError: nobody knows it.
    """
    models = host.models(host.plugin_set)
    chosen = models.choose(name)[1].id
    try:
        before = models.choose(session.row.model or None, session.agent.model, host.config.get("model"))[1].id
    except ConfigError:  # it is not there any more, or there never was one
        before = session.row.model
    if chosen != before:

        def record(journal: Journal) -> None:
            journal.node("marker", {"model": chosen})
            journal.session(model=name)
            journal.event("session.model", **{"from": before, "to": chosen})

        await session.note(record)
    session.model = name

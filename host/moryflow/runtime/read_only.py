"""A turn without a session: what commands use to judge, explain and read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from moryflow_sdk import Rule

from moryflow.base.events import now
from moryflow.kernel.outcome import SessionPermissions
from moryflow.kernel.turn_context import SessionHandle, TurnContext
from moryflow.store import Node, SessionRow

if TYPE_CHECKING:
    from .ports import SessionHost


class ReadOnlyHold:
    """Stands where a turn keeps its hold; there is nothing to commit to."""

    def __init__(self, session: SessionRow) -> None:
        self.session = session
        self.path: list[Node] = []


def blank_session(vault: Path | str | None, mode: str | None) -> SessionRow:
    """Return a session that is not stored. The vault need not exist (``permission test``)."""
    stamp = now()
    return SessionRow(
        id="",
        title="",
        vault=str(Path(vault or ".").absolute()),
        agent="",
        model="",
        mode=mode or "agent",
        parent=None,
        purpose="direct",
        active=None,
        created=stamp,
        updated=stamp,
    )


def read_only_scope(host: SessionHost, row: SessionRow, mode: str | None) -> TurnContext:
    """Return a scope for `row` that reads and never writes."""
    rights = SessionPermissions(mode or row.mode, [Rule(**grant) for grant in row.grants])
    live = SessionHandle(hold=ReadOnlyHold(row), permissions=rights)  # type: ignore[arg-type]
    agent = host.agents.get(row.agent) or host.agent(None)
    return TurnContext(
        around=host.surroundings,
        live=live,
        plugin_set=host.plugin_set,
        turn="",
        agent=agent,
        model=None,
        purpose="direct",
        headless=True,
    )

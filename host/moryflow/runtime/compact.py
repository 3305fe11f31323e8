"""What a person asks for: compact now, undo the last compaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ConfigError

from moryflow.compaction.apply import scope_can_be_shortened
from moryflow.compaction.manager import TurnCompaction
from moryflow.kernel.journal import TurnJournal
from moryflow.kernel.model_request import RequestBuilder
from moryflow.store.tree import effective

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext
    from moryflow.runtime.host import Host
    from moryflow.runtime.session import Session


async def compact_now(host: Host, session: Session, focus: str = "") -> Mapping[str, Any]:
    """Compact `session`; `focus` says what to keep above all. The next turn finds it prepared.

    :raises ConfigError: there is nothing to compact, a turn runs, or no summary could be had.
    :raises SessionBusy: another process holds the session.
    """
    provider, model = host.choose_model(session)
    _require_idle(session)

    async def work(scope: TurnContext) -> Mapping[str, Any]:
        _require_closed(scope)
        scope.model, scope.purpose = model, "main"
        requests = RequestBuilder(scope, session.context, model)
        return await TurnCompaction(host.compaction, scope, TurnJournal(scope), provider, requests).on_demand(focus)

    return (await session.scoped(work))[0]


async def undo(session: Session) -> str:
    """Void the compaction that counts, and return its node; nothing was deleted, and nothing after it is lost.

    :raises ConfigError: no compaction counts, or a turn runs.
    """
    _require_idle(session)

    async def work(scope: TurnContext) -> str:
        head, _ = effective(scope.live.hold.path)
        if head is None:
            raise ConfigError(
                "there is no compaction to undo", where=f"session {session.id}", next_step="moryflow session context"
            )
        _require_closed(scope)
        journal = TurnJournal(scope)
        journal.node("marker", {"void": head.id})
        await journal.commit()
        return head.id

    return (await session.scoped(work))[0]


def _require_idle(session: Session) -> None:
    if session.running:
        raise ConfigError("a turn is running", where=f"session {session.id}", next_step="wait for it, or stop it")


def _require_closed(scope: TurnContext) -> None:
    """Nothing may come between a call and its result."""
    if not scope_can_be_shortened(scope):
        raise ConfigError(
            "the last turn has calls without a result",
            where=f"session {scope.session}",
            next_step=f"moryflow run -r {scope.session}",
        )

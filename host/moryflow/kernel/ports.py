"""The points of a turn at which ``compaction/`` may shorten the conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from moryflow_sdk import ModelProvider

if TYPE_CHECKING:
    from .journal import Journal
    from .model_request import RequestBuilder
    from .turn_context import TurnScope


class Compaction(Protocol):
    """What a turn calls at its pauses; never between a call and its result."""

    async def before_step(self) -> None:
        """Shorten the view if the next request needs it. Never raises for its own failures."""
        ...

    async def recover(self) -> bool:
        """Shorten the view because the provider said it does not fit; return whether it is worth asking again."""
        ...

    async def after_turn(self) -> None:
        """Prune what the next turn will not need."""
        ...


class NoCompaction:
    """Leaves everything as it is."""

    async def before_step(self) -> None:
        """Do nothing."""

    async def recover(self) -> bool:
        """Cannot help."""
        return False

    async def after_turn(self) -> None:
        """Do nothing."""


MakeCompaction = Callable[["TurnScope", "Journal", "ModelProvider | None", "RequestBuilder | None"], Compaction]


def no_compaction(
    scope: TurnScope, journal: Journal, provider: ModelProvider | None, requests: RequestBuilder | None
) -> Compaction:
    """Return what leaves everything as it is."""
    return NoCompaction()

"""The records of stored outputs: written with the node that mentions them, read from the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moryflow_sdk import Artifact

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext

EVERYTHING = 1_000_000


class TurnRows:
    """A new record waits for the turn's next commit, so that no output is known without its call, nor the other way."""

    def __init__(self, scope: TurnContext) -> None:
        self._scope = scope
        self._store = scope.around.store

    async def add(self, artifact: Artifact) -> None:
        """Keep a new record."""
        self._scope.artifacts.append(artifact)

    async def get(self, artifact: str) -> Artifact | None:
        """Return a record."""
        waiting = next((item for item in self._scope.artifacts if item.id == artifact), None)
        return waiting or await self._store.artifact(artifact)

    async def list(self, *, session: str | None = None, limit: int | None = None) -> Sequence[Artifact]:
        """Return records, newest first."""
        return await self._store.artifacts(session, limit=limit or EVERYTHING)

    async def expire(self, artifact: str) -> None:
        """Mark a record: its file is gone."""
        await self._store.update_artifact(artifact, state="expired")

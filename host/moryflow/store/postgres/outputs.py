"""Copies of stored outputs that every machine can read: small ones in a table, larger ones in an object store.

The file that the agent reads stays where it was made. Without an object store, a larger output can be read only there.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from pathlib import Path
from typing import Any

from moryflow_sdk import Artifact

from moryflow.store.protocol import StoreError

from .database import PostgresConnection, PostgresDatabase

# Bytes of an output that are kept in the database itself.
MAX_IN_TABLE = 256 * 1024

_KEEP = "INSERT INTO outputs (session, id, data) VALUES (?, ?, ?) ON CONFLICT (session, id) DO NOTHING"
_READ = "SELECT substring(data FROM ?::int FOR ?::int) FROM outputs WHERE session = ? AND id = ?"


class Outputs:
    """The copies of one store.

    :param url: of the object store, for example ``s3://BUCKET/PREFIX`` or ``file:///srv/outputs``; empty for none.
    """

    def __init__(self, database: PostgresDatabase, url: str) -> None:
        self._database = database
        self._url = url

    async def keep(self, artifact: Artifact) -> None:
        """Copy an output's file; its record is stored by the caller."""
        path = Path(artifact.path)
        if artifact.size <= MAX_IN_TABLE:
            data = await asyncio.to_thread(path.read_bytes)
            values = (artifact.session, artifact.id, data)
            await self._database.statement(lambda to: to.execute(_KEEP, values))
        elif self._url:
            await asyncio.to_thread(self._put, artifact, path)

    async def read(self, artifact: Artifact, offset: int, limit: int) -> bytes | None:
        """Return at most `limit` bytes of a copy from `offset`, or ``None`` if there is none."""
        if artifact.size > MAX_IN_TABLE:
            return await asyncio.to_thread(self._get, artifact, offset, limit) if self._url else None
        values = (offset + 1, limit, artifact.session, artifact.id)
        found = await self._database.statement(lambda db: db.execute(_READ, values).fetchone())
        return bytes(found[0]) if found else None

    async def forget(self, artifact: str) -> None:
        """Remove an expired output's copies."""

        def work(to: PostgresConnection) -> list[str]:
            to.execute("DELETE FROM outputs WHERE id = ?", (artifact,))
            return [session for (session,) in to.execute("SELECT session FROM artifacts WHERE id = ?", (artifact,)).fetchall()]

        sessions = await self._database.write(work)
        if self._url:
            await asyncio.to_thread(self._delete, [f"{session}/{artifact}" for session in sessions])

    @cached_property
    def _objects(self) -> Any:
        try:
            from obstore.store import from_url
        except ImportError as error:
            message = f"store.outputs needs obstore, which is not installed ({error})"
            raise StoreError(message, code="invalid", next_step="python -m pip install 'moryflow[cluster]'") from error
        local: dict[str, Any] = {"mkdir": True} if self._url.startswith("file:") else {}
        return from_url(self._url, **local)

    def _put(self, artifact: Artifact, path: Path) -> None:
        import obstore

        with path.open("rb") as file:
            obstore.put(self._objects, f"{artifact.session}/{artifact.id}", file)

    def _get(self, artifact: Artifact, offset: int, limit: int) -> bytes | None:
        import obstore

        limit = min(limit, artifact.size - offset)
        if limit <= 0:
            return b""
        try:
            return bytes(obstore.get_range(self._objects, f"{artifact.session}/{artifact.id}", start=offset, length=limit))
        except FileNotFoundError:
            return None

    def _delete(self, places: list[str]) -> None:
        import obstore

        for place in places:
            try:
                obstore.delete(self._objects, place)
            except FileNotFoundError:
                continue

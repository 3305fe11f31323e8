"""Outputs that are too large for the context: files with a row each.

A file goes into the vault, where the agent can read it, or below Moryflow's home when the vault cannot be written or
the profile is ``remote``. The file expires; the row stays and says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from moryflow_sdk import Artifact, ToolError

from .output_files import HOME_FOLDER, VAULT_FOLDER, Content, OutputFolder, file_name, new_id, parse_name, put, read, remove_due

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


log = logging.getLogger(__name__)
DEFAULT_TTL_DAYS = 7.0


class ArtifactRows(Protocol):
    """Where the records of outputs are kept."""

    async def add(self, artifact: Artifact) -> None:
        """Keep a new record."""
        ...

    async def get(self, artifact: str) -> Artifact | None:
        """Return a record."""
        ...

    async def list(self, *, session: str | None = None, limit: int | None = None) -> Sequence[Artifact]:
        """Return records, newest first; all of them without a `limit`."""
        ...

    async def expire(self, artifact: str) -> None:
        """Mark a record: its file is gone."""
        ...


class ArtifactService:
    """Stores, reads and expires outputs for one session; implements :class:`moryflow_sdk.services.Artifacts`.

    :param vault: where the agent works, ``None`` when nothing may be written there (profile ``remote``).
    :param orphan_ttl_days: how long a file without a record stays, for example one whose session was deleted.
    """

    def __init__(
        self,
        home: Path,
        rows: ArtifactRows,
        *,
        session: str,
        vault: Path | None,
        orphan_ttl_days: float = DEFAULT_TTL_DAYS,
    ) -> None:
        self._rows = rows
        self._session = session
        self._orphan_ttl = timedelta(days=orphan_ttl_days)
        below_home = OutputFolder(home.resolve(), HOME_FOLDER)
        self._places = (OutputFolder(vault, VAULT_FOLDER), below_home) if vault else (below_home,)

    async def store(self, content: Content, *, call_id: str, tool: str, ttl_days: float | None = 7) -> Artifact:
        """Store an output whole; a :class:`Path` is a spooled file that is moved.

        :raises OSError: no place could be written.
        """
        created, artifact = datetime.now(UTC), new_id()
        stored = await asyncio.to_thread(put, content, file_name(created, tool, artifact), self._places)
        row = Artifact(
            id=artifact,
            session=self._session,
            call_id=call_id,
            tool=tool,
            path=str(stored.path),
            size=stored.size,
            sha256=stored.sha256,
            created=_iso(created),
            expires=_iso(created + timedelta(days=ttl_days)) if ttl_days else None,
        )
        await self._rows.add(row)
        return row

    async def get(self, artifact: str) -> Artifact | None:
        """Return the record of an output."""
        return await self._rows.get(artifact)

    async def list(self, *, session: str | None = None, limit: int = 100) -> Sequence[Artifact]:
        """Return records, newest first."""
        return await self._rows.list(session=session, limit=limit)

    async def read(self, artifact: str, *, offset: int = 0, limit: int = 65536) -> bytes:
        """Return bytes of a stored output.

        :raises ToolError: ``not_found``, ``expired``, or ``io`` when something else stands in its place.
        """
        row = await self._rows.get(artifact)
        if row is None:
            raise ToolError(f"no output has the id {artifact!r}", code="not_found", next_step="moryflow output list")
        if row.state == "expired":
            raise _expiry_error(row)
        path = Path(row.path)
        try:
            return await asyncio.to_thread(read, _place_of(path), path.name, max(offset, 0), max(limit, 0))
        except FileNotFoundError:
            await self._rows.expire(row.id)
            raise _expiry_error(row) from None
        except OSError as error:
            raise ToolError(f"the output cannot be read: {error.strerror}", code="io", where=row.path) from error

    async def expire(self) -> int:
        """Remove files that are past their time, in every folder that holds outputs, and mark their rows."""
        now = datetime.now(UTC)
        stored = {row.id: row for row in await self._rows.list() if row.state == "stored"}
        removed = await asyncio.to_thread(self._sweep, stored, now)
        gone = {row.id for row in stored.values() if _is_past(row, now)} | (stored.keys() & set(removed))
        for artifact in gone:
            await self._rows.expire(artifact)
        return len(removed)

    def _sweep(self, stored: dict[str, Artifact], now: datetime) -> list[str]:
        def due(artifact: str, created: datetime) -> bool:
            row = stored.get(artifact)
            return created + self._orphan_ttl < now if row is None else _is_past(row, now)

        removed: list[str] = []
        for place in self._known_places(stored):
            try:
                removed += remove_due(place, due)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("outputs in %s were not looked through: %s", place.path, error.strerror)
        return removed

    def _known_places(self, stored: dict[str, Artifact]) -> set[OutputFolder]:
        """Return this session's folders and those that records name; a path that has become a link is left alone."""
        named = {_place_of(Path(row.path)) for row in stored.values() if parse_name(Path(row.path).name)}
        ours = (place for place in named if place.name in (VAULT_FOLDER, HOME_FOLDER))
        straight = {place for place in ours if place.root.resolve() == place.root}
        return straight | set(self._places)


def remove_files(rows: Sequence[Artifact]) -> None:
    """Remove the files of outputs whose records are gone; one that cannot be removed now is an orphan, and goes later."""
    wanted = {row.id for row in rows}
    for place in {_place_of(Path(row.path)) for row in rows}:
        if place.name in (VAULT_FOLDER, HOME_FOLDER) and place.root.resolve() == place.root:
            with suppress(OSError):
                remove_due(place, lambda artifact, _: artifact in wanted)


def _place_of(path: Path) -> OutputFolder:
    return OutputFolder(path.parent.parent, path.parent.name)


def _is_past(row: Artifact, now: datetime) -> bool:
    return row.expires is not None and datetime.fromisoformat(row.expires) < now


def _expiry_error(row: Artifact) -> ToolError:
    return ToolError(f"output {row.id} of {row.tool} has expired; its file is gone", code="expired", where=row.path)


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

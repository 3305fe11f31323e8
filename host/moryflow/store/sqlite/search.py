"""A search: through the index where there is one, else through the nodes themselves."""

from __future__ import annotations

from moryflow.store.errors import StoreError
from moryflow.store.records import Hit

from .database import Database
from .fulltext import DamagedIndex, drop_index, extend_index, find, scan, words_of

_LONGEST = 1000
_WITHOUT_INDEX = frozenset({"invalid", "readonly", "locked", "no_space"})


async def search(database: Database, query: str, limit: int) -> list[Hit]:
    """Return the nodes that contain what `query` says."""
    query = query.strip()[:_LONGEST]
    words = words_of(query)
    if words and await _index_is_ready(database):
        try:
            return await database.read(lambda db: find(db, words, limit))
        except DamagedIndex:
            await database.write(drop_index)
    return await database.read(lambda db: scan(db, words or [query], limit)) if query else []


async def _index_is_ready(database: Database) -> bool:
    """Bring the index up to date; ``False`` where there is no FTS5, or the file cannot be written now."""
    try:
        while await database.write(extend_index):
            pass
    except DamagedIndex:
        await database.write(drop_index)
        return False
    except StoreError as error:
        if error.code in _WITHOUT_INDEX:
            return False
        raise
    return True

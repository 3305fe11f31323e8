"""A store in a SQLite file, and databases that are worth damaging."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from hashlib import sha256
from pathlib import Path

import pytest
from moryflow.store import CallRow, Commit, NewNode, Node, path_to
from moryflow.store.sqlite.store import SqliteStore
from moryflow_sdk import Event


@pytest.fixture(scope="session")
def database() -> str:
    """These tests are of SQLite alone."""
    return "sqlite"


@pytest.fixture
def file(home: Path) -> Path:
    """Where the database of this test is."""
    return home / "sessions.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    """An empty store."""
    store = SqliteStore.open(file, patience=2.0)
    yield store
    store.close()


Trees = dict[str, list[Node]]


@pytest.fixture(scope="session")
def filled() -> Callable[..., Coroutine[None, None, Trees]]:
    """Make a database of some hundred pages and close it; return session -> nodes."""
    return _filled


async def _filled(path: Path, sessions: int = 3, nodes: int = 60) -> Trees:
    """Make a database of some hundred pages, folded into its file; return session -> nodes."""
    store, trees = SqliteStore.open(path), Trees()
    for number in range(sessions):
        hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent", id=f"s{number}")).id)
        for _ in range(nodes):
            drafts = [
                NewNode("user", {"text": "q"}),
                NewNode("tool", {"output": "o" * random.Random(number).randint(10, 6000)}),
            ]
            event = Event(type="e", session=hold.session.id, data={"x": "y" * 500})
            done = await hold.commit(Commit(nodes=drafts, events=[event]))
            row = CallRow("c", hold.session.id, "t", done.nodes[0].id, 1, "read", "{}", sha256(b"{}").hexdigest(), "completed")
            await hold.commit(Commit(calls=[row]))
        trees[hold.session.id] = hold.path
        hold.release()
    store.close()
    return trees


@pytest.fixture(scope="session")
def everything() -> Callable[[SqliteStore], Awaitable[Trees]]:
    """Read all of a database, and use it."""
    return _everything


async def _everything(store: SqliteStore) -> Trees:
    """Read all of a database, and use it; once more from the start if damage is met and repaired meanwhile."""
    trees, repairs = Trees(), len(store.notices)
    for row in await store.sessions(1000, purpose=None):
        trees[row.id] = await store.nodes(row.id)
        path = await store.path(row.id)
        await store.calls(row.id)
        await store.events(row.id)
        if len(store.notices) > repairs:
            return await _everything(store)
        if store.notices:  # before, silent damage to an index may hide nodes
            assert path == path_to({node.id: node for node in trees[row.id]}, row.active)
            assert not path or path[0].parent is None
        hold = await store.hold(row.id)
        await hold.commit(Commit(nodes=[NewNode("user", {"text": "goes on"})]))
        hold.release()
    return trees

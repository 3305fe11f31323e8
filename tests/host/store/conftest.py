"""A store in a folder of its own, and short ways to fill it."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from hashlib import sha256
from pathlib import Path

import pytest
from moryflow.store import CallRow, Commit, Hold, NewNode, Node, SessionRow, Store, path_to
from moryflow_sdk import Event


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the database of this test is."""
    return tmp_path / "home" / "sessions.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[Store]:
    """An empty store."""
    store = Store.open(file, patience=2.0)
    yield store
    store.close()


@pytest.fixture
async def session(store: Store) -> SessionRow:
    """An empty session."""
    return await store.create(vault="/vault", agent="build", mode="agent")


@pytest.fixture
async def hold(store: Store, session: SessionRow) -> AsyncIterator[Hold]:
    """That session, held."""
    hold = await store.hold(session.id)
    yield hold
    hold.release()


Say = Callable[..., Awaitable[list[Node]]]


@pytest.fixture
def say(hold: Hold) -> Say:
    """Append user nodes, one for each text, in one commit."""

    async def say(*texts: str) -> list[Node]:
        committed = await hold.commit(Commit(nodes=[NewNode("user", {"text": text}) for text in texts]))
        return committed.nodes

    return say


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python source in a process of its own and return what it printed."""

    def run(source: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(source), *arguments]
        return subprocess.run(command, check=check, capture_output=True, text=True)

    return run


@pytest.fixture
def child() -> Callable[..., Awaitable[asyncio.subprocess.Process]]:
    """Start Python source in a process of its own, with pipes."""

    async def start(source: str, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(source), *arguments, stdin=pipe, stdout=pipe
        )

    return start


Trees = dict[str, list[Node]]


@pytest.fixture(scope="session")
def filled() -> Callable[..., Coroutine[None, None, Trees]]:
    """Make a database of some hundred pages and close it; return session -> nodes."""
    return _filled


async def _filled(path: Path, sessions: int = 3, nodes: int = 60) -> Trees:
    """Make a database of some hundred pages, folded into its file; return session -> nodes."""
    store, trees = Store.open(path), Trees()
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
def everything() -> Callable[[Store], Awaitable[Trees]]:
    """Read all of a database, and use it."""
    return _everything


async def _everything(store: Store) -> Trees:
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

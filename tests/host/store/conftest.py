"""A store in a folder of its own, opened by each implementation in turn, and short ways to fill it."""

from __future__ import annotations

import asyncio
import pkgutil
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moryflow.store import Commit, NewNode, Node, SessionLock, SessionRow, Store

IMPLEMENTATIONS = ("sqlite", "postgres")
"""Every test beside this file runs with each of them. Those in folders are of one."""

OPENS = "moryflow.store:open_store"
"""What opens the store of a home in each of them, also in a process of its own."""


@pytest.fixture(scope="session", params=IMPLEMENTATIONS)
def database(request: pytest.FixtureRequest) -> str:
    """The database of this test."""
    return request.param


@pytest.fixture
def implementation(database: str, request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The function that opens a store, as :func:`pkgutil.resolve_name` takes it, also in a process of its own."""
    if database == "postgres":
        server = request.getfixturevalue("postgres")
        monkeypatch.setenv("MORYFLOW_STORE", server.schema_url(str(home)))
    return OPENS


@pytest.fixture
def open_home(implementation: str, database: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Store]]:
    """Open the store of a folder; what a test leaves open is closed after it."""
    opened: list[Store] = []

    def open_it(folder: Path, **options: Any) -> Store:
        if database == "postgres":
            options["url"] = request.getfixturevalue("postgres").schema_url(str(folder))
        opened.append(pkgutil.resolve_name(implementation)(folder, **options))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the store of this test is."""
    return tmp_path / "home"


@pytest.fixture
async def store(home: Path, open_home: Callable[..., Store]) -> AsyncIterator[Store]:
    """An empty store."""
    store = open_home(home, patience=2.0)
    yield store
    store.close()


@pytest.fixture
async def session(store: Store) -> SessionRow:
    """An empty session."""
    return await store.create(vault="/vault", agent="build", mode="agent")


@pytest.fixture
async def hold(store: Store, session: SessionRow) -> AsyncIterator[SessionLock]:
    """That session, held."""
    hold = await store.hold(session.id)
    yield hold
    hold.release()


Say = Callable[..., Awaitable[list[Node]]]


@pytest.fixture
def say(hold: SessionLock) -> Say:
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


HOLDER = """
    import asyncio, pkgutil, sys
    from pathlib import Path
    from moryflow.store import *

    async def main():
        store = pkgutil.resolve_name(sys.argv[1])(Path(sys.argv[2]))
        hold = await store.hold(sys.argv[3])
        print("held", flush=True)
        for line in sys.stdin:
            try:
                await hold.commit(Commit(nodes=[NewNode("user", {"text": line.strip()})]))
                print("stored", flush=True)
            except Exception as error:
                print(type(error).__name__, len(hold.path), flush=True)

    asyncio.run(main())
"""


@pytest.fixture
def holder(child, implementation: str, home: Path) -> Callable[[str], Awaitable[asyncio.subprocess.Process]]:
    """Start a process that holds a session and commits each line that it is given."""
    return lambda session: child(HOLDER, implementation, str(home), session)

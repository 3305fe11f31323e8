"""A store in a folder of its own, and short ways to fill it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from moryflow.sessions import Commit, Hold, NewNode, Node, SessionRow, Store


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

    def run(source: str, *arguments: str, check: bool = True, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(source), *arguments]
        return subprocess.run(command, check=check, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]

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

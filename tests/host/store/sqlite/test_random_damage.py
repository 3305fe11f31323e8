"""Random bytes anywhere in a database: the backup takes its place, or it is refused, and nothing worse."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow.store import Node, StaleEpoch, StoreError
from moryflow.store.sqlite.store import SqliteStore

Trees = dict[str, list[Node]]
Filled = Callable[..., Coroutine[None, None, Trees]]
Everything = Callable[[SqliteStore], Awaitable[Trees]]


@dataclass(repr=False)
class Original:
    """The bytes of a sound database, and what is in it."""

    data: bytes
    trees: Trees


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, filled: Filled) -> Original:
    """The bytes of a database, and what is in it."""
    path = tmp_path_factory.mktemp("original") / "sessions.db"
    trees = asyncio.run(filled(path, nodes=20))
    return Original(path.read_bytes(), trees)


@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 32), pieces=st.integers(1, 6), length=st.sampled_from([1, 4, 64, 5000]), cut=st.booleans())
def test_any_damage_is_survived(
    tmp_path_factory: pytest.TempPathFactory,
    everything: Everything,
    original: Original,
    seed: int,
    pieces: int,
    length: int,
    cut: bool,
):
    """Random bytes anywhere: nothing but StoreError, nothing believed that was not stored, no file lost (SECURITY §3)."""
    chance, data, before = random.Random(seed), original.data, original.trees
    damaged = bytearray(data)
    for _ in range(pieces):
        at = chance.randrange(len(damaged))
        damaged[at : at + length] = chance.randbytes(length)
    if cut:
        del damaged[chance.randrange(len(damaged)) :]
    path = tmp_path_factory.mktemp("damage") / "sessions.db"
    path.write_bytes(damaged)
    asyncio.run(_survive(path, before, everything))


async def _survive(path: Path, before: Trees, everything: Everything) -> None:
    try:
        store = SqliteStore.open(path)
    except StoreError as error:
        assert error.code in ("foreign", "newer"), error
        return
    try:
        for session in await everything(store) if store.notices else ():
            known = {node.id: node.payload for node in before.get(session, [])}
            for node in await store.path(session):
                assert known.get(node.id, node.payload) == node.payload
        await everything(store)
    except StoreError as error:
        assert error.code in ("corrupt", "not_found", "invalid", "stale"), error
    except StaleEpoch:
        pass
    finally:
        store.close()
    assert bool(list(path.parent.glob("*.corrupt-*"))) == bool(store.notices)

"""A row that is not what was stored is named with its session and the next command; it costs that session, and nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from moryflow.store import CallRow, Commit, HookCallRow, NewNode, Node, StoreError
from moryflow.store.sqlite import search as fulltext
from moryflow.store.sqlite.store import SqliteStore


def flip(path: Path, text: bytes, by: int = 1) -> None:
    """Change the last letter of `text` in the file."""
    data = bytearray(path.read_bytes())
    assert data.count(text) == 1
    data[data.index(text) + len(text) - 1] ^= by
    path.write_bytes(data)


async def said(file: Path, *texts: str, session: str = "talk") -> list[Node]:
    """Make a session of these prompts; return its nodes."""
    store = SqliteStore.open(file)
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent", id=session)).id)
    nodes = (await hold.commit(Commit(nodes=[NewNode("user", {"text": text}) for text in texts]))).nodes
    hold.release()
    store.close()
    return nodes


async def read(store: SqliteStore, way: str) -> object:
    match way:
        case "hold":
            return await store.hold("talk")
        case "export":
            return [line async for line in store.export("talk")]
        case "labels" | "path" | "nodes" | "fork" | "first_prompt" | "calls" | "hook_calls":
            return await getattr(store, way)("talk")
    raise AssertionError(way)


@pytest.mark.parametrize("way", ["hold", "path", "nodes", "export", "fork"])
async def test_one_flipped_bit_is_named_and_never_passed_on(file: Path, way: str):
    """Session, node and the next command are named; a fork keeps what is before it; other sessions go on (S1.6)."""
    nodes = await said(file, "first", "second", "third", "fourth")
    await said(file, "elsewhere", session="other")
    flip(file, b':"third')
    store = SqliteStore.open(file)
    with pytest.raises(StoreError, match=rf"node {nodes[2].id} \(no\. 3\) of session talk is not what was stored") as caught:
        await read(store, way)
    assert caught.value.code == "corrupt"
    assert f"session fork talk --node {nodes[1].id}" in caught.value.next_step
    assert store.notices == [] and not list(file.parent.glob("*.corrupt-*"))
    assert [node.payload for node in await store.path((await store.fork("talk", nodes[1].id)).id)] == [
        node.payload for node in nodes[:2]
    ]
    assert len(await store.path("other")) == 1
    await store.delete("talk")
    assert "talk" not in {row.id for row in await store.sessions()}
    store.close()


@pytest.mark.parametrize("way", ["index", "known index", "scan"])
async def test_a_search_leaves_a_damaged_node_out(file: Path, way: str, monkeypatch: pytest.MonkeyPatch):
    """Neither the words as they were nor as they are now are found, all others are (S1.6)."""
    nodes = await said(file, "first", "second", "third", "fourth")
    if way == "known index":
        store = SqliteStore.open(file)
        assert [hit.node for hit in await store.search("third")] == [nodes[2].id]
        store.close()
    flip(file, b':"third')
    if way == "scan":
        monkeypatch.setattr(fulltext, "_CREATE", fulltext._CREATE.replace("fts5", "no_such_module"))
    store = SqliteStore.open(file)
    found = [[hit.node for hit in await store.search(word)] for word in ("third", "thire", "fourth")]
    assert found == [[], [], [nodes[3].id]]
    store.close()


@pytest.mark.parametrize("way", ["first_prompt", "labels"])
async def test_what_a_list_of_sessions_shows_is_compared_too(file: Path, way: str):
    """The first prompt and the labels are read without the path, and are compared all the same (S1.6)."""
    store = SqliteStore.open(file)
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent", id="talk")).id)
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "prompt"}), NewNode("marker", {"label": "before", "node": None})]))
    hold.release()
    store.close()
    flip(file, b"prompt" if way == "first_prompt" else b"before")
    store = SqliteStore.open(file)
    with pytest.raises(StoreError, match="session talk"):
        await read(store, way)
    store.close()


@pytest.mark.parametrize("table", ["calls", "hook_calls"])
async def test_rows_beside_the_nodes_are_compared_too(file: Path, table: str):
    """A flipped bit in what a call ran with, or in the ledger, is named by the command and by `damages` (S1.6)."""
    await said(file, "first")
    store = SqliteStore.open(file)
    hold = await store.hold("talk")
    args = '{"command":"echo judged"}'
    row = CallRow("c", "talk", "t", "n", 1, "bash", args, sha256(args.encode()).hexdigest(), "completed")
    quiet = HookCallRow.quiet("talk", "t", 1, [("tool_gate", "q", "hash", 31, 47, "c", 2)])
    await hold.commit(Commit(calls=[row], hook_calls=[quiet]))
    hold.release()
    store.close()
    flip(file, b"judged") if table == "calls" else flip(file, b"31,47", ord("7") ^ ord("."))
    store = SqliteStore.open(file)
    (damage,) = [damage async for damage in store.damages()]
    assert damage[0].endswith("of session talk is not what was stored") and "session delete talk" in damage[1]
    with pytest.raises(StoreError):
        await read(store, table)
    store.close()


@pytest.mark.parametrize("column", ["hash", "id", "parent", "seq", "kind"])
async def test_a_flipped_bit_beside_the_payload_is_found(file: Path, column: str):
    """What says where a node stands is looked at as well: a path never ends early in silence (S1.6, invariant 9)."""
    nodes = await said(file, "first", "second", "third", "fourth", "fifth")
    was = str(getattr(nodes[2], column))
    flipped = {"seq": "103", "kind": "tool"}.get(column) or f"{int(was[0], 16) ^ 1:x}{was[1:]}"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TRIGGER nodes_never_change")
        connection.execute(f"UPDATE nodes SET {column} = ? WHERE seq = 3", (flipped,))
        connection.commit()
    store = SqliteStore.open(file)
    for way in ("hold", "path"):
        with pytest.raises(StoreError, match="session talk") as caught:
            await read(store, way)
        assert caught.value.code == "corrupt"
    assert [damage async for damage in store.damages()]
    store.close()


async def test_a_damaged_label_does_not_keep_a_session_from_being_forked(file: Path):
    """The command that the error names works for each kind of node (S1.6)."""
    nodes = await said(file, "first")
    store = SqliteStore.open(file)
    hold = await store.hold("talk")
    await hold.commit(Commit(nodes=[NewNode("marker", {"label": "before", "node": nodes[0].id})]))
    hold.release()
    store.close()
    flip(file, b"before")
    store = SqliteStore.open(file)
    with pytest.raises(StoreError, match=f"--node {nodes[0].id}"):
        await store.path("talk")
    assert (await store.fork("talk", nodes[0].id)).active
    store.close()


async def test_parents_that_lead_in_a_circle_end_the_path(file: Path):
    """Damage that makes a node its own ancestor does not make a reader run for ever (invariant 9)."""
    nodes = await said(file, "first", "second", "third", "fourth")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TRIGGER nodes_never_change")
        connection.execute("UPDATE nodes SET parent = ? WHERE seq = 2", (nodes[3].id,))
        connection.commit()
    store = SqliteStore.open(file)
    with pytest.raises(StoreError, match="session talk"):
        await store.path("talk")
    store.close()

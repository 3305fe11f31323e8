"""What another program can do to the tables, which version they have, and what one store gives another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import psycopg
import pytest
from moryflow.store import Commit, NewNode, Node, SessionLock, SessionRow, Store, StoreError, open_store
from moryflow.store.postgres import schema
from moryflow_sdk import Event

COPY = "INSERT INTO nodes (session, id, seq, kind, payload, tokens, hash, created)"
Say = Callable[..., Awaitable[list[Node]]]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE nodes SET payload = '{}'",
        "DELETE FROM nodes",
        "TRUNCATE nodes",
        f"{COPY} SELECT session, id, 9, kind, payload, 0, hash, '' FROM nodes",
        f"{COPY} SELECT session, 'x', seq, kind, payload, 0, hash, '' FROM nodes",
        "DELETE FROM purges",
        "TRUNCATE purges",
    ],
)  # fmt: skip
async def test_no_other_program_changes_or_removes_a_node(
    store: Store, session: SessionRow, say: Say, psql: psycopg.Connection, statement: str
):
    """Triggers keep the tree append-only, whoever is connected (S1.2, D62)."""
    other = await store.create(vault="/v", agent="a", mode="agent")
    await store.delete(other.id)
    await say("one")
    before = await store.nodes(session.id)
    with pytest.raises(psycopg.Error, match=r"append-only|unique|stays on record"):
        psql.execute(statement.encode())
    assert await store.nodes(session.id) == before


async def test_a_whole_session_can_be_purged_in_one_transaction(store: Store, session: SessionRow, say: Say, hold: SessionLock):
    """What names it in `purges` removes all of it, and the number of an event never comes back (D62)."""
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "x"})], events=[Event(type="e", session=session.id, ts="1")]))
    hold.release()
    await store.delete(session.id)
    assert await store.nodes(session.id) == await store.events(session.id) == []
    other = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    done = await other.commit(Commit(events=[Event(type="e", session=other.session.id, ts="1")]))
    assert done.events[0].seq == 2
    other.release()


async def test_an_old_epoch_adds_nothing(store: Store, url: str, home: Path, session: SessionRow, psql: psycopg.Connection):
    """A holder whose lease ran out while another took the session can store nothing any more (R41)."""
    old = await store.hold(session.id)
    psql.execute("UPDATE sessions SET until = now() - interval '1 s'")
    other = open_store(home, url=url)
    new = await other.hold(session.id)
    await new.commit(Commit(nodes=[NewNode("user", {"text": "mine"})]))
    with pytest.raises(Exception, match="taken over"):
        await old.commit(
            Commit(nodes=[NewNode("user", {"text": "late"})], events=[Event(type="e", session=session.id, ts="1")])
        )
    assert [node.payload["text"] for node in await store.nodes(session.id)] == ["mine"]
    assert await store.events(None) == []
    old.release()
    assert store.seems_held(session.id)  # the old one's release is not the new one's
    new.release()
    other.close()


async def test_a_reader_never_jumps_over_a_commit_that_is_still_open(
    store: Store, session: SessionRow, hold: SessionLock, psql
):
    """`seq` is read up to the oldest open transaction: an older number may still come (D87)."""
    psql.execute("BEGIN")
    first = psql.execute("SELECT reserve_events(1)").fetchone()[0]
    done = await hold.commit(Commit(events=[Event(type="later", session=session.id, ts="2")]))
    assert done.events[0].seq == first + 1
    assert await store.events(None) == []
    assert (await store.event_span())[1] < first
    psql.execute(
        "INSERT INTO events (seq, session, type, ts, body) VALUES (%s, %s, 'earlier', '1', '{\"data\":{},\"v\":1}')",
        (first, session.id),
    )
    psql.execute("COMMIT")
    assert [event.type for event in await store.events(None)] == ["earlier", "later"]


async def test_tables_of_a_newer_moryflow_are_left_alone(url: str, home: Path, store: Store, psql: psycopg.Connection):
    """It is refused with the way out, and nothing is changed."""
    psql.execute("UPDATE moryflow SET version = 99")
    with pytest.raises(StoreError, match="version 99, written by a newer Moryflow") as caught:
        open_store(home, url=url)
    assert caught.value.code == "newer"


async def test_an_older_version_is_migrated_once(home: Path, url: str, monkeypatch: pytest.MonkeyPatch):
    """Migrations are numbered and go forward; several processes at once apply each once."""
    steps = schema.migrations()
    monkeypatch.setattr(schema, "migrations", lambda: steps[:1])
    open_store(home, url=url).close()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version FROM moryflow").fetchone() == (1,)
    monkeypatch.undo()
    for _ in range(2):
        open_store(home, url=url).close()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version FROM moryflow").fetchone() == (len(steps),)


async def test_a_session_goes_to_sqlite_and_back_byte_for_byte(
    store: Store, session: SessionRow, hold: SessionLock, tmp_path: Path
):
    """Export and import between the two databases give equal lines (S2.14, D87)."""
    odd = "nul \x00 lone \ud800 esc \x1b[0m"
    nodes = [NewNode("user", {"text": odd, "number": 1.5}), NewNode("assistant", {"text": "ä", "list": [1, {"a": None}]})]
    await hold.commit(
        Commit(nodes=nodes, events=[Event(type="e", session=session.id, ts="1", data={"t": odd})], session={"title": odd})
    )
    there = [line async for line in store.export(session.id)]
    sqlite = open_store(tmp_path / "sqlite", url="")
    moved = await sqlite.import_(there)
    assert [line async for line in sqlite.export(moved.id)] == there
    hold.release()
    await store.delete(session.id)
    back = await store.import_([line async for line in sqlite.export(moved.id)])
    assert [line async for line in store.export(back.id)] == there
    sqlite.close()


def test_no_password_is_shown(home: Path, monkeypatch: pytest.MonkeyPatch, postgres):
    """Neither an error nor the configuration repeats it (D87)."""
    from moryflow.config import load_config

    url = f"postgresql://nobody:hunter2@127.0.0.1:{postgres.port}/missing"
    with pytest.raises(StoreError) as caught:
        open_store(home, url=url, patience=0.1)
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("MORYFLOW_STORE", url)
    shown = load_config(home, environ={"MORYFLOW_STORE": url}).get("store.url")
    assert shown == url.replace(":hunter2", "")


def test_an_address_that_is_none_is_explained(home: Path):
    """Exit code and sentence come before any table is touched."""
    with pytest.raises(StoreError, match="not an address of PostgreSQL"):
        open_store(home, url="postgresql://[broken")

"""A damaged database is moved aside, saved from as far as possible, and named."""

from __future__ import annotations

import os
import random
import re
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from unittest import mock

import pytest
from moryflow.store import CallRow, Commit, HookCallRow, NewNode, Node, StaleEpoch, StoreError, path_to
from moryflow.store.sqlite import recovery
from moryflow.store.sqlite import search as fulltext
from moryflow.store.sqlite.database import beside
from moryflow.store.sqlite.store import SqliteStore
from moryflow_sdk import Event

PAGE = 4096
Trees = dict[str, list[Node]]
Filled = Callable[..., Awaitable[Trees]]
Everything = Callable[[SqliteStore], Awaitable[Trees]]


def tables_page(path: Path) -> dict[str, int]:
    """Return the first page of each table."""
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage"))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def asides(path: Path) -> list[Path]:
    return sorted(file for file in path.parent.glob("*.corrupt-*") if not file.name.endswith(("-wal", "-shm")))


def count(trees: Trees) -> int:
    return sum(map(len, trees.values()))


Damage = Callable[[Path], object]
TOTAL: dict[str, tuple[Damage, float]] = {
    "header": (lambda path: overwrite(path, 0, b"\0" * 100), 1.0),
    "first page": (lambda path: overwrite(path, 0, os.urandom(PAGE)), 1.0),
    "text instead": (lambda path: path.write_text("dear diary\n" * 1000), 0.0),
    "cut in half": (lambda path: os.truncate(path, path.stat().st_size // PAGE // 2 * PAGE), 0.2),
    "cut to one page": (lambda path: os.truncate(path, PAGE), 0.0),
}


@pytest.mark.parametrize("name", TOTAL)
async def test_a_damaged_database_is_replaced_by_what_is_readable(
    file: Path, name: str, filled: Filled, everything: Everything
):
    """Open finds the damage, keeps the damaged file under a name with the time, and saves what it can (SECURITY §3)."""
    before = await filled(file)
    damage, least = TOTAL[name]
    damage(file)
    bytes_before = file.read_bytes()
    store = SqliteStore.open(file)
    (aside,) = asides(file)
    assert aside.read_bytes() == bytes_before
    assert len(store.notices) == 1
    assert aside.name in store.notices[0]
    assert str(file) in store.notices[0]
    saved = await everything(store)
    assert count(saved) >= least * count(before)
    assert all(node in before[session] for session, nodes in saved.items() for node in nodes)
    store.close()
    again = SqliteStore.open(file)
    assert again.notices == []
    again.close()


@pytest.mark.parametrize("table", ["sessions", "nodes", "events", "calls", "sqlite_autoindex_nodes_1"])
async def test_a_damaged_table_costs_only_what_was_in_it(file: Path, table: str, filled: Filled, everything: Everything):
    """The first page of one table is destroyed: all nodes of whole paths are kept, sessions get their nodes back (S1.6)."""
    before = await filled(file)
    overwrite(file, (tables_page(file)[table] - 1) * PAGE, b"\xff" * PAGE)
    store = SqliteStore.open(file)
    with_damage_met = [store.sessions(), store.nodes("s1"), store.events(None), store.calls("s1"), store.path("s1")]
    for read in with_damage_met:
        try:
            await read
        except StoreError as error:
            assert error.code == "not_found"  # the session's row was lost, or all of its nodes
    assert len(store.notices) == 1
    saved = await everything(store)
    if table != "nodes":
        assert {session: len(nodes) for session, nodes in saved.items()} == {
            session: len(nodes) for session, nodes in before.items()
        }
    store.close()


async def test_one_bad_page_among_the_nodes_costs_little(file: Path, filled: Filled, everything: Everything):
    """Rows are read from both sides of a damaged page; a path that lost a node ends before the gap."""
    before = await filled(file)
    with closing(sqlite3.connect(file)) as connection:
        pages = [row[0] for row in connection.execute("SELECT pageno FROM dbstat WHERE name = 'nodes' AND pagetype = 'leaf'")]
    overwrite(file, (pages[len(pages) // 2] - 1) * PAGE, b"\0" * PAGE)
    store = SqliteStore.open(file)
    for session in before:
        await store.nodes(session)
    assert len(store.notices) == 1
    saved = await everything(store)
    assert count(before) * 0.8 < count(saved) < count(before)
    assert [len(await store.path(session)) < len(before[session]) for session in saved].count(True) == 1
    store.close()


async def test_a_changed_payload_is_not_believed(file: Path, filled: Filled):
    """What does not fit its hash is not taken over from a damaged database (S1.6)."""
    before = await filled(file, sessions=1, nodes=5)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TRIGGER nodes_never_change")
        connection.execute('UPDATE nodes SET payload = \'{"text":"forged"}\' WHERE seq = 3')
        connection.commit()
    overwrite(file, 0, b"\0" * 100)
    store = SqliteStore.open(file)
    saved = await store.nodes("s0")
    assert [node.seq for node in saved] == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert [node.seq for node in await store.path("s0")] == [1, 2]
    assert all(node in before["s0"] for node in saved)
    store.close()


async def test_parents_that_lead_in_a_circle_end_the_path(file: Path, filled: Filled):
    """Damage that makes a node its own ancestor does not make a reader run for ever; it is said what is lost (invariant 9)."""
    before = await filled(file, sessions=1, nodes=3)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TRIGGER nodes_never_change")
        connection.execute("UPDATE nodes SET parent = ? WHERE seq = 2", (before["s0"][4].id,))
        connection.commit()
    store = SqliteStore.open(file)
    assert [node.seq for node in await store.path("s0")] == [1]
    lost = before["s0"][1].id
    assert (
        f"{lost} of session s0 is lost, so it goes on after {before['s0'][0].id}; later ones that are kept beside it: 4"
        in store.notices[0]
    )
    nodes = {node.id: node for node in await store.nodes("s0")}
    assert [node.seq for node in path_to(nodes, before["s0"][-1].id)] == [3, 4, 5, 6]
    store.close()


async def test_damage_met_while_running_is_repaired_and_old_holders_stop(file: Path, filled: Filled):
    """A process that meets damage goes on after the repair; who held a session before must take it again (SECURITY §3)."""
    before = await filled(file)
    overwrite(file, (tables_page(file)["events"] - 1) * PAGE, b"\xff" * PAGE)
    store = SqliteStore.open(file)
    other = SqliteStore.open(file)
    hold = await store.hold("s1")
    await other.sessions()
    with pytest.raises(StaleEpoch):
        await hold.commit(Commit(events=[Event(type="x", session="s1")]))
    assert len(store.notices) == 1
    assert hold.path == before["s1"]
    hold.release()
    again = await store.hold("s1")
    await again.commit(Commit(events=[Event(type="x", session="s1")]))
    again.release()
    assert await other.path("s1") == before["s1"]
    assert other.notices == []
    other.close()
    store.close()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


async def test_two_processes_that_meet_the_damage_repair_it_once(file: Path, child, filled: Filled):
    """The repair is made by one; the others find it done (SECURITY §3, 8 processes)."""
    before = await filled(file)
    overwrite(file, 0, b"\0" * PAGE)
    source = """
        import asyncio, sys
        from pathlib import Path
        from moryflow.store.sqlite.store import SqliteStore
        sys.stdin.readline()
        store = SqliteStore.open(Path(sys.argv[1]))
        print(len(store.notices), len(asyncio.run(store.nodes("s0"))), flush=True)
    """
    processes = [await child(source, str(file)) for _ in range(4)]
    for process in processes:
        process.stdin.write(b"go\n")
    said = [(await process.stdout.read()).split() for process in processes]
    for process in processes:
        await process.wait()
    assert sorted(notices for notices, _ in said) == [b"0", b"0", b"0", b"1"]
    assert {int(nodes) for _, nodes in said} == {len(before["s0"])}
    assert len(asides(file)) == 1


@pytest.mark.parametrize("point", ["make_database", "_transplant_schema", "put_in_place", "_move_aside"])
async def test_a_repair_that_is_cut_short_is_made_again(
    file: Path, point: str, monkeypatch: pytest.MonkeyPatch, filled: Filled, everything: Everything
):
    """A process killed at any step of the repair loses nothing: the next start ends it (SECURITY §3)."""
    before = await filled(file)
    overwrite(file, 0, b"\0" * PAGE)
    real = getattr(recovery, point)

    class Killed(BaseException):
        pass

    def killed(*arguments: object) -> object:
        if point != "make_database":
            real(*arguments)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(recovery, point, killed)
        SqliteStore.open(file)
    store = SqliteStore.open(file)
    assert len(store.notices) == 1
    assert count(await everything(store)) == count(before)
    assert len(asides(file)) == 1
    assert not beside(file, ".salvaged").exists()
    store.close()


async def test_an_empty_file_beside_its_log_is_damage(file: Path):
    """A database cut to nothing while its log is there is saved from the log, not begun anew over it (SECURITY §3)."""
    store = SqliteStore.open(file)
    row = await store.create(vault="/v", agent="a", mode="agent")
    hold = await store.hold(row.id)
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "only in the log"})]))
    log = beside(file, "-wal").read_bytes()
    hold.release()
    store.close()
    os.truncate(file, 0)
    beside(file, "-wal").write_bytes(log)
    again = SqliteStore.open(file)
    assert len(again.notices) == 1
    assert [node.payload["text"] for node in await again.path(row.id)] == ["only in the log"]
    again.close()


async def test_a_missing_file_beside_its_log_is_damage(file: Path, filled: Filled):
    """Only the main file was removed: its log is kept aside and not applied to a new database."""
    await filled(file, sessions=1, nodes=2)
    beside(file, "-wal").write_bytes(b"\x37\x7f\x06\x82" + os.urandom(8000))
    file.unlink()
    store = SqliteStore.open(file)
    assert len(store.notices) == 1
    assert await store.sessions() == []
    assert len(list(file.parent.glob("*.corrupt-*-wal"))) == 1
    store.close()


async def test_damage_on_a_disk_that_is_full_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch, filled: Filled):
    """Where there is no room for the repair, the damaged file stays where it is, and a sentence says so."""
    await filled(file, sessions=1, nodes=5)
    overwrite(file, 0, b"\0" * PAGE)
    bytes_before = file.read_bytes()

    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recovery, "make_database", full)
    with pytest.raises(StoreError, match="disk is full") as caught:
        SqliteStore.open(file)
    assert caught.value.code == "no_space"
    assert file.read_bytes() == bytes_before


async def test_a_payload_that_is_no_longer_json_is_damage(file: Path, filled: Filled):
    """What SQLite does not notice is found when it is read, and costs one node (S1.6)."""
    before = await filled(file, sessions=1, nodes=3)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TRIGGER nodes_never_change")
        connection.execute("UPDATE nodes SET payload = substr(payload, 2) WHERE seq = 6")
        connection.commit()
    store = SqliteStore.open(file)
    assert await store.nodes("s0") == before["s0"][:5]
    assert len(store.notices) == 1
    store.close()


async def test_a_table_that_was_dropped_is_damage(file: Path, filled: Filled):
    """Without its tables the file is not a database of ours any more; the rest is saved."""
    await filled(file, sessions=2, nodes=2)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TRIGGER nodes_never_vanish")
        connection.execute("DROP TABLE nodes")
        connection.commit()
    store = SqliteStore.open(file)
    assert len(store.notices) == 1
    assert {row.id: row.active for row in await store.sessions()} == {"s0": None, "s1": None}
    store.close()


async def test_a_false_alarm_changes_nothing(file: Path, filled: Filled):
    """A database that turns out to be sound stays; one of a newer version is never repaired."""
    before = await filled(file, sessions=1, nodes=2)
    data = file.read_bytes()
    assert recovery.recover(file) is None
    assert file.read_bytes() == data
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer"):
        recovery.recover(file)
    assert asides(file) == []
    assert count(before) == 4


def flip(path: Path, text: bytes) -> None:
    """Change one bit in the last letter of `text` in the file, so that it is a letter still."""
    data = path.read_bytes()
    assert data.count(text) == 1
    at = data.index(text) + len(text) - 1
    overwrite(path, at, bytes([data[at] ^ 1]))


async def said(file: Path, *texts: str) -> list[Node]:
    """Make a database with one session of these prompts; return its nodes."""
    store = SqliteStore.open(file)
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent", id="talk")).id)
    nodes = (await hold.commit(Commit(nodes=[NewNode("user", {"text": text}) for text in texts]))).nodes
    hold.release()
    store.close()
    return nodes


NAMED = "node {} (no. {}) of session talk is not what was stored"


@pytest.mark.parametrize("way", ["hold", "path", "nodes", "export", "fork", "search", "scan", "known_search"])
async def test_one_flipped_bit_is_named_and_never_passed_on(file: Path, way: str, monkeypatch: pytest.MonkeyPatch):
    """A node that is not what was stored costs itself; session and node are named, and what follows is kept (S1.6)."""
    nodes = await said(file, "first", "second", "third", "fourth", "fifth")
    if way == "known_search":
        store = SqliteStore.open(file)
        assert [hit.node for hit in await store.search("third")] == [nodes[2].id]
        store.close()
    flip(file, b':"third')
    store = SqliteStore.open(file)
    match way:
        case "search" | "known_search":  # the words as they were, and as they are now
            assert [await store.search(word) for word in ("third", "thire", "first")] == [[], [], [mock.ANY]]
        case "scan":
            monkeypatch.setattr(fulltext, "_CREATE", fulltext._CREATE.replace("fts5", "no_such_module"))
            assert await store.search("thire") == []
        case "hold":
            hold = await store.hold("talk")
            assert hold.path == nodes[:2]
            await hold.commit(Commit(nodes=[NewNode("user", {"text": "goes on"})]))
            hold.release()
        case "path":
            assert await store.path("talk") == nodes[:2]
        case "nodes":
            assert await store.nodes("talk") == [*nodes[:2], *nodes[3:]]
        case "export":  # it may have written some of it already
            with pytest.raises(StoreError, match=re.escape(NAMED.format(nodes[2].id, 3))) as caught:
                [line async for line in store.export("talk")]
            assert caught.value.code == "corrupt"
            assert len(await store.nodes("talk")) == 4
        case _:
            assert len(await store.path((await store.fork("talk")).id)) == 2
    (notice,) = store.notices
    lost = f"{nodes[2].id} of session talk is lost, so it goes on after {nodes[1].id}; later ones that are kept beside it: 2"
    assert f"{lost} (moryflow session tree talk)" in notice
    store.close()
    again = SqliteStore.open(file)
    assert await again.path("talk") and again.notices == []
    again.close()


@pytest.mark.parametrize("way", ["first_prompt", "labels"])
async def test_what_a_list_of_sessions_shows_is_compared_too(file: Path, way: str):
    """The first prompt and the labels are read without the path, and are compared all the same (S1.6)."""
    store = SqliteStore.open(file)
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent", id="talk")).id)
    drafts = [NewNode("user", {"text": "prompt"}), NewNode("marker", {"label": "before", "node": None})]
    await hold.commit(Commit(nodes=drafts))
    hold.release()
    store.close()
    flip(file, b"prompt" if way == "first_prompt" else b"before")
    store = SqliteStore.open(file)
    assert not await (store.first_prompt("talk") if way == "first_prompt" else store.labels("talk"))
    assert "of session talk is lost" in store.notices[0]
    store.close()


@pytest.mark.parametrize("way", ["calls", "export"])
async def test_arguments_that_are_not_what_was_judged_are_named(file: Path, way: str):
    """A flipped bit in what a call ran with is told with its row, and no trace or approval shows it (S1.6)."""
    await said(file, "first")
    store = SqliteStore.open(file)
    hold = await store.hold("talk")
    args = '{"command":"echo judged"}'
    row = CallRow("c", "talk", "t", "n", 1, "bash", args, sha256(args.encode()).hexdigest(), "completed")
    await hold.commit(Commit(calls=[row, row._replace(id="asked", args="{}", hash="")]))
    hold.release()
    store.close()
    flip(file, b"judged")
    store = SqliteStore.open(file)
    if way == "export":
        with pytest.raises(StoreError, match="the arguments of call c of session talk are not what was stored"):
            [line async for line in store.export("talk")]
    else:
        assert [sentence async for sentence in store.damages()] == ["call c of session talk is not what was stored"]
    assert [call.id for call in await store.calls("talk")] == ["asked"]
    assert len(store.notices) == 1 and "call c of session talk is not what was stored" in store.notices[0]
    store.close()


@pytest.mark.parametrize("way", ["ledger", "export", "damages"])
async def test_a_row_of_hook_calls_that_no_longer_fits_is_damage(file: Path, way: str):
    """A flipped bit can leave JSON that is not a list of calls; the row is given up, the ledger is readable again (S1.6)."""
    await said(file, "first")
    store = SqliteStore.open(file)
    hold = await store.hold("talk")
    loud = HookCallRow("talk", "t", 1, "tool_gate", "p", "hash", 0, "failed", 7, "c")
    await hold.commit(
        Commit(hook_calls=[loud, HookCallRow.quiet("talk", "t", 1, [("tool_gate", "q", "hash", 31, 47, "c", 2)])])
    )
    hold.release()
    store.close()
    data = file.read_bytes()
    assert data.count(b"31,47") == 1
    overwrite(file, data.index(b"31,47") + 2, b".")
    store, lost = SqliteStore.open(file), "row 2 of hook_calls of session talk is not what was stored"
    if way == "damages":
        assert [sentence async for sentence in store.damages()] == [lost]
    elif way == "export":
        with pytest.raises(StoreError, match="hook calls"):
            [line async for line in store.export("talk")]
    assert await store.hook_calls("talk") == [loud]
    assert lost in store.notices[0]
    store.close()


@pytest.mark.parametrize(
    ("column", "lost", "left"),
    [("hash", [2, 3], [0, 1]), ("id", [2], [0, 1, 2]), ("parent", [], [0, 1]), ("seq", [3], [0, 1, 2]), ("kind", [2], [0, 1])],
)
async def test_a_flipped_bit_beside_the_payload_is_found(file: Path, column: str, lost: list[int], left: list[int]):
    """What says where a node stands is looked at as well: a path never ends early in silence (S1.6)."""
    nodes = await said(file, "first", "second", "third", "fourth", "fifth")
    was = str(getattr(nodes[2], column))
    flipped = {"seq": "103", "kind": "tool"}.get(column) or f"{int(was[0], 16) ^ 1:x}{was[1:]}"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TRIGGER nodes_never_change")
        connection.execute(f"UPDATE nodes SET {column} = ? WHERE seq = 3", (flipped,))
        connection.commit()
    store = SqliteStore.open(file)
    hold = await store.hold("talk")
    assert [node.payload for node in hold.path] == [nodes[place].payload for place in left]
    hold.release()
    (notice,) = store.notices
    assert ", ".join(nodes[place].id for place in lost) in notice and "of session talk" in notice
    store.close()


@pytest.mark.parametrize("seed", range(12))
async def test_leaves_are_saved_whatever_leads_to_them(file: Path, seed: int, filled: Filled, everything: Everything):
    """Interior pages, at random, are destroyed: not one node, event or call is lost (S1.6, SECURITY §3)."""
    before = await filled(file)
    chance = random.Random(seed)
    with closing(sqlite3.connect(file)) as connection:
        found = "SELECT pageno FROM dbstat WHERE pagetype = 'internal' AND name IN ('nodes', 'events', 'calls') ORDER BY 1"
        interior = [row[0] for row in connection.execute(found)]
    for page in chance.sample(interior, chance.randint(1, len(interior))):
        length = chance.choice([1, 8, 200, PAGE])
        overwrite(file, (page - 1) * PAGE + chance.choice([0, 3, 12]) * (length < PAGE), chance.randbytes(length))
    recovery.recover(file)
    with closing(sqlite3.connect(file)) as connection:
        counts = [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("nodes", "events", "calls")]
    assert counts == [count(before), count(before) // 2, count(before) // 2]
    store = SqliteStore.open(file)
    assert {session: await store.path(session) for session in before} == before
    await everything(store)
    store.close()


async def test_what_was_purged_does_not_come_back_from_the_leaves(file: Path, filled: Filled):
    """A page that was freed holds nothing that a repair could find (S1.6)."""
    await filled(file)
    store = SqliteStore.open(file)
    await store.delete("s1")
    store.close()
    overwrite(file, (tables_page(file)["nodes"] - 1) * PAGE, b"\xff" * PAGE)
    assert recovery.recover(file)
    store = SqliteStore.open(file)
    assert [row.id for row in await store.sessions()] == ["s2", "s0"] and await store.nodes("s1") == []
    assert await store.nodes("s0") and await store.calls("s1") == [] and await store.events("s1") == []
    store.close()


async def test_the_log_is_read_where_the_first_page_is_lost(file: Path):
    """What only the log has is saved, and what leads to the rest is not needed (SECURITY §3)."""
    store = SqliteStore.open(file)
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent", id="talk")).id)
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "only in the log"})]))
    log, data = beside(file, "-wal").read_bytes(), file.read_bytes()
    hold.release()
    store.close()
    file.write_bytes(b"\0" * 200 + data[200:])
    beside(file, "-wal").write_bytes(log)
    again = SqliteStore.open(file)
    assert [node.payload["text"] for node in await again.path("talk")] == ["only in the log"]
    again.close()

"""Export and import: lossless, whole or not at all, and without permissions from elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow.store import (
    ApprovalRow,
    CallRow,
    Commit,
    HookCallRow,
    NewNode,
    RunRow,
    SessionLock,
    SessionRow,
    Store,
    StoreError,
)  # fmt: skip
from moryflow.store.tables import encode, node_hash
from moryflow_sdk import Artifact, Event

KINDS = ["user", "assistant", "tool", "compaction", "prune", "note", "marker"]
TEXTS = st.text(st.characters(), max_size=12) | st.sampled_from(["\ud800", "a\x00b", "\u2028\x85\n", "😀", ""])


HASH = sha256(b"{}").hexdigest()


async def lines_of(store: Store, session: str) -> list[str]:
    return [line async for line in store.export(session)]


async def fill(hold: SessionLock) -> None:
    """Two branches and one of every record."""
    id = hold.session.id
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "q"}, id="n1"), NewNode("assistant", {"text": "left"}, id="n2")]))
    await hold.switch("n1")
    request = {"domain": "shell", "targets": ["shell:ls"], "tool": "bash"}
    await hold.commit(
        Commit(
            nodes=[NewNode("assistant", {"text": "right \ud800", "calls": [{"id": "c", "name": "bash"}]}, id="n3")],
            calls=[
                CallRow("c", id, "t", "n3", 1, "bash", "{}", HASH, "waiting", ruling={"a": 1.5}, created="1", updated="2"),
            ],
            approvals=[ApprovalRow("q", id, "c", "t", "tool", request, created="3")],
            runs=[RunRow("t", id, "main", "a", "m", "s", usage={"input": 1}, cost=0.5, started="4")],
            events=[Event(type="turn.start", session=id, ts="5", turn="t", step=1, parent="p", agent="a", data={"x": [1]})],
            hook_calls=[HookCallRow(id, "t", 1, "h", "p", "ph", 0, "changed", 9, delta={"y": None})],
            plugin_state={("p", "session"): {"z": [1, None]}},
            artifacts=[
                Artifact(id="out", session=id, call_id="c", tool="bash", path="/etc/passwd", size=1, sha256="s", created="6")
            ],
            session={"title": "T\udcff", "mode": "full_access", "grants": [{"domain": "shell", "pattern": "*"}]},
        )
    )


async def test_export_import_export_is_equal(store: Store, hold: SessionLock, home: Path, open_home):
    """An export imported elsewhere and exported again is the same bytes; nothing is lost (S2.14)."""
    await fill(hold)
    lines = await lines_of(store, hold.session.id)
    other = open_home(home / "other")
    row = await other.import_(lines)
    assert row.id == hold.session.id
    assert await lines_of(other, row.id) == lines
    assert await other.nodes(row.id) == await store.nodes(row.id)
    assert await other.path(row.id) == hold.path
    assert await other.runs(row.id) == await store.runs(row.id)
    assert await other.calls(row.id) == await store.calls(row.id)
    assert await other.hook_calls(row.id) == await store.hook_calls(row.id)
    assert await other.plugin_state(row.id) == await store.plugin_state(row.id)
    assert [event.data for event in await other.events(row.id)] == [event.data for event in await store.events(row.id)]
    other.close()


async def test_an_import_works_in_the_folder_that_the_importer_names(store: Store, hold: SessionLock, home: Path, open_home):
    """The file's own folder has no effect here and is in the next export again (S2.14, R20)."""
    await fill(hold)
    child = await store.create(vault="/", agent="a", mode="agent", parent=hold.session.id, purpose="child")
    lines = await lines_of(store, hold.session.id)
    other = open_home(home / "other")
    row = await other.import_(lines, "/here")
    assert {(await other.session(id)).vault for id in (row.id, child.id)} == {"/here"}
    assert await lines_of(other, row.id) == lines
    other.close()


async def test_import_beside_the_original_gets_a_new_id(store: Store, hold: SessionLock):
    """Where the id is taken a new one is given; all else is equal (S2.14)."""
    await fill(hold)
    lines = await lines_of(store, hold.session.id)
    copy = await store.import_(lines)
    assert copy.id != hold.session.id
    again = await lines_of(store, copy.id)
    assert again[1:] == lines[1:]
    assert json.loads(again[0]) == {**json.loads(lines[0]), "id": copy.id}


async def test_import_accepts_bytes_and_newlines(store: Store, hold: SessionLock, home: Path, open_home):
    """Lines of a file opened as text or as bytes, split by any reader, are the same session (S2.14)."""
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "a\u2028b\x85c\rd"})]))
    text = "\n".join(await lines_of(store, hold.session.id)) + "\n"
    path = home.with_name("export.jsonl")
    path.write_bytes(text.encode())
    for lines in (text.splitlines(), text.splitlines(keepends=True), path.open("rb"), path.read_bytes().split(b"\n")):
        assert [node.payload for node in await store.path((await store.import_(lines)).id)] == [hold.path[0].payload]


async def test_an_imported_session_brings_no_permission(store: Store, hold: SessionLock):
    """Mode, grants, answers and file names of a file from elsewhere have no effect, and are exported again (R13)."""
    await fill(hold)
    await store.reply("q", "always")
    lines = await lines_of(store, hold.session.id)
    copy = await store.import_(lines)
    assert (copy.mode, copy.grants) == ("agent", ())
    (row,) = await store.approvals(copy.id)
    assert (row.state, row.reply, row.by) == ("expired", None, None)
    assert await store.approvals(copy.id, "replied") == []
    assert [a.state for a in await store.artifacts(copy.id)] == ["expired"]
    assert await store.artifacts(copy.id, state="stored") == []
    assert (await store.approval("q")).session == hold.session.id
    await store.update_artifact("out", state="expired")
    assert await lines_of(store, copy.id) == [lines[0].replace(hold.session.id, copy.id), *lines[1:]]
    mine = await store.hold(copy.id)
    await mine.commit(Commit(session={"mode": "full_access"}))
    mine.release()
    header = json.loads((await lines_of(store, copy.id))[0])
    assert (header["mode"], len(header["grants"])) == ("full_access", 1)


async def test_a_pending_question_of_an_import_is_not_asked(store: Store, hold: SessionLock, home: Path, open_home):
    """A question asked elsewhere cannot be answered here (D65)."""
    await fill(hold)
    other = open_home(home / "other")
    await other.import_(await lines_of(store, hold.session.id))
    assert await other.approvals(state="pending") == []
    assert (await other.reply("q", "always")).state == "expired"
    other.close()


async def test_an_export_is_one_snapshot(store: Store, hold: SessionLock, say):
    """What is committed while an export runs is not half in it (S2.14)."""
    await say(*map(str, range(200)))
    lines = store.export(hold.session.id)
    first = [await anext(lines)]
    await say("later")
    rest = [line async for line in lines]
    assert len(first + rest) == 202
    with pytest.raises(StoreError, match="no session"):
        await lines_of(store, "nothing")


def damaged(lines: list[str]) -> dict[str, tuple[Sequence[str | bytes], str]]:
    """Return name -> (bad lines, what the sentence says)."""

    def at(number: int, **changes: object) -> list[str]:
        value = {**json.loads(lines[number - 1]), **changes}
        return [*lines[: number - 1], json.dumps({k: v for k, v in value.items() if v != "GONE"}), *lines[number:]]

    last = len(lines)
    kinds = {json.loads(line)["type"]: number for number, line in enumerate(lines, 1)}
    return {
        "nothing": ([], "nothing to import"),
        "blank": (["", "\n"], "nothing to import"),
        "not json": ([*lines[:2], "{broken", *lines[2:]], "line 3: this is not JSON"),
        "not an object": ([*lines[:2], "[1]", *lines[2:]], "line 3: a line is an object"),
        "bytes": ([*lines[:2], b"\xff\xfe", *lines[2:]], "line 3: this is not JSON"),
        "too deep": ([*lines[:2], "[" * 200_000, *lines[2:]], "line 3: this is not JSON"),
        "no header": (lines[1:], "line 1: an export begins"),
        "two headers": ([lines[0], *lines], "line 2: an export begins"),
        "newer": (at(1, format=2), "line 1: this export has a format"),
        "id": (at(1, id="../x"), "line 1: .* cannot be the id"),
        "header type": (at(1, title=3), "line 1: the field 'title' must be str"),
        "header field": (at(1, vault="GONE"), "line 1: the field 'vault' is missing"),
        "grants": (at(1, grants=[1]), "line 1: 'grants' must hold objects"),
        "active": (at(1, active="nowhere"), "line 1: the active node 'nowhere'"),
        "extra field": (at(2, surprise=1), "line 2: there is no field 'surprise'"),
        "content": (at(2, payload={"text": "forged"}), "line 2: the content of node 'n1' does not match"),
        "kind": (at(2, kind="thought"), "line 2: there is no node kind 'thought'"),
        "orphan": (at(3, parent="nowhere"), "line 3: the parent 'nowhere'"),
        "double node": ([*lines[:3], *lines[2:]], "line 4: the node id 'n2' is not new"),
        "order": (at(3, seq=1), "line 3: the nodes are not in the order"),
        "bool": (at(2, tokens=True), "line 2: the field 'tokens' must be int"),
        "large": (at(2, tokens=1 << 70), "line 2: the field 'tokens' is too large"),
        "unknown": ([*lines[:2], '{"type":"spell"}', *lines[2:]], "line 3: there is no record of type 'spell'"),
        "call state": (at(kinds["call"], state="lost"), "there is no call state 'lost'"),
        "event": (at(kinds["event"], body={"step": "x"}), "this is not an event"),
        "hook": (at(kinds["hook_call"], hook=""), "the field 'hook' is empty"),
        "artifact": (at(kinds["artifact"], state="lost"), "this is not an artifact"),
        "artifact field": (at(kinds["artifact"], bogus=1), "there is no field 'bogus'"),
        "cut": (lines[:-1], f"line {last - 1}: the file ends early"),
        "count": ([*lines[:-1], '{"type":"end","lines":"3"}'], "the field 'lines' must be int"),
        "no count": ([*lines[:-1], '{"type":"end"}'], "the field 'lines' is missing"),
        "a line lost": ([*lines[:-2], lines[-1]], f"line {last - 1}: {last} lines were exported"),
        "more": ([*lines, lines[-1]], f"line {last + 1}: the file continues"),
        "double record": (_doubled(lines, kinds["call"]), "this record is there twice"),
    }  # fmt: skip


def _doubled(lines: list[str], number: int) -> list[str]:
    end = json.dumps({"type": "end", "lines": len(lines) + 1})
    return [*lines[:number], *lines[number - 1 : -1], end]


async def test_a_bad_line_is_named_and_nothing_is_imported(store: Store, hold: SessionLock):
    """Each kind of bad line gets a sentence with its number, and the database stays as it was (S2.14)."""
    await fill(hold)
    lines = await lines_of(store, hold.session.id)
    before = await store.sessions(purpose=None)
    for name, (bad, sentence) in damaged(lines).items():
        with pytest.raises(StoreError, match=sentence):
            await store.import_(bad)
            pytest.fail(f"{name!r} was imported")
    assert await store.sessions(purpose=None) == before
    await store.import_(lines)


UNREADABLE: list[tuple[str, dict[str, object]]] = [
    ("user", {"text": [1]}),
    ("user", {"text": "q", "files": [{"path": "a"}]}),
    ("user", {"text": "q", "images": [7]}),
    ("assistant", {"text": "", "calls": 5}),
    ("assistant", {"text": "", "calls": [["x"]]}),
    ("assistant", {"text": "", "calls": [{"id": 0, "name": "read"}]}),
    ("tool", {"tool": "read", "status": "ok", "output": "no call"}),
    ("tool", {"call_id": "c", "tool": "read", "output": False}),
    ("compaction", {"first_kept_node_id": "n"}),
]


@pytest.mark.parametrize(("kind", "payload"), UNREADABLE)
async def test_a_node_that_could_not_be_read_is_not_imported(store: Store, hold: SessionLock, kind: str, payload: dict):
    """A file by another hand, its hashes right, brings no session that could be neither shown nor resumed (S2.14)."""
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "q"}, id="n1")]))
    lines = await lines_of(store, hold.session.id)
    forged = {"kind": kind, "payload": payload, "hash": node_hash("", kind, encode(payload))}
    lines[1] = json.dumps({**json.loads(lines[1]), **forged})
    with pytest.raises(StoreError, match="line 2: node 'n1' is not what a node of kind"):
        await store.import_(lines)


async def family(store: Store) -> list[str]:
    """Make a session with two children, one of which has a child of its own; return their ids, each behind its parent."""
    root = await store.create(vault="/v", agent="a", mode="agent")
    ids = [root.id]
    for parent, agent in ((0, "one"), (1, "two"), (0, "three")):
        above = await store.session(ids[parent])
        origin = {"spawn": {"plugin": "tasks", "agent": {"id": agent}}}
        begun = await store.begin_child(above, agent=agent, mode="full_access", title=agent, origin=origin)
        await fill(begun)
        begun.release()
        ids.append(begun.session.id)
    return ids


async def test_an_export_holds_the_sessions_of_sub_agents(store: Store, home: Path, open_home):
    """Imported elsewhere the tree is whole, under the same ids, and exported again it is the same bytes (S2.14, S2.3)."""
    ids = await family(store)
    lines = await lines_of(store, ids[0])
    other = open_home(home / "other")
    row = await other.import_(lines)
    assert await lines_of(other, row.id) == lines
    for id in ids:
        there, here = await other.session(id), await store.session(id)
        assert (there.parent, there.agent, there.purpose) == (here.parent, here.agent, here.purpose)
        assert (there.mode, there.grants, there.origin) == ("agent", (), None)
        assert await other.nodes(id) == await store.nodes(id)
    other.close()


async def test_a_tree_imported_beside_the_original_gets_new_ids(store: Store):
    """Each child is below the new parent and says whose copy it is, for the parent's words name it so (S2.14)."""
    ids = await family(store)
    row = await store.import_(await lines_of(store, ids[0]))
    new = [row, *[child for child in await store.sessions(20, purpose=None) if (child.origin or {}).get("imported")]]
    copies = {child.origin["session"]: child for child in new}
    assert copies.keys() == set(ids) and not {child.id for child in new} & set(ids)
    assert [copies[id].parent for id in ids] == [None, copies[ids[0]].id, copies[ids[1]].id, copies[ids[0]].id]
    again, first = await lines_of(store, row.id), await lines_of(store, ids[0])
    same = {copies[id].id: id for id in ids}
    for old, line in zip(first, again, strict=True):
        fields = json.loads(line)
        if fields["type"] == "session":
            fields |= {"id": same[fields["id"]], "parent": same.get(fields["parent"])}
        assert fields == json.loads(old)


async def test_a_child_that_comes_alone_hangs_below_nobody(store: Store, home: Path, open_home):
    """A file cannot put a session under one that is here: it becomes one of its own, and is exported as it came (R13)."""
    ids = await family(store)
    lines = await lines_of(store, ids[3])
    copy = await store.import_(lines)
    assert (copy.parent, copy.purpose) == (None, "main")
    again = await lines_of(store, copy.id)
    assert json.loads(again[0]) == {**json.loads(lines[0]), "id": copy.id}
    assert copy.id in [row.id for row in await store.sessions()]


async def test_a_damaged_tree_is_named_and_nothing_is_imported(store: Store):
    """A lost, a doubled, an orphaned or a too deep session is named with its line (S2.14)."""
    ids = await family(store)
    lines = await lines_of(store, ids[0])
    ends = [number for number, line in enumerate(lines, 1) if json.loads(line)["type"] == "end"]
    orphan = [json.dumps({**json.loads(line), "parent": "x"}) if f'"id":"{ids[2]}"' in line else line for line in lines]
    bad = {
        "1 of its sessions are missing": lines[: ends[2]],
        "the file continues after its last line": [*lines, lines[0]],
        "appears twice": [*lines[: ends[2]], *lines[ends[1] : ends[2]]],
        "was started by 'x', which does not come before it": orphan,
        "lines were exported": [*lines[: ends[1] - 2], *lines[ends[1] - 1 :]],
    }
    before = await store.sessions(purpose=None)
    for sentence, damaged_lines in bad.items():
        with pytest.raises(StoreError, match=sentence):
            await store.import_(damaged_lines)
    assert await store.sessions(purpose=None) == before
    head = {**json.loads(lines[0]), "active": None}
    deep = [json.dumps({**head, "id": f"s{number}", "parent": f"s{number - 1}" if number else None}) for number in range(40)]
    ended = [json.dumps({"type": "end", "lines": 2, **({} if number else {"sessions": 39})}) for number in range(40)]
    with pytest.raises(StoreError, match="nest more than 32 deep"):
        await store.import_([line for pair in zip(deep, ended, strict=True) for line in pair])


@settings(max_examples=20)
@given(
    nodes=st.lists(
        st.tuples(st.sampled_from(KINDS), st.dictionaries(TEXTS, TEXTS, max_size=3), st.integers(0, 9)), max_size=12
    ),
    title=TEXTS,
)
def test_any_session_survives_export_and_import(tmp_path_factory: pytest.TempPathFactory, open_home, nodes: list, title: str):
    """Export, import, export gives equal bytes for any tree and any text (S2.14)."""

    async def round_trip(home: Path) -> None:
        store, other = open_home(home / "a"), open_home(home / "b")
        hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
        known: list[str] = []
        for kind, payload, back in nodes:
            if known and back < 4:
                await hold.switch(known[back % len(known)])
            event = Event(type=title or "e", session=hold.session.id, data=payload)
            needed = {"tool": {"call_id": "c"}, "compaction": {"summary": "s"}}.get(kind, {})
            done = await hold.commit(
                Commit(nodes=[NewNode(kind, {**payload, **needed})], events=[event], session={"title": title})
            )
            known.append(done.nodes[0].id)
        lines = await lines_of(store, hold.session.id)
        assert await lines_of(other, (await other.import_(lines)).id) == lines
        store.close()
        other.close()

    asyncio.run(round_trip(tmp_path_factory.mktemp("exchange")))


@settings(max_examples=40)
@given(data=st.data())
def test_a_mangled_export_never_breaks_the_store(tmp_path_factory: pytest.TempPathFactory, open_home, data: st.DataObject):
    """Any change to any line is either refused with a sentence or imported as a whole (S2.14)."""

    async def mangle(home: Path) -> None:
        store = open_home(home)
        hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
        await fill(hold)
        lines = await lines_of(store, hold.session.id)
        number = data.draw(st.integers(0, len(lines) - 1))
        value = json.loads(lines[number])
        key = data.draw(st.sampled_from(sorted(value)))
        value[key] = data.draw(st.none() | st.integers() | st.text(max_size=3) | st.just([]) | st.just({}) | st.floats())
        lines[number] = json.dumps(value)
        before = len(await store.sessions(purpose=None))
        try:
            await store.import_(lines)
        except StoreError as error:
            assert "line" in error.message
            assert len(await store.sessions(purpose=None)) == before
        store.close()

    asyncio.run(mangle(tmp_path_factory.mktemp("mangle")))


async def test_session_row_of_an_import_can_be_held(store: Store, hold: SessionLock, session: SessionRow):
    """An imported session is an ordinary one: it can be resumed (S2.14)."""
    await fill(hold)
    copy = await store.hold((await store.import_(await lines_of(store, session.id))).id)
    await copy.commit(Commit(nodes=[NewNode("tool", {"call_id": "c"})]))
    assert [node.kind for node in copy.path] == ["user", "assistant", "tool"]
    copy.release()

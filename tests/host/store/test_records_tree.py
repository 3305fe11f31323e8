"""The node tree: append-only, ordered by seq, branches left alone."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow.store import Commit, NewNode, Node, SessionLock, SessionRow, Store, StoreError, labels, path_to, tree
from moryflow_sdk import FrozenDict


async def test_nodes_come_back_as_they_were_committed(store: Store, hold: SessionLock, session: SessionRow):
    """What a commit returns, what the holder sees and what a reader loads are equal (S4.19, invariant 6)."""
    payload = {"text": "read a.md", "calls": [{"id": "c1", "name": "read", "arguments": "{}"}], "usage": {"input": 3}}
    committed = await hold.commit(Commit(nodes=[NewNode("user", {"text": "hi"}), NewNode("assistant", payload)]))
    assert committed.nodes == hold.path == await store.path(session.id) == await store.nodes(session.id)
    assert [node.parent for node in hold.path] == [None, hold.path[0].id]
    assert isinstance(hold.path[1].payload, FrozenDict)
    assert hold.path[1].payload["calls"] == ({"id": "c1", "name": "read", "arguments": "{}"},)
    with pytest.raises(TypeError):
        hold.path[1].payload["calls"][0]["id"] = "other"


async def test_hash_chains_parent_kind_and_payload(hold: SessionLock):
    """A node's hash is SHA-256 over its parent's hash, its kind and its canonical payload (S1.6)."""
    nodes = (await hold.commit(Commit(nodes=[NewNode("user", {"b": 1, "a": "é"}), NewNode("note", {"text": "x"})]))).nodes
    first = hashlib.sha256('\nuser\n{"a":"é","b":1}'.encode()).hexdigest()
    assert nodes[0].hash == first
    assert nodes[1].hash == hashlib.sha256(f'{first}\nnote\n{{"text":"x"}}'.encode()).hexdigest()


async def test_switch_moves_the_active_node_and_appends_nothing(store: Store, hold: SessionLock, say, session: SessionRow):
    """Branching moves the active node; the left branch is neither summarized nor pulled in (S1.7)."""
    one, two, three = await say("one", "two", "three")
    await hold.switch(one.id)
    assert hold.path == await store.path(session.id) == [one]
    assert await store.nodes(session.id) == [one, two, three]
    (other,) = await say("other")
    assert other.parent == one.id
    assert hold.path == await store.path(session.id) == [one, other]
    await hold.switch(three.id)
    assert [node.id for node in hold.path] == [one.id, two.id, three.id]


async def test_compaction_and_pruning_leave_what_they_cut(store: Store, hold: SessionLock, say, session: SessionRow):
    """The store is append-only: shortening appends nodes, and the path still has all of them (D14, S1.2)."""
    before = await say("one", "two")
    summary = {"summary": "s", "first_kept_node_id": before[1].id, "tokens_before": 9, "details": {}}
    drafts = [NewNode("prune", {"nodes": {before[0].id: "cut"}}), NewNode("compaction", summary)]
    added = (await hold.commit(Commit(nodes=drafts))).nodes
    void = (await hold.commit(Commit(nodes=[NewNode("marker", {"void": added[1].id})]))).nodes
    assert await store.path(session.id) == hold.path == [*before, *added, *void]


async def test_switch_before_the_first_node_begins_a_second_root(store: Store, hold: SessionLock, say):
    """The first prompt can be redone: there may be several roots."""
    await say("one")
    await hold.switch(None)
    assert hold.path == []
    (again,) = await say("again")
    assert again.parent is None
    assert [branch.node.payload["text"] for branch in tree(await store.nodes(hold.session.id))] == ["one", "again"]


async def test_switch_to_an_unknown_node_is_refused_and_changes_nothing(hold: SessionLock, say):
    """A node of another session, or none, cannot become active."""
    nodes = await say("one")
    with pytest.raises(StoreError, match="no node 'elsewhere'"):
        await hold.switch("elsewhere")
    assert hold.path == nodes


async def test_commit_may_name_the_active_node(store: Store, hold: SessionLock, say, session: SessionRow):
    """A commit's `active` is persisted in the same transaction (invariant 6)."""
    one, _two = await say("one", "two")
    await hold.commit(Commit(nodes=[NewNode("marker", {"label": "here"})], active=one.id))
    assert hold.path == await store.path(session.id) == [one]
    assert (await store.session(session.id)).active == one.id


async def test_empty_commit_keeps_the_active_node(hold: SessionLock, say):
    """A commit without nodes changes only what it names."""
    (one,) = await say("one")
    await hold.commit(Commit(session={"title": "T"}))
    assert (hold.session.title, hold.session.active, hold.path) == ("T", one.id, [one])


async def test_order_is_seq_when_the_clock_jumps(store: Store, hold: SessionLock, say, monkeypatch: pytest.MonkeyPatch):
    """Nothing is ordered by the clock: neither nodes nor sessions (SECURITY §3, clock jumps)."""
    for moment in (2e9, 1.0, 1e9):
        monkeypatch.setattr("time.time", lambda moment=moment: moment)
        await say(str(moment))
        other = await store.create(vault="/vault", agent="build", mode="agent")
    assert [node.payload["text"] for node in await store.nodes(hold.session.id)] == ["2000000000.0", "1.0", "1000000000.0"]
    assert (await store.latest("/vault")) == other


async def test_tokens_are_a_quarter_of_the_text_unless_given(hold: SessionLock):
    """Text, files and arguments count; a given number stands."""
    drafts = [
        NewNode("user", {"text": "x" * 10}),
        NewNode("tool", {"output": "y" * 8}),
        NewNode("assistant", {"text": "", "calls": [{"arguments": "z" * 4}]}),
        NewNode("user", {"text": "", "files": [{"path": "p", "text": "w" * 4}]}, tokens=None),
        NewNode("note", {"text": "long"}, tokens=77),
    ]
    assert [node.tokens for node in (await hold.commit(Commit(nodes=drafts))).nodes] == [3, 2, 1, 1, 77]


def test_tree_of_a_deep_session_needs_no_recursion():
    """A path of 20,000 nodes becomes a tree and a path."""
    nodes = [Node(str(i), "s", i, str(i - 1) if i else None, "user", {}, 0, "", "") for i in range(20_000)]
    (branch,), depth = tree(nodes), 0
    while branch.children:
        (branch,), depth = branch.children, depth + 1
    assert depth == 19_999
    assert path_to({node.id: node for node in nodes}, "19999") == nodes


def test_labels_name_the_node_they_follow_and_the_last_counts():
    """A label is a marker below the node it names (S1.2: nothing is changed for it)."""
    kinds = [
        ("a", None, "user", {}),
        ("b", "a", "marker", {"label": "x"}),
        ("c", "b", "user", {}),
        ("d", "c", "marker", {"label": "x"}),
    ]
    assert labels(Node(i, "s", n, p, k, v, 0, "", "") for n, (i, p, k, v) in enumerate(kinds)) == {"x": "c"}


Given = tuple[str, str | None]


@given(given=st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(["n1", "n2", "n3", None])), max_size=12))
def test_the_last_marker_of_a_label_counts_wherever_it_stands(given: list[Given]):
    """A label names one node, moves to another and is taken back, and nothing else changes (S1.2)."""
    expected: dict[str, str] = {}
    for label, node in given:
        expected.pop(label, None)
        if node:
            expected[label] = node
    markers = [
        Node(f"m{at}", "s", at, "n1", "marker", {"label": label, "node": node}, 0, "", "")
        for at, (label, node) in enumerate(given)
    ]
    found = labels([*markers, Node("o", "s", 99, "n1", "marker", {"mode": "agent"}, 0, "", "")])
    assert list(found.items()) == list(expected.items())


Step = tuple[str, int]


@settings(max_examples=20)
@given(steps=st.lists(st.tuples(st.sampled_from(["append", "append", "switch", "fork"]), st.integers(0, 30)), max_size=25))
def test_tree_rules_hold_for_any_sequence_of_steps(tmp_path_factory: pytest.TempPathFactory, open_home, steps: list[Step]):
    """Appending, switching and forking never change or reorder an existing node (S1.2, S1.7, invariant 6)."""
    asyncio.run(_walk(open_home(tmp_path_factory.mktemp("tree")), steps))


async def _walk(store: Store, steps: list[Step]) -> None:
    row = await store.create(vault="/v", agent="a", mode="agent")
    hold, known = await store.hold(row.id), list[Node]()
    for action, number in steps:
        node = known[number % len(known)] if known else None
        match action:
            case "append":
                known += (await hold.commit(Commit(nodes=[NewNode("user", {"text": str(number)})] * (number % 3 + 1)))).nodes
            case "switch" if node:
                await hold.switch(node.id)
                assert hold.path == path_to({n.id: n for n in known}, node.id)
            case "fork" if node:
                await _check_fork(store, row.id, node, known)
        assert await store.nodes(row.id) == known
        assert await store.path(row.id) == hold.path
        assert [n.seq for n in known] == sorted({n.seq for n in known})
    store.close()


async def _check_fork(store: Store, session: str, node: Node, known: list[Node]) -> None:
    """The copy is the path to `node` with the same ids and hashes, and appending to it leaves the original alone."""
    fork = await store.fork(session, node.id)
    assert fork.origin == {"session": session, "node": node.id}
    expected = [(n.id, n.parent, n.hash, n.payload) for n in path_to({n.id: n for n in known}, node.id)]
    assert [(n.id, n.parent, n.hash, n.payload) for n in await store.path(fork.id)] == expected
    hold = await store.hold(fork.id)
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "in the copy"})]))
    hold.release()
    assert await store.nodes(session) == known


@pytest.mark.parametrize("draft", [NewNode("thought", {}), NewNode("user", {}, id="\ud800"), NewNode("user", {}, id="a\nb")])
async def test_bad_kind_or_id_is_refused(hold: SessionLock, draft: NewNode):
    """Only known kinds, only ids that can be printed."""
    with pytest.raises(StoreError, match=r"node (kind|id)"):
        await hold.commit(Commit(nodes=[draft]))
    assert hold.path == []


async def test_a_node_id_cannot_be_used_twice(hold: SessionLock, say):
    """A repeated id is refused as a whole commit; memory stays with the disk."""
    (one,) = await say("one")
    with pytest.raises(StoreError, match="append-only"):
        await hold.commit(Commit(nodes=[NewNode("user", {"text": "new"}), NewNode("user", {"text": "double"}, id=one.id)]))
    assert hold.path == [one]
    (two,) = await say("two")
    assert two.seq == 2

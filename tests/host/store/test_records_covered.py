"""What a compaction covers is not kept in memory, and nobody can tell from the view."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow.store import CallRow, Commit, NewNode, Node, SessionLock, Store
from moryflow.store.messages import ContextBuilder
from moryflow.store.records import effective, nodes_for_view
from moryflow_sdk import freeze

Draft = tuple[str, dict[str, Any]]
places = st.integers(0, 40).map(lambda number: f"n{number}")
drafts = st.one_of(
    st.builds(lambda text: ("user", {"text": text}), st.sampled_from(["a", "b"])),
    st.builds(lambda text: ("assistant", {"text": text, "calls": []}), st.sampled_from(["c", ""])),
    st.builds(
        lambda id: ("assistant", {"text": "", "calls": [{"id": id, "name": "read", "arguments": "{}"}]}),
        st.sampled_from(["c1", "c2", "c3"]),
    ),
    st.builds(
        lambda id: ("tool", {"call_id": id, "tool": "read", "status": "ok", "output": "o"}), st.sampled_from(["c1", "c2", "c3"])
    ),
    st.builds(
        lambda first, summary, protected: (
            "compaction",
            {"summary": summary, "first_kept_node_id": first, "tokens_before": 1, "details": {"protected": protected}},
        ),
        places,
        st.sampled_from(["S", "S", "T", ""]),
        st.lists(places, max_size=2),
    ),
    st.builds(lambda id: ("prune", {"nodes": {id: "gone"}}), places),
    st.builds(lambda id: ("marker", {"void": id}), places),
    st.just(("marker", {"label": "here"})),
)


def path_of(items: list[Draft]) -> list[Node]:
    return [
        Node(f"n{i}", "s", i, f"n{i - 1}" if i else None, kind, freeze(payload), 1, "", "")
        for i, (kind, payload) in enumerate(items)
    ]


def seen(path: list[Node]) -> tuple[Any, Any]:
    head, _ = effective(path)
    return head, ContextBuilder().build(path)


@given(st.lists(drafts, max_size=40))
@settings(max_examples=300)
def test_the_view_of_what_is_needed_is_the_view_of_everything(items: list[Draft]):
    """Context is a pure function of the path, whether covered nodes are in memory or not (invariant 7, S1.4)."""
    path = path_of(items)
    live = nodes_for_view(reversed(path))
    assert seen(live) == seen(path)
    assert [node for node in path if node in live] == live


def test_covered_nodes_are_not_asked_for():
    """Reading stops at the first kept node: an endless history costs what is visible (S1.3)."""
    path = path_of([("user", {"text": "x"})] * 100 + [("compaction", {"summary": "S", "first_kept_node_id": "n98"})])
    asked = []

    def upwards():
        for node in reversed(path):
            asked.append(node.id)
            yield node

    assert [node.id for node in nodes_for_view(upwards())] == ["n98", "n99", "n100"]
    assert asked == ["n100", "n99", "n98"]


def test_protected_nodes_stay_with_what_prunes_them():
    """What a plugin protected is shown, as pruned as it was (D20)."""
    path = path_of([
        ("user", {"text": "x"}),
        ("assistant", {"text": "", "calls": [{"id": "c1", "name": "read", "arguments": "{}"}]}),
        ("tool", {"call_id": "c1", "tool": "read", "status": "ok", "output": "long"}),
        ("prune", {"nodes": {"n2": "short"}}),
        ("prune", {"nodes": {"n0": "no"}}),
        ("user", {"text": "y"}),
        ("compaction", {"summary": "S", "first_kept_node_id": "n5", "details": {"protected": ["n1", "n2"]}}),
    ])  # fmt: skip
    live = nodes_for_view(reversed(path))
    assert [node.id for node in live] == ["n1", "n2", "n3", "n5", "n6"]
    assert [message.text for message in ContextBuilder().build(live)][3] == "short"


@given(steps=st.lists(st.one_of(drafts, st.integers(0, 60)), min_size=1, max_size=20))
@settings(max_examples=20)
def test_the_held_path_shows_what_the_whole_one_shows(
    tmp_path_factory: pytest.TempPathFactory, open_home, steps: list[Draft | int]
):
    """After any commits, undoings and switches the holder sees the view of the whole path (invariant 7, S1.7)."""
    asyncio.run(_walk(open_home(tmp_path_factory.mktemp("covered")), steps))


async def _walk(store: Store, steps: list[Draft | int]) -> None:
    row = await store.create(vault="/v", agent="a", mode="agent")
    hold = await store.hold(row.id)
    ids: list[str] = []
    for step in steps:
        if not isinstance(step, int):
            ids.append(f"n{len(ids)}")
            await hold.commit(Commit(nodes=[NewNode(*step, id=ids[-1])]))
        elif ids:
            await hold.switch(ids[step % len(ids)])
        assert seen(hold.path) == seen(await store.path(row.id))
    hold.release()
    again = await store.hold(row.id)
    assert again.path == hold.path
    again.release()
    store.close()


async def test_an_undone_compaction_brings_the_nodes_back(store: Store, hold: SessionLock):
    """Nothing was deleted: what was only on the disk is there again (S1.4)."""
    await hold.commit(Commit(nodes=[NewNode("user", {"text": str(number)}, id=f"n{number}") for number in range(4)]))
    folded = {"summary": "S", "first_kept_node_id": "n3", "tokens_before": 9, "details": {}}
    await hold.commit(Commit(nodes=[NewNode("compaction", folded, id="k")]))
    assert [node.id for node in hold.path] == ["n3", "k"]
    await hold.commit(Commit(nodes=[NewNode("marker", {"void": "k"})]))
    assert hold.path == await store.path(hold.session.id)
    assert [node.id for node in hold.path][:5] == ["n0", "n1", "n2", "n3", "k"]


async def test_the_ids_of_all_calls_are_known(store: Store, hold: SessionLock):
    """A call that repeats an id from before a compaction is told apart from it (S4.6)."""
    stamp = "2026-01-01T00:00:00.000Z"
    rows = [CallRow(f"c{n}", hold.session.id, "t", "n0", 1, "read", "{}", "", "completed", created=stamp) for n in range(3)]
    await hold.commit(Commit(nodes=[NewNode("assistant", {"text": "", "calls": []}, id="n0")], calls=rows))
    assert await store.call_ids(hold.session.id) == {"c0", "c1", "c2"}

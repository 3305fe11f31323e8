"""Any JSON, any text, any size: it comes back as it went in, or is refused with a sentence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow.store import Commit, HookCallRow, NewNode, SessionLock, SessionRow, Store, StoreError

TEXTS = st.text(st.characters(), max_size=20) | st.sampled_from(["\ud800", "a\x00b", "\udcff.md", "é\u2028\x85", "😀"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(payload=st.dictionaries(TEXTS, JSON, max_size=4))
def test_any_json_payload_survives_unchanged(tmp_path_factory: pytest.TempPathFactory, open_home, payload: dict[str, object]):
    """Lone surrogates, NUL and any JSON come back as they went in (SECURITY §3, invalid UTF-8)."""

    async def round_trip() -> None:
        store = open_home(tmp_path_factory.mktemp("payload"))
        hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
        await hold.commit(Commit(nodes=[NewNode("tool", payload)]))
        (node,) = await store.path(hold.session.id)
        store.close()
        assert json.loads(json.dumps(node.payload)) == json.loads(json.dumps(payload))

    asyncio.run(round_trip())


@pytest.mark.parametrize("name", ["\udcff", "a\x00b", "/vault/\udc80\x00é"])
async def test_strange_text_in_columns_survives(store: Store, name: str):
    """A folder or title whose name is not UTF-8 can be stored, found and exported (SECURITY §3)."""
    row = await store.create(vault=name, agent="a", mode="agent")
    hold = await store.hold(row.id)
    await hold.commit(Commit(session={"title": name, "grants": [{"pattern": name}]}))
    assert await store.latest(name) == hold.session
    assert (hold.session.title, hold.session.grants) == (name, ({"pattern": name},))
    assert (await store.import_([line async for line in store.export(row.id)])).title == name


@pytest.mark.parametrize(
    ("value", "stored"), [(float("nan"), None), (float("inf"), None), ([1.5, "x", float("-inf")], (1.5, "x", None))]
)
async def test_numbers_that_json_lacks_become_null(hold: SessionLock, value: object, stored: object):
    """A tool's NaN does not stop a commit."""
    (node,) = (await hold.commit(Commit(nodes=[NewNode("tool", {"metadata": value})]))).nodes
    assert node.payload["metadata"] == stored


@pytest.mark.parametrize("strange", [(0,), (2,), (4,), (0, 1), (0, 2, 4), range(5)])
async def test_rows_with_strange_text_stand_once_and_in_order(store: Store, hold: SessionLock, strange: Sequence[int]):
    """Rows that are written together lose none and double none, wherever text is that UTF-8 cannot carry (SECURITY §3)."""
    plugins = [f"{number}\udcff" if number in strange else str(number) for number in range(5)]
    session = hold.session.id
    rows = [HookCallRow(session, "t1", 1, "event", plugin, "", 0, "ok", 1, None, None, 1) for plugin in plugins]
    await hold.commit(Commit(hook_calls=rows))
    assert [row.plugin for row in await store.hook_calls(session)] == plugins


def _deep() -> list[object]:
    value: list[object] = []
    for _ in range(200_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [object(), {1: "a", "b": 2}, b"bytes", [float("nan"), b""], _deep()],
    ids=["object", "keys", "bytes", "nan", "deep"],
)
async def test_what_is_not_json_is_refused_and_nothing_is_stored(hold: SessionLock, store: Store, value: object):
    """A payload that could not be read back is refused with a sentence."""
    with pytest.raises(StoreError, match="cannot be stored as JSON"):
        await hold.commit(Commit(nodes=[NewNode("user", {"text": "kept out"}), NewNode("tool", {"metadata": value})]))
    assert hold.path == await store.nodes(hold.session.id) == []


async def test_a_node_of_50_megabytes(store: Store, hold: SessionLock, session: SessionRow):
    """A huge node is stored and read back (SECURITY §3)."""
    text = "0123456789" * 5_000_000
    await hold.commit(Commit(nodes=[NewNode("tool", {"output": text})]))
    (node,) = await store.path(session.id)
    assert node.payload["output"] == text

"""Full-text search over what people, models and tools wrote."""

from __future__ import annotations

import pytest
from moryflow.store import Commit, NewNode, SessionLock, SessionRow, Store
from moryflow.store.sqlite import search as fulltext

DRAFTS = [
    NewNode("user", {"text": "Where is the Zürich report?"}),
    NewNode("assistant", {"text": "It is in reports/zurich.md", "calls": [{"arguments": "hiddenword"}]}),
    NewNode("tool", {"call_id": "c", "output": "# Report\nRevenue in foo_bar rose by 100%\n" + "filler " * 50}),
    NewNode("note", {"text": "a note about revenue"}),
    NewNode("user", {"text": "報告書はどこですか"}),
]


async def found(store: Store, text: str) -> list[str]:
    return sorted(hit.kind for hit in await store.search(text))


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("zurich", ["assistant", "user"]),
        ("REPORT", ["assistant", "tool", "user"]),
        ("rev", ["tool"]),
        ("revenue rose", ["tool"]),
        ("revenue zurich", []),
        ("foo_bar", ["tool"]),
        ("100%", ["tool"]),
        ("%", ["tool"]),
        ('" OR 1=9 --', []),
        ("hiddenword", []),
        ("告書", ["user"]),
        ("_", ["tool"]),
        ("", []),
        (" \ud800 ", []),
        ("a\x00q", []),
        ("x" * 100_000, []),
    ],
)
@pytest.mark.parametrize("index", [True, False], ids=["index", "scan"])
async def test_search_finds_text_of_users_models_and_tools(
    store: Store, hold: SessionLock, text: str, kinds: list[str], index: bool, monkeypatch: pytest.MonkeyPatch
):
    """All words must occur; any input is a search and never an error; without FTS5 the nodes are scanned (S1.6)."""
    await hold.commit(Commit(nodes=DRAFTS))
    if not index:
        monkeypatch.setattr(fulltext, "_CREATE", fulltext._CREATE.replace("fts5", "no_such_module"))
        if text in ("zurich", "revenue zurich"):
            return  # the scan does not fold accents and takes words as they stand
    assert await found(store, text) == kinds


@pytest.mark.parametrize("text", ["résumé", "re\u0301sume\u0301", "RE\u0301SUME\u0301", "resume", "x\u0302y"])
@pytest.mark.parametrize("said", ["my résumé x\u0302y", "my re\u0301sume\u0301 x\u0302y"], ids=["composed", "decomposed"])
async def test_accents_are_found_however_they_are_composed(store: Store, hold: SessionLock, text: str, said: str):
    """An accent that stands on its own, as in what is copied from file names on macOS, parts no word (S1.6)."""
    await hold.commit(Commit(nodes=[NewNode("user", {"text": said})]))
    assert await found(store, text) == ["user"]


async def test_hit_shows_where_and_a_line_of_it(store: Store, hold: SessionLock, session: SessionRow):
    """A hit names session and node and shows one line around the word."""
    (node,) = (await hold.commit(Commit(nodes=[NewNode("tool", {"output": "x " * 200 + "\nthe needle\n" + "y " * 200})]))).nodes
    (hit,) = await store.search("needle")
    assert (hit.session, hit.node, hit.kind) == (session.id, node.id, "tool")
    assert hit.snippet.startswith("…x x")
    assert " the needle y y" in hit.snippet
    assert "\n" not in hit.snippet


async def test_new_nodes_are_found_and_purged_ones_are_not(store: Store, hold: SessionLock):
    """The index follows commits and purges, also when row numbers are used again."""
    other = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "alpha"})]))
    await other.commit(Commit(nodes=[NewNode("user", {"text": "alpha beta"})] * 3))
    assert len(await store.search("alpha")) == 4
    other.release()
    await store.delete(other.session.id)
    assert len(await store.search("alpha")) == 1
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "gamma"}), NewNode("user", {"text": "delta"})]))
    assert [len(await store.search(word)) for word in ("alpha", "beta", "gamma", "delta")] == [1, 0, 1, 1]


async def test_more_nodes_than_one_batch(store: Store, hold: SessionLock):
    """The index is built in small transactions until nothing is left."""
    await hold.commit(Commit(nodes=[NewNode("user", {"text": f"word{number}"}) for number in range(1200)]))
    assert len(await store.search("word1199")) == 1
    assert len(await store.search("word", limit=5)) == 5
    assert len(await store.search("ord11", limit=5)) == 0


async def test_copies_and_imports_are_found_too(store: Store, hold: SessionLock, session: SessionRow):
    """What a fork or an import brings is searched like what was said here (S1.6)."""
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "findable"})]))
    copy = await store.fork(session.id)
    brought = await store.import_([line async for line in store.export(session.id)])
    assert {hit.session for hit in await store.search("findable")} == {session.id, copy.id, brought.id}

"""Everything a commit carries becomes true in one transaction, or none of it."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path

import pytest
from moryflow.store import CallRow, Commit, HookCallRow, NewNode, RunRow, SessionLock, SessionRow, Store, StoreError, unfinished
from moryflow_sdk import Artifact, Event

ARGS = '{"path":"a"}'


def call(session: str, node: str, id: str = "c1", state: str = "pending") -> CallRow:
    return CallRow(
        id,
        session,
        "t1",
        node,
        1,
        "read",
        ARGS,
        sha256(ARGS.encode()).hexdigest(),
        state,
        created="2026-01-01",
        updated="2026-01-01",
    )


def artifact(session: str, id: str = "out1") -> Artifact:
    return Artifact(
        id=id, session=session, call_id="c1", tool="bash", path="/o", size=3, sha256="s", created="2026", expires="2027"
    )


async def test_all_records_of_a_commit_come_back(store: Store, hold: SessionLock, session: SessionRow):
    """Nodes, calls, runs, events, ledger, plugin state, artifacts and session fields are one transaction (S4.19, D62)."""
    ruling = {"verdict": "allow", "rules": [1, {"file": "config.jsonc"}]}
    run = RunRow("t1", session.id, "main", "build", "m", "set1", usage={"input": 3}, started="2026")
    line = HookCallRow(session.id, "t1", 1, "tool_gate", "permission", "ph", 0, "ok", 12, "c1", {"a": [1]}, 2)
    event = Event(type="tool.result", session=session.id, ts="2026", turn="t1", step=1, data={"call_id": "c1", "list": [1]})
    row = call(session.id, "n1")._replace(ruling=ruling)
    commit = Commit(
        nodes=[NewNode("assistant", {"text": "x"}, id="n1")], calls=[row], runs=[run], events=[event], hook_calls=[line],
        plugin_state={("doom", "session"): {"n": 1}, ("doom", "turn:t1"): [1, "a"]}, artifacts=[artifact(session.id)],
        session={"title": "T", "mode": "full_access", "model": "m", "agent": "plan", "grants": [{"domain": "edit"}]},
    )  # fmt: skip
    committed = await hold.commit(commit)
    assert await store.calls(session.id) == [row._replace(ruling={"verdict": "allow", "rules": (1, {"file": "config.jsonc"})})]
    assert await store.runs(session.id) == [run]
    assert await store.hook_calls(session.id) == [line._replace(delta={"a": (1,)})]
    assert committed.events == await store.events(session.id) == [event.replace(seq=1)]
    assert await store.plugin_state(session.id) == {("doom", "session"): {"n": 1}, ("doom", "turn:t1"): (1, "a")}
    assert await store.artifacts(session.id) == [await store.artifact("out1")] == [artifact(session.id)]
    now = await store.session(session.id)
    assert now == hold.session
    assert (now.title, now.mode, now.model, now.agent, now.grants) == ("T", "full_access", "m", "plan", ({"domain": "edit"},))


@pytest.mark.parametrize(
    "bad",
    [
        {"session": {"epoch": 9}},
        {"nodes": [NewNode("thought", {})]},
        {"active": "nowhere"},
        {"plugin_state": {("p", "session"): object()}},
        {"calls": [call("another", "n")]},
        {"calls": [call("", "n", state="lost")]},
        {"events": [Event(type="x", session="another")]},
    ],
    ids=lambda bad: next(iter(bad)),
)
async def test_one_bad_part_undoes_the_whole_commit(store: Store, hold: SessionLock, session: SessionRow, bad: dict[str, list]):
    """After a failed commit neither the disk nor the holder's memory has any of it (invariant 6)."""
    if "calls" in bad and not bad["calls"][0].session:
        bad = {"calls": [bad["calls"][0]._replace(session=session.id)]}
    good = {"nodes": [NewNode("user", {"text": "x"})], "session": {"title": "T"}, "artifacts": [artifact(session.id)]}
    before = hold.session
    with pytest.raises(StoreError):
        await hold.commit(Commit(**{**good, **bad}))
    assert hold.path == await store.nodes(session.id) == await store.artifacts() == await store.events(session.id) == []
    assert await store.session(session.id) == hold.session == before
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "goes on"})]))
    assert len(hold.path) == 1


async def test_call_state_moves_on_and_keeps_when_it_began(store: Store, hold: SessionLock, session: SessionRow):
    """A call is one row that moves from pending to its end; equal ids below another node are other calls."""
    for state in ("pending", "waiting", "running", "completed"):
        row = call(session.id, "n1", state=state)._replace(created=state, updated=state)
        await hold.commit(Commit(calls=[row]))
    await hold.commit(Commit(calls=[call(session.id, "n2", state="running")]))
    first, second = await store.calls(session.id)
    assert (first.state, first.created, first.updated) == ("completed", "pending", "completed")
    assert await store.calls(states={"running"}) == [second]
    assert await store.calls(since="2026-01-02") == [first]
    assert await store.calls(session.id, states=set()) == []


async def test_event_numbers_grow_over_all_sessions_and_never_come_back(store: Store, hold: SessionLock, session: SessionRow):
    """A client that resumes after a number misses nothing, even when the newest session was purged (S4.19)."""
    other = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    await hold.commit(Commit(events=[Event(type="a", session=session.id)]))
    await other.commit(Commit(events=[Event(type="b", session=other.session.id)] * 2))
    assert [event.seq for event in await store.events(None)] == [1, 2, 3]
    assert [event.seq for event in await store.events(None, after=1, limit=1)] == [2]
    other.release()
    await store.delete(other.session.id)
    (event,) = (await hold.commit(Commit(events=[Event(type="c", session=session.id)]))).events
    assert event.seq == 4
    assert [event.type for event in await store.events(session.id, after=1)] == ["c"]


async def test_plugin_state_is_replaced_and_removed(store: Store, hold: SessionLock, session: SessionRow):
    """State of a turn goes with ``None``; the rest stays."""
    await hold.commit(Commit(plugin_state={("p", "turn:1"): 1, ("p", "session"): 1}))
    await hold.commit(Commit(plugin_state={("p", "turn:1"): None, ("p", "session"): 2}))
    assert await store.plugin_state(session.id) == {("p", "session"): 2}


async def test_artifact_expires_and_its_row_stays(store: Store, hold: SessionLock, session: SessionRow):
    """The file may expire; the row stays and says so (D62)."""
    await hold.commit(Commit(artifacts=[artifact(session.id), artifact(session.id, "out2")]))
    await store.update_artifact("out1", state="expired")
    assert [(a.id, a.state) for a in await store.artifacts()] == [("out2", "stored"), ("out1", "expired")]
    assert [a.id for a in await store.artifacts(state="stored")] == ["out2"]
    assert await store.artifact("nothing") is None
    with pytest.raises(StoreError, match="'sha256'"):
        await store.update_artifact("out1", sha256="other")


async def test_ledger_is_filtered_by_turn_and_plugin(store: Store, hold: SessionLock, session: SessionRow):
    """Trace and bisect read the ledger by turn and plugin."""
    rows = [HookCallRow(session.id, turn, 1, "tool_gate", plugin, "", 0, "ok", 1) for turn in "ab" for plugin in "pq"]
    await hold.commit(Commit(hook_calls=rows))
    assert await store.hook_calls(session.id, turn="a", plugin="q") == [rows[1]]
    assert await store.hook_calls(session.id, plugin="p") == [rows[0], rows[2]]


async def test_calls_that_share_a_row_are_read_one_by_one(store: Store, hold: SessionLock, session: SessionRow):
    """What changed nothing is counted by step, and nobody who reads the ledger sees that (ARCHITECTURE §4, ledger)."""
    calls = [["tool_gate", plugin, "hash", place, 7, "c1", 2] for place, plugin in enumerate("pqr")]
    changed = HookCallRow(session.id, "a", 1, "tool_after", "q", "hash", 0, "changed", 5, "c1", {"output": "x"})
    for step in (1, 2):
        await hold.commit(Commit(hook_calls=[changed, HookCallRow.quiet(session.id, "a", step, calls)]))
    each = [
        HookCallRow(session.id, "a", 2, "tool_gate", name, "hash", at, "ok", 7, "c1", None, 2) for at, name in enumerate("pqr")
    ]
    assert (await store.hook_calls(session.id))[-3:] == each
    assert await store.hook_calls(None, newest=2) == [each[2], each[1]]
    assert [row.step for row in await store.hook_calls(session.id, plugin="r")] == [1, 2]
    assert await store.hook_calls(session.id, plugin="q", newest=3) == [each[1], changed, each[1]._replace(step=1)]
    lines = [json.loads(line) for line in [line async for line in store.export(session.id)]]
    assert [line["plugin"] for line in lines if line["type"] == "hook_call"] == ["q", "p", "q", "r"] * 2


async def test_commits_made_at_once_follow_one_another(store: Store, hold: SessionLock, session: SessionRow):
    """Parallel commits of one holder form one path."""
    await asyncio.gather(*(hold.commit(Commit(nodes=[NewNode("note", {"text": str(i)})])) for i in range(20)))
    assert [node.payload["text"] for node in hold.path] == [str(i) for i in range(20)]
    assert hold.path == await store.path(session.id)


async def test_sessions_are_found_by_prefix_and_listed_by_last_use(store: Store):
    """A unique beginning of an id is enough; children and hidden sessions are listed when asked for."""
    for id in ("aaa1", "aab1", "aab"):
        await store.create(vault="/v", agent="a", mode="agent", id=id)
    await store.create(vault="/v", agent="a", mode="agent", parent="aaa1", purpose="child", id="kid")
    assert (await store.session("aaa")).id == "aaa1"
    assert (await store.session("aab")).id == "aab"
    for name, code in (("aa", "ambiguous"), ("zz", "not_found"), ("", "not_found"), ("aa%", "not_found")):
        with pytest.raises(StoreError) as caught:
            await store.session(name)
        assert caught.value.code == code
    (await store.hold("aaa1")).release()
    assert [row.id for row in await store.sessions()] == ["aaa1", "aab", "aab1"]
    assert [row.id for row in await store.sessions(1, vault="/v")] == ["aaa1"]
    assert [row.id for row in await store.sessions(purpose=None, parent="aaa1")] == ["kid"]
    assert await store.latest("/elsewhere") is None
    with pytest.raises(StoreError, match="cannot be the id"):
        await store.create(vault="/v", agent="a", mode="agent", id="../../etc/passwd")


@pytest.mark.parametrize(
    ("state", "action"),
    [(None, "judge"), ("pending", "judge"), ("waiting", "judge"), ("running", "interrupted"), ("completed", "interrupted")],
)
async def test_unfinished_call_is_judged_again_or_interrupted(
    hold: SessionLock, session: SessionRow, state: str | None, action: str
):
    """A call with a recorded start and no result is interrupted, never run twice; one that waits is judged again (D65)."""
    requests = [{"id": "done", "name": "read", "arguments": "{}"}, {"id": "open", "name": "bash", "arguments": "{}"}]
    await hold.commit(Commit(nodes=[NewNode("assistant", {"text": "", "calls": requests}, id="n")]))
    await hold.commit(Commit(nodes=[NewNode("tool", {"call_id": "done"}), NewNode("note", {"text": "seen"})]))
    rows = [call(session.id, "n", "open", state)] if state else []
    found = unfinished(hold.path, [*rows, call(session.id, "before", "open", "completed")])
    assert [(u.request["id"], u.row, u.action) for u in found] == [("open", rows[0] if rows else None, action)]


async def test_nothing_is_unfinished_without_open_calls(hold: SessionLock):
    """A path without an assistant, or whose calls all have results, is whole."""
    assert unfinished(hold.path, []) == []
    calls = [{"id": "c", "name": "read", "arguments": "{}"}]
    await hold.commit(Commit(nodes=[NewNode("assistant", {"calls": calls}), NewNode("tool", {"call_id": "c"})]))
    assert unfinished(hold.path, []) == []


async def test_a_fork_can_be_resumed_but_brings_no_permission(store: Store, hold: SessionLock, session: SessionRow):
    """The copy has the path's calls and the plugins' state; mode, grants and questions stay with the original."""
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "q"})], session={"mode": "full_access", "grants": [{"a": 1}]}))
    (left,) = (await hold.commit(Commit(nodes=[NewNode("assistant", {"calls": []}, id="left")]))).nodes
    await hold.commit(Commit(calls=[call(session.id, "left")], plugin_state={("p", "session"): 1, ("p", "turn:1"): 1}))
    await hold.switch(left.parent)
    await hold.commit(Commit(nodes=[NewNode("assistant", {"calls": []}, id="right")], calls=[call(session.id, "right", "c2")]))
    fork = await store.fork(session.id, "left", title="copy")
    assert [row.node for row in await store.calls(fork.id)] == ["left"]
    assert await store.plugin_state(fork.id) == {("p", "session"): 1}
    assert (fork.mode, fork.grants, fork.title, fork.vault) == ("agent", (), "copy", "/vault")
    with pytest.raises(StoreError, match="no node 'nowhere'"):
        await store.fork(session.id, "nowhere")
    empty = await store.create(vault="/v", agent="a", mode="agent")
    assert (await store.fork(empty.id)).active is None


async def test_what_ended_turns_cost_is_summed_by_session_agent_folder_and_time(store: Store, tmp_path: Path):
    """A sub-agent's cost is in its parent's turn, a summary's in its turn's; by agent each counts alone (S0.47)."""
    spent = {}
    for name in ("work", "work/deep", "workshop"):
        spent[name] = await store.create(vault=str(tmp_path / name), agent="build", mode="agent")
    child = await store.create(
        vault=str(tmp_path / "work"), agent="look", mode="agent", parent=spent["work"].id, purpose="child"
    )
    rows = [
        (spent["work"], "main", "build", 4.0, "2026-01-01T10"), (child, "child", "look", 1.0, "2026-01-01T10"),
        (spent["work"], "compact", "build", 0.5, "2026-01-01T10"), (spent["work/deep"], "main", "build", 2.0, "2026-01-02T10"),
        (spent["workshop"], "main", "plan", 8.0, "2026-01-02T11"), (spent["workshop"], "main", "plan", None, "2026-01-02T12"),
    ]  # fmt: skip
    for number, (row, purpose, agent, cost, started) in enumerate(rows):
        hold = await store.hold(row.id)
        run = RunRow(f"t{number}", row.id, purpose, agent, "m", "", "ended", "completed", cost=cost, started=started)
        await hold.commit(Commit(runs=[run]))
        hold.release()
    assert await store.spent() == 14.0
    assert await store.spent(since="2026-01-02") == 10.0
    assert await store.spent(session=spent["work"].id) == 4.0
    assert await store.spent(folder=str(tmp_path / "work")) == 6.0
    assert await store.spent(folder="/") == 14.0
    assert (await store.spent(agent="look"), await store.spent(agent="build")) == (1.0, 6.0)
    assert await store.spent(agent="nobody", since="2030") == 0.0

"""Questions to a person outlive the process that asked them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from moryflow.store import ApprovalRow, Commit, SessionLock, SessionRow, Store, StoreError


def question(session: str, id: str = "q1") -> ApprovalRow:
    request = {"domain": "edit", "targets": ["vault:/a.md"], "reason": "rule", "remember": None, "tool": "write", "args": {}}
    return ApprovalRow(id, session, "c1", "t1", "tool", request, created="2026")


async def test_question_is_found_after_a_restart(store: Store, hold: SessionLock, session: SessionRow, home: Path, open_home):
    """A pending approval is stored with all that a person must see (D65)."""
    await hold.commit(Commit(approvals=[question(session.id)]))
    store.close()
    again = open_home(home)
    (row,) = await again.approvals(state="pending")
    assert row == question(session.id)._replace(request={**question(session.id).request, "targets": ("vault:/a.md",)})
    assert await again.approvals(session.id) == [await again.approval("q1")] == [row]
    again.close()


async def test_the_first_answer_stands(store: Store, hold: SessionLock, session: SessionRow):
    """A doubled answer changes nothing and returns the first one (D65, SECURITY §3)."""
    await hold.commit(Commit(approvals=[question(session.id)]))
    first = await store.reply("q1", "once", message="go", by="user")
    assert (first.state, first.reply, first.message, first.by) == ("replied", "once", "go", "user")
    assert await store.reply("q1", "reject", by="server") == first
    await hold.commit(Commit(approvals=[question(session.id)._replace(state="expired")]))
    assert await store.approval("q1") == first
    assert await store.approvals(state="pending") == []
    assert await store.approvals(state="replied") == [first]


async def test_of_many_answers_at_once_one_stands(store: Store, hold: SessionLock, session: SessionRow, home: Path, open_home):
    """Two processes that answer at the same time agree on the answer (D65)."""
    await hold.commit(Commit(approvals=[question(session.id)]))
    other = open_home(home)
    answers = [(store if n % 2 else other).reply("q1", "once" if n % 3 else "reject", by=str(n)) for n in range(12)]
    assert len(set(map(str, await asyncio.gather(*answers)))) == 1
    other.close()


async def test_a_late_answer_to_an_expired_question(store: Store, hold: SessionLock, session: SessionRow):
    """A late reply is not taken for an approval (SECURITY §3)."""
    await hold.commit(Commit(approvals=[question(session.id)]))
    await hold.commit(Commit(approvals=[question(session.id)._replace(state="expired")]))
    assert (await store.reply("q1", "always")).state == "expired"
    assert [row.id for row in await store.approvals(state="expired")] == ["q1"]


@pytest.mark.parametrize(("id", "reply", "code"), [("nobody", "once", "not_found"), ("q1", "yes", "invalid")])
async def test_misaddressed_and_unknown_answers(
    store: Store, hold: SessionLock, session: SessionRow, id: str, reply: str, code: str
):
    """An answer to nothing, or one that is not an answer, is a sentence; the question stays open (SECURITY §3)."""
    await hold.commit(Commit(approvals=[question(session.id)]))
    with pytest.raises(StoreError, match="Next:") as caught:
        await store.reply(id, reply)
    assert caught.value.code == code
    assert (await store.approval("q1")).state == "pending"


async def test_an_answer_needs_no_hold(
    store: Store, hold: SessionLock, session: SessionRow, home: Path, implementation: str, python
):
    """Another process answers while the turn holds the session (D65)."""
    await hold.commit(Commit(approvals=[question(session.id)]))
    python(
        """
        import asyncio, pkgutil, sys
        from pathlib import Path
        store = pkgutil.resolve_name(sys.argv[1])(Path(sys.argv[2]))
        asyncio.run(store.reply("q1", "always", by="shell"))
        """,
        implementation,
        str(home),
    )
    assert (await store.approval("q1")).by == "shell"
    await hold.commit(Commit(session={"title": "the epoch is the same"}))

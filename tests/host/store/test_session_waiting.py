"""Waiting for a session that another process holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from moryflow import open_host
from moryflow.store import SessionBusy


async def test_what_the_other_changed_meanwhile_holds(tmp_path: Path) -> None:
    """Who waited goes on with the agent, mode and messages that are there when the turn comes (ARCHITECTURE §5)."""
    (tmp_path / "vault").mkdir()
    async with await open_host(tmp_path / "home", environ={}) as one, await open_host(tmp_path / "home", environ={}) as two:
        first = await one.new_session(tmp_path / "vault", model="script:none")
        await first.keep()
        second = await two.resume(tmp_path / "vault", first.id)
        with pytest.raises(SessionBusy):
            await second.keep(wait=0.1)
        waiting = asyncio.create_task(second.keep(wait=30))
        await asyncio.sleep(0.1)
        await first.set_agent("plan")
        await first.set_mode("full_access")
        assert not waiting.done()
        first.release()
        await waiting
        assert (second.agent.id, second.mode, len(await two.store.path(second.id))) == ("plan", "full_access", 2)

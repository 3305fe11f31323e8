"""What a host keeps of what it has done."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from moryflow import open_host
from moryflow.runtime.session import Session


async def test_single_calls_of_tools_leave_no_session_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that calls tools for as long as it lives does not grow by a session with each call (S0.69)."""
    monkeypatch.setenv("HOME", str(tmp_path))
    home, vault = tmp_path / "home", tmp_path / "vault"
    home.mkdir(mode=0o700)
    vault.mkdir()
    async with await open_host(home) as host:
        called = [await host.call_tool("ls", {"path": "."}, vault=vault) for _ in range(3)]
        assert [one.result.status for one in called] == ["ok"] * 3
        gc.collect()
        kept = {one.id for one in gc.get_objects() if type(one) is Session}  # of all tests in this process
        assert kept.isdisjoint({one.session for one in called})

"""Hosts that run while plugins come, go and are brought back; and what is remembered of a load."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from moryflow import open_host
from moryflow.config import load_config
from moryflow.packages.inventory import rows
from moryflow.plugins.discovery import PluginSettings

GOOD = """from moryflow_sdk import hookimpl, tool
@tool(domain="read")
def {name}_says() -> str:
    "Say it."
    return "it"
@hookimpl
def tools():
    return [{name}_says]
"""
FAILING = "from moryflow_sdk import hookimpl\n@hookimpl\ndef chat_params(params):\n    raise ValueError('no')\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / "plugins").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, into which a package can be installed while a host runs."""
    folder = tmp_path / "site"
    folder.mkdir()
    os.utime(folder, (1e9, 1e9))  # what has just changed is not remembered; this is about what is
    monkeypatch.syspath_prepend(str(folder))
    return folder


def put(site: Path, name: str) -> None:
    """Lay a package out as an installer does."""
    (site / f"{name}.py").write_text(GOOD.format(name=name), "utf-8")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[moryflow.plugins]\n{name} = {name}\n", "utf-8")


async def test_what_is_installed_while_a_host_runs_is_there_from_the_next_turn(home: Path, site: Path) -> None:
    """The entry points are looked up again when a folder of the path has changed (invariant 8)."""
    async with await open_host(home, environ={}) as host:
        before = host.plugin_set
        put(site, "late_comer")
        assert await host.refresh()
        assert "late_comer_says" in host.tools and "late_comer_says" not in before.tools
        (site / "late_comer-1.0.dist-info" / "entry_points.txt").unlink()
        (site / "late_comer-1.0.dist-info" / "METADATA").unlink()
        (site / "late_comer-1.0.dist-info").rmdir()
        assert await host.refresh() and "late_comer_says" not in host.tools
    sys.modules.pop("late_comer", None)


async def test_a_load_is_remembered_and_a_change_makes_it_old(home: Path) -> None:
    """The list says what became of a plugin without loading it, and when that may not be so any more (R18)."""
    file = home / "plugins" / "mine.py"
    file.write_text(GOOD.format(name="mine"), "utf-8")
    file.chmod(0o600)
    config = load_config(home, environ={})

    def mine() -> Any:
        return next(row for row in rows(home, config, PluginSettings()) if row.name == "mine")

    assert mine().record.status == "pending" and mine().known is None
    async with await open_host(home, environ={}):
        pass
    assert mine().record.status == "loaded" and mine().record.tools == ("mine_says",)
    written = (home / "cache" / "plugins.json").stat().st_mtime_ns
    async with await open_host(home, environ={}):
        pass
    assert (home / "cache" / "plugins.json").stat().st_mtime_ns == written
    file.write_text("def (\n", "utf-8")
    assert mine().record.status == "pending" and "changed since" in mine().record.reason
    async with await open_host(home, environ={}):
        pass
    assert mine().record.status == "failed" and mine().record.line == 1


async def test_a_quarantine_lasts_as_long_as_the_session_is_held(home: Path, tmp_path: Path) -> None:
    """The next process calls the plugin again; what happened is in the ledger (D15)."""
    file = home / "plugins" / "bad.py"
    file.write_text(FAILING, "utf-8")
    file.chmod(0o600)
    script = tmp_path / "script.json"
    script.write_text(json.dumps(["fine"] * 9), "utf-8")
    async with await open_host(home, environ={}, flags={"model": f"script:{script}"}) as host:
        session = await host.new_session(tmp_path, model=f"script:{script}")
        await session.keep()
        for _ in range(4):
            await session.prompt("hi")
        assert host.quarantined("bad") == ["chat_params"] and host.quarantined("other") == []
        session.release()
        assert host.quarantined("bad") == []
        calls = await host.store.hook_calls(None, plugin="bad", newest=100)
        assert {row.outcome for row in calls} == {"failed", "quarantined"}

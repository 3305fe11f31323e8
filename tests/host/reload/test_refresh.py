"""A host takes what was saved, between turns."""

from __future__ import annotations

import time

import pytest
from moryflow import open_host
from moryflow.reload import HomeWatch

TOOL = """from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def {name}() -> str:
    "Say it."
    return "{text}"

@hookimpl
def tools():
    return [{name}]
"""


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    (folder / "plugins").mkdir(parents=True, mode=0o700)
    return folder


def save(home, name, text):
    file = home / "plugins" / "mine.py"
    file.write_text(TOOL.format(name=name, text=text))
    file.chmod(0o600)


async def test_a_saved_plugin_is_there_from_the_next_turn(home, tmp_path):
    """A new generation is built beside the old one and swapped between turns (invariant 8)."""
    save(home, "first", "one")
    async with await open_host(home, environ={}) as host:
        before = host.plugin_set
        save(home, "second", "two")
        assert await host.refresh()
        assert "first" in before.tools and "second" not in before.tools
        assert "second" in host.tools and "first" not in host.tools
        outcome = await host.call_tool("second", {}, vault=tmp_path)
        assert outcome.result.output == "two"
        assert not await host.refresh()


async def test_a_broken_save_is_named_and_the_rest_works(home, tmp_path):
    """A plugin that cannot be loaded any more is a record; the host stays up (invariant 5)."""
    save(home, "first", "one")
    (tmp_path / "a.txt").write_text("alpha")
    async with await open_host(home, environ={}) as host:
        (home / "plugins" / "mine.py").write_text("def broken(:\n")
        await host.refresh()
        record = next(record for record in host.plugin_set.records if record.name == "mine")
        assert record.status == "loaded" and record.kept and record.line == 1
        assert (await host.call_tool("read", {"path": "a.txt"}, vault=tmp_path)).result.status == "ok"


def test_the_watch_sees_saves_and_nothing_else(home):
    """Configuration, plugins and agents count; databases and byte code do not (S0.85)."""
    watch = HomeWatch(home)
    watch.start()
    try:
        assert not watch.changed()
        (home / "sessions.db").write_text("x")
        time.sleep(0.3)
        assert not watch.changed()
        save(home, "first", "one")
        deadline = time.monotonic() + 10
        while not (seen := watch.changed()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert seen
    finally:
        watch.stop()

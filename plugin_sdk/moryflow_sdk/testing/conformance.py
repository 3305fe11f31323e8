"""What every plugin should pass: ``pytest --moryflow-plugin PATH``."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from moryflow_sdk import HOOKS, Tool

from .isolated import IsolatedHost


@pytest.fixture
def loaded(moryflow: IsolatedHost, plugin_under_test: Path) -> tuple[IsolatedHost, Any]:
    """The isolated host with the plugin, and the plugin's load record."""
    moryflow.plugin(plugin_under_test)
    name = plugin_under_test.name if plugin_under_test.is_dir() else plugin_under_test.stem
    records = [record for record in moryflow.host.plugin_set.records if record.tier == "user"]
    assert records, f"no plugin was found at {plugin_under_test}: a .py file or a folder with __init__.py is needed"
    return moryflow, next((record for record in records if record.name == name), records[0])


def _tools(host: Any, record: Any) -> list[Tool]:
    return [owned.tool for owned in host.plugin_set.tools.values() if owned.plugin == record.name]


def test_it_loads(loaded: tuple[IsolatedHost, Any]) -> None:
    """The plugin is imported and registered without an error."""
    _, record = loaded
    assert record.status == "loaded", f"{record.stage}: {record.error} ({record.file}:{record.line}) {record.hint}"


def test_it_says_what_it_is_for(loaded: tuple[IsolatedHost, Any]) -> None:
    """The module has a docstring; the list of plugins shows it."""
    moryflow, record = loaded
    plugin = moryflow.host.plugin_set.plugins.get(record.name)
    assert plugin is not None, "it did not load"
    assert inspect.getdoc(plugin.object), "give the module a docstring that says what the plugin is for"


def test_it_does_something(loaded: tuple[IsolatedHost, Any]) -> None:
    """It implements at least one hook, and only hooks there are."""
    _, record = loaded
    assert record.hooks, "no function is marked with @hookimpl"
    assert set(record.hooks) <= set(HOOKS)


def test_its_tools_can_be_understood_and_judged(loaded: tuple[IsolatedHost, Any]) -> None:
    """Each tool has a description, a schema that is JSON, and targets for what it touches."""
    moryflow, record = loaded
    for tool in _tools(moryflow.host, record):
        assert tool.description, f"{tool.name}: the docstring is what the model reads"
        schema = json.loads(json.dumps(tool.parameters))
        assert schema.get("type") == "object", f"{tool.name}: the schema must be an object"
        if tool.domain in ("read", "edit", "bash", "web"):
            assert tool.targets is not None, f"{tool.name}: domain {tool.domain!r} needs targets="


def test_a_turn_works_with_it(loaded: tuple[IsolatedHost, Any]) -> None:
    """A turn with a tool call ends as it should, and no hook of the plugin fails on the way."""
    moryflow, record = loaded
    (moryflow.vault / "a.md").write_text("hello", encoding="utf-8")
    result = moryflow.run("go", [{"calls": [{"name": "read", "arguments": {"path": "a.md"}}]}, "done"])
    failed = [
        event.data for event in moryflow.events if event.type == "plugin.failed" and event.data.get("plugin") == record.name
    ]
    assert not failed, failed
    assert result.end_reason in ("completed", "denied"), result.end_reason


def test_it_can_be_unloaded(loaded: tuple[IsolatedHost, Any]) -> None:
    """Closing the host disposes of the plugin without an error."""
    moryflow, _ = loaded
    moryflow.close()

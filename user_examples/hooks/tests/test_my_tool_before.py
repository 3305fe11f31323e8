"""The test of the example of the hook ``tool_before``; made by tests/packaging/refresh_docs.py."""

from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_tool_before.py"))
    return moryflow


def test_example_of_tool_before(example):
    """A missing argument is filled in before anyone judges, one that was given stays."""
    assert example.fire("tool_before", call={"tool": "read", "args": {"path": "a"}}).value["args"] == {
        "path": "a",
        "limit": 100,
    }
    assert example.fire("tool_before", call={"tool": "read", "args": {"limit": 3}}).value["args"] == {"limit": 3}
    (example.vault / "a.md").write_text("line\n" * 300, encoding="utf-8")
    assert "line 101" not in example.call_tool("read", path="a.md").result.output

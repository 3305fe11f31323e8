"""The test of the example of the hook ``tool_after``; made by tests/packaging/refresh_docs.py."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_tool_after.py"))
    return moryflow


def read(path: str) -> dict:
    """A model's call of `read`."""
    return {"calls": [{"name": "read", "arguments": json.dumps({"path": path})}]}


def test_example_of_tool_after(example):
    """The model never sees the address."""
    (example.vault / "a.md").write_text("write to ada@example.org soon\n", encoding="utf-8")
    example.run("read it", [read("a.md"), "done"])
    assert example.model.requests[1].messages[-1].text.strip().endswith("write to [address] soon")

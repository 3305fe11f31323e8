"""The test of the example of the hook ``event``; made by tests/packaging/refresh_docs.py."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_event.py"))
    return moryflow


def read(path: str) -> dict:
    """A model's call of `read`."""
    return {"calls": [{"name": "read", "arguments": json.dumps({"path": path})}]}


def test_example_of_event(example):
    """One line per turn, after it was committed."""
    (example.vault / "a.md").write_text("x", encoding="utf-8")
    example.run("read it", [read("a.md"), "done"])
    turns = example.home / "data" / "my_event" / "turns.txt"
    assert turns.read_text(encoding="utf-8") == "completed after 2 step(s)\n"

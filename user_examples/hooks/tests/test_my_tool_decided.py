"""The test of the example of the hook ``tool_decided``; made by tests/packaging/refresh_docs.py."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_tool_decided.py"))
    return moryflow


def read(path: str) -> dict:
    """A model's call of `read`."""
    return {"calls": [{"name": "read", "arguments": json.dumps({"path": path})}]}


def test_example_of_tool_decided(example):
    """It writes down what was decided, and tightens what only the mode allowed."""
    (example.vault / "a.md").write_text("x", encoding="utf-8")
    bash = {"calls": [{"name": "bash", "arguments": json.dumps({"command": "touch made"})}]}
    example.run("go", [read("a.md"), bash, "done"], mode="full_access")
    lines = (example.home / "data" / "my_tool_decided" / "decisions.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "read allow by rule"
    assert "no shell without a question here" in example.model.requests[2].messages[-1].text
    assert not (example.vault / "made").exists()

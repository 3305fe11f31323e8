"""The test of the example of the hook ``tool_gate``; made by tests/packaging/refresh_docs.py."""

from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_tool_gate.py"))
    return moryflow


def is_denied(done) -> bool:
    """Whether the call that `call_tool` made was refused."""
    return done.result.status == "denied"


def test_example_of_tool_gate(example):
    """It asks by the resolved target, also in full access, and nobody being there means no."""
    example.allow_all()
    assert not is_denied(example.call_tool("write", path="free.md", content="x"))
    assert is_denied(example.call_tool("write", path="x/../contracts/a.md", content="x"))
    assert not (example.vault / "contracts").exists()
    fired = example.fire("tool_gate", call={"tool": "write", "args": {"path": "contracts/a.md", "content": "x"}})
    assert (fired.value["decision"], fired.value["reason"]) == ("ask", "contracts are signed")

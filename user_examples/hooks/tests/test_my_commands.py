"""The test of the example of the hook ``commands``; made by tests/packaging/refresh_docs.py."""

from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_commands.py"))
    return moryflow


def test_example_of_commands(example):
    """A person types it at a shell and in a conversation."""
    (example.vault / "a.md").write_text("12345", encoding="utf-8")
    assert example.command("vault-size") == "1 notes, 5 bytes\n"
    assert example.command("vault-size", "--json") == '{"files": 1, "bytes": 5}\n'
    assert example.slash("/vault-size").text == "1 notes, 5 bytes"

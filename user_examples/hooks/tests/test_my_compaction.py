"""The test of the example of the hook ``compaction``; made by tests/packaging/refresh_docs.py."""

from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_compaction.py"))
    return moryflow


def test_example_of_compaction(example):
    """The summarizer is given one more thing to mind, nothing else changes."""
    plan = {"covered": ["a", "b"], "first_kept": "c", "tokens_before": 900, "context": ["first"]}
    value = example.fire("compaction", plan=plan).value
    assert value["context"] == ["first", "Keep every decision word for word, with its date and who took it."]
    assert value["covered"] == ["a", "b"]

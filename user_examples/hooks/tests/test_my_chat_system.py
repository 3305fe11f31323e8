"""The test of the example of the hook ``chat_system``; made by tests/packaging/refresh_docs.py."""

from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_chat_system.py"))
    return moryflow


def test_example_of_chat_system(example):
    """In full access only."""
    example.run("hi", ["hello"])
    example.run("hi", ["hello"], mode="full_access")
    asked, free = (request.messages[0].text for request in example.model.requests)
    assert "Nobody is asked" not in asked
    assert "Nobody is asked" in free

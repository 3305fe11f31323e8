"""The test of the example of the hook ``chat_messages``; made by tests/packaging/refresh_docs.py."""

from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_chat_messages.py"))
    return moryflow


def test_example_of_chat_messages(example):
    """The model reads the words spelt out, the session keeps what was typed."""
    session = example.session()
    example.run("Read the KB", ["done"], session=session)
    assert example.model.requests[0].messages[-1].text == "Read the KB (knowledge base)"
    stored = example.wait(example.host.store.path(session.id))
    assert stored[0].payload["text"] == "Read the KB"

"""The test of the example of the hook ``agents``; made by tests/packaging/refresh_docs.py."""

from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_agents.py"))
    return moryflow


def test_example_of_agents(example):
    """A turn of the agent has its prompt, its temperature and its tools."""
    session = example.session(agent="critic")
    example.run("look at this", ["fine"], session=session)
    request = example.model.requests[0]
    assert request.messages[0].text.startswith("You review texts.")
    assert request.params.temperature == 0.1
    assert {schema.name for schema in request.tools} == {"read", "grep", "ls"}

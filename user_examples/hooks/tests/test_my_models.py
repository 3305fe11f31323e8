"""The test of the example of the hook ``models``; made by tests/packaging/refresh_docs.py."""

from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_models.py"))
    return moryflow


def test_example_of_models(example):
    """A turn with the model of the plugin."""
    session = example.session(model="parrot")
    assert example.run("good morning", session=session).text.strip() == "good morning"

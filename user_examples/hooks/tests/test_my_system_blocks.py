"""The test of the example of the hook ``system_blocks``; made by tests/packaging/refresh_docs.py."""

import re
from datetime import date
from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_system_blocks.py"))
    return moryflow


def test_example_of_system_blocks(example):
    """The block stands at the end of the system prompt, after what does not change."""
    example.run("hi", ["hello"])
    assert re.search(rf"Today is .*{date.today():%Y}\.$", example.model.requests[0].messages[0].text)

"""The test of the example of the hook ``plugin_start``; made by tests/packaging/refresh_docs.py."""

from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_plugin_start.py"))
    return moryflow


def test_example_of_plugin_start(example):
    """What it opened is closed when the plugin ends."""
    example.run("hi", ["hello"])
    diary = example.home / "data" / "my_plugin_start" / "diary.txt"
    example.close()
    assert diary.read_text(encoding="utf-8") == "opened\nclosed\n"

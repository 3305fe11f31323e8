"""The test of the example of the hook ``chat_params``; made by tests/packaging/refresh_docs.py."""

from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_chat_params.py"))
    return moryflow


def test_example_of_chat_params(example):
    """Two parameters change, the others stay."""
    fired = example.fire("chat_params", params={"temperature": 0.7, "max_tokens": 100, "extra": {"user": "ada"}})
    assert fired.value == {"temperature": 0.0, "max_tokens": 100, "extra": {"user": "ada", "seed": 7}}

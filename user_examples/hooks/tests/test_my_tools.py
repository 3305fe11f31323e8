"""The test of the example of the hook ``tools``; made by tests/packaging/refresh_docs.py."""

from pathlib import Path

import pytest


@pytest.fixture
def example(moryflow):
    """A host of its own, with the plugin."""
    moryflow.plugin(Path(__file__).with_name("my_tools.py"))
    return moryflow


def is_denied(done) -> bool:
    """Whether the call that `call_tool` made was refused."""
    return done.result.status == "denied"


def test_example_of_tools(example):
    """The tool reads what was judged, under the rules for files."""
    (example.vault / "a.md").write_text("# One\ntext\n## Two\n", encoding="utf-8")
    (example.vault.parent / "b.md").write_text("# Secret\n", encoding="utf-8")
    assert example.call_tool("headings", path="a.md").result.output == "# One\n## Two"
    assert is_denied(example.call_tool("headings", path="../b.md"))

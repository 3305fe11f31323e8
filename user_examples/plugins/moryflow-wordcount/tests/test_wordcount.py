"""What the plugin promises, without a host."""

from __future__ import annotations

import moryflow_wordcount as plugin
import pytest
from moryflow_sdk import file_target


@pytest.mark.parametrize(("text", "words"), [("", 0), ("one", 1), ("two  words\n", 2), ("a\tb\nc", 3)])
def test_words_are_what_white_space_separates(text: str, words: int) -> None:
    """Runs of white space count once."""
    assert plugin.count(text) == words


def test_the_model_is_told_what_the_tool_takes() -> None:
    """The schema comes from the function; the context is not part of it."""
    assert plugin.wordcount.parameters["required"] == ["path"]
    assert set(plugin.wordcount.parameters["properties"]) == {"path"}


def test_rules_for_files_hold_for_the_tool() -> None:
    """A call says which file it reads."""
    assert plugin.wordcount.target_requests({"path": "a.md"}) == (file_target("a.md"),)

"""What the plugin promises: alone, and in an isolated host that the fixture `moryflow` brings."""

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


def test_the_tool_counts_a_file_of_the_vault(moryflow) -> None:
    """The installed plugin is found, and its tool goes through the whole chain."""
    (moryflow.vault / "notes.md").write_text("three short words\n", encoding="utf-8")
    done = moryflow.call_tool("wordcount", path="notes.md")
    assert done.result.output == "notes.md: 3 words"
    assert done.result.metadata["words"] == 3


def test_the_hook_notes_the_count_where_it_is_asked_to(moryflow) -> None:
    """Its settings say under which tools' output the line stands."""
    moryflow.configure({"plugins": {"wordcount": {"annotate": ["read"]}}})
    fired = moryflow.fire("tool_after", call={"tool": "read"}, result={"output": "one two"})
    assert fired.value["output"] == "one two\n[2 words]"

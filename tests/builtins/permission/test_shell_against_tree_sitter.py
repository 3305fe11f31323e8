"""A second reader of shell texts: what it takes for a command is a command for the judge too."""

from __future__ import annotations

import pytest
import tree_sitter
import tree_sitter_bash
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow_builtins.permission.shell.lexer import NotRead, read

from .test_shell_against_bash import Texts

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
WORDS = st.sampled_from(
    ["p", "q", "rm", "-r", "x", "'a b'", '"c"', "$x", "$(q)", '"$(rm y)"', "{a,b}", "a\\ b", "2>&1", ">f", "<g", "*"]
)
SIMPLE = st.lists(WORDS, min_size=1, max_size=5).map(" ".join)
FORMS = (
    "{} && {}",
    "{} || {}",
    "{}; {}",
    "{} | {}",
    "({}); {}",
    "{{ {}; }} && {}",
    "if {}; then {}; fi",
    "while {}; do {}; done",
    "for i in a b; do {}; {}; done",
    "{} &\n{}",
    "! {}; {}",
)
TEXTS = st.recursive(SIMPLE, lambda inner: st.builds(str.format, st.sampled_from(FORMS), inner, inner), max_leaves=6)


def _programs(text: str) -> list[str] | None:
    """Return the names that the other reader takes for programs; ``None`` if it does not read the text."""
    tree = PARSER.parse(text.encode())
    if tree.root_node.has_error:
        return None
    found, todo = [], [tree.root_node]
    while todo:
        node = todo.pop()
        todo += node.children
        if node.type == "command_name" and node.text is not None:
            found.append(node.text.decode())
    return found


def _missing(text: str) -> list[str]:
    try:
        ours = {command.words[0].text for command in read(text) if command.words}
    except NotRead:
        return []
    return [name for name in _programs(text) or () if name in ("p", "q", "rm") and name not in ours]


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_every_command_of_a_plain_text_is_seen_by_both(text: str) -> None:
    """Texts of the small language, however they are nested (R6)."""
    assert not _missing(text)


@pytest.mark.parametrize("seed", range(2))
def test_no_command_in_a_damaged_text_is_overlooked(seed: int) -> None:
    """What is read although it is damaged holds no command that only the other reader sees (R6, R11)."""
    texts = Texts(1000 + seed)
    for _ in range(300):
        text = texts.text()
        assert not _missing(text), text

"""From a model's text to the one value that is judged and run."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow.kernel.arguments import canonical, digest, parse, validated
from moryflow_sdk import ToolError, tool

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner),
    max_leaves=20,
)


@tool(domain="read")
def peek(path: str, limit: int = 10) -> str:
    """Peek."""
    return path[:limit]


@given(st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), JSON))
def test_equal_arguments_have_equal_bytes_and_hash(args):
    """One canonical form whatever the key order; the hash is of those bytes (R11, invariant 2)."""
    shuffled = dict(reversed(args.items()))
    assert canonical(args) == canonical(shuffled)
    assert digest(canonical(args)) == digest(canonical(shuffled))
    assert json.loads(canonical(args)) == args


BROKEN = ['{"path":"no', "[]", '"x"', "5", "null", '{"a":1}{', '{"a":NaN}', '{"a":1,"a":2}', "<path>.</path>"]


@pytest.mark.parametrize("text", [*BROKEN, '{"a":"\n"}', '{"a":"\\x41"}'])
def test_anything_but_one_whole_object_is_invalid(text):
    """Broken, doubled or foreign arguments never become a call (R11)."""
    with pytest.raises(ToolError) as caught:
        parse(text)
    assert caught.value.code == "invalid_args"


@given(st.text(max_size=200))
def test_parsing_never_raises_anything_but_a_tool_error(text):
    """Whatever a model writes, the answer is an object or a sentence (R11)."""
    try:
        assert isinstance(parse(text), dict)
    except ToolError as error:
        assert error.message


def test_deep_nesting_is_invalid_not_a_crash():
    """A nesting bomb is refused with a sentence (R11)."""
    with pytest.raises(ToolError) as caught:
        parse('{"a":' * 100_000)
    assert caught.value.code == "invalid_args"


def test_too_large_arguments_are_refused_before_parsing():
    """Arguments over 4 MiB are not even parsed (R11)."""
    with pytest.raises(ToolError) as caught:
        parse('{"a":"' + "x" * (5 * 2**20) + '"}')
    assert caught.value.code == "args_too_large"


@pytest.mark.parametrize("args", [{}, {"path": 5}, {"path": None}, {"path": "a", "extra": 1}, {"path": "a", "limit": "x"}])
def test_arguments_that_do_not_fit_the_schema_are_named(args):
    """A missing, unknown or mistyped argument is named in the message (S4.9)."""
    with pytest.raises(ToolError) as caught:
        validated(peek, args)
    assert caught.value.code == "invalid_args"
    assert "peek" in caught.value.message


def test_half_a_surrogate_pair_is_refused():
    """Text that no file or command can carry is refused with a sentence (R11)."""
    with pytest.raises(ToolError) as caught:
        canonical(parse('{"path":"\\ud800"}'))
    assert caught.value.code == "invalid_args"

"""From a model's text to the one value that is judged and run."""

import json
import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow.hooks.plugin_set import RegisteredTool
from moryflow.kernel.tool_call import canonical, digest, offered_tools, parse, validate_arguments
from moryflow_sdk import Tool, ToolError, tool

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


@pytest.mark.parametrize("levels", [101, 300, 480, 700, 990, 1500, 100_000])
@pytest.mark.parametrize("opened, closed", [('{"a":', "}"), ('{"a":[', "]}")])
def test_deep_nesting_is_invalid_not_a_crash(levels, opened, closed):
    """A nesting bomb is refused with a sentence (R11)."""
    with pytest.raises(ToolError) as caught:
        parse(opened * levels + "1" + closed * levels)
    assert caught.value.code == "invalid_args"


def test_nesting_that_people_use_is_taken():
    """And brackets in a text are not nesting (R11)."""
    assert parse('{"a":' * 100 + "1" + "}" * 100)
    assert parse(json.dumps({"a": "{[" * 1000}))


def test_too_large_arguments_are_refused_before_parsing():
    """Arguments over 4 MiB are not even parsed (R11)."""
    with pytest.raises(ToolError) as caught:
        parse('{"a":"' + "x" * (5 * 2**20) + '"}')
    assert caught.value.code == "args_too_large"


@pytest.mark.parametrize("args", [{}, {"path": 5}, {"path": None}, {"path": "a", "extra": 1}, {"path": "a", "limit": "x"}])
def test_arguments_that_do_not_fit_the_schema_are_named(args):
    """A missing, unknown or mistyped argument is named in the message (S4.9)."""
    with pytest.raises(ToolError) as caught:
        validate_arguments(peek, args)
    assert caught.value.code == "invalid_args"
    assert "peek" in caught.value.message


def test_half_a_surrogate_pair_is_refused():
    """Text that no file or command can carry is refused with a sentence (R11)."""
    with pytest.raises(ToolError) as caught:
        canonical(parse('{"path":"\\ud800"}'))
    assert caught.value.code == "invalid_args"


SHAPE = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "minimum": 1},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["path"],
    "additionalProperties": False,
}


def shaped(schema):
    return Tool(name="peek", description="Peek.", function=print, schema=schema)


@pytest.mark.parametrize(
    "args, said",
    [
        ({}, "arguments: 'path' is a required property"),
        ({"path": 5}, "path: 5 is not of type 'string'"),
        ({"path": "a", "limit": 0}, "limit: 0 is less than the minimum of 1"),
        ({"path": "a", "more": 1}, "arguments: Additional properties are not allowed ('more' was unexpected)"),
        ({"path": "a", "tags": ["a", "c"]}, "tags.1: 'c' is not one of ['a', 'b']"),
    ],
)
def test_a_schema_without_type_hints_is_held_against_the_arguments(args, said):
    """A tool is judged and run with what its schema allows, wherever that comes from (D9)."""
    with pytest.raises(ToolError) as caught:
        validate_arguments(shaped(SHAPE), args)
    assert (caught.value.code, caught.value.message) == ("invalid_args", f"invalid arguments for peek: {said}")


def test_arguments_that_fit_such_a_schema_stay_as_they_are():
    """Nothing is converted: the schema is all that is known of them (D9)."""
    assert validate_arguments(shaped(SHAPE), {"path": "a", "limit": 2, "tags": ["b"]}) == {
        "path": "a",
        "limit": 2,
        "tags": ["b"],
    }


def test_a_schema_that_cannot_be_held_against_arguments_costs_the_call_and_not_the_turn():
    """Other people's schemas can be odd in ways that only a value shows (invariant 5)."""
    with pytest.raises(ToolError) as caught:
        validate_arguments(shaped({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}), {"a": 1})
    assert caught.value.code == "invalid_args" and "the value cannot be checked against the schema" in caught.value.message


def test_references_that_multiply_end_the_check_of_the_arguments():
    """Each leads twice to the next; followed to the end they would stop the host for hours (invariant 5)."""
    twice = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(30)}
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": {**twice, "a30": {"type": "string"}}}
    with pytest.raises(ToolError, match=r"cannot be checked against the schema: .* more than 50000 references"):
        validate_arguments(shaped(schema), {"x": "a"})
    assert validate_arguments(shaped(schema), {}) == {}


def test_a_few_references_are_followed():
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "name": {"type": "string"}}}
    schema = {"type": "object", "properties": {"first": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}
    with pytest.raises(ToolError, match=r"first.next.name: 5 is not of type 'string'"):
        validate_arguments(shaped(schema), {"first": {"next": {"name": 5}}})


def test_what_a_schema_refers_to_is_not_fetched(tmp_path, monkeypatch):
    """A tool server's schema names no address to ask and no file to read; the dialects themselves are known (R18)."""
    (tmp_path / "any.json").write_text("{}")
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("a schema opened a connection"))
    for address in ("http://169.254.169.254/latest", (tmp_path / "any.json").as_uri()):
        with pytest.raises(ToolError, match="cannot be checked against the schema"):
            validate_arguments(shaped({"type": "object", "properties": {"a": {"$ref": address}}}), {"a": 1})
    dialect = {"type": "object", "properties": {"a": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}}
    assert validate_arguments(shaped(dialect), {"a": {"type": "string"}}) == {"a": {"type": "string"}}


@pytest.mark.parametrize(
    ("found", "offered"),
    [
        (lambda turn: ["b", "a", "c", "unknown"], ["b", "a"]),
        (lambda turn: [], []),
        (lambda turn: 1 / 0, []),
        (lambda turn: None, []),
        (lambda turn: 3, []),
        (lambda turn: [["a"], None], []),
    ],
)
def test_tools_that_were_found_come_in_the_order_in_which_they_were(found: Any, offered: list[str]) -> None:
    """A plugin names its own only, and one that cannot say has found none (S2.12)."""
    life: Any = None
    hidden = {name: RegisteredTool(replace(peek, name=name, found_in=found), "finder", "user", life) for name in "ab"}
    others = {"c": RegisteredTool(replace(peek, name="c", found_in=lambda turn: []), "other", "user", life)}
    scope: Any = SimpleNamespace(offered={}, findable={**hidden, **others}, view=lambda plugin: plugin)
    assert list(offered_tools(scope)) == offered

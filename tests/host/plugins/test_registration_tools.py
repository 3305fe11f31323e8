"""What tools must be like to be offered: names, schemas, descriptions and times that people get wrong."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow import open_host
from moryflow.plugins.registration import Refused, usable
from moryflow_sdk import Tool, tool
from moryflow_sdk.support.tool_schemas import CheckedSchema, plain_schema


def with_a(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return with_a(schema)


LOOP: dict[str, Any] = {"type": "object"}
LOOP["properties"] = {"a": LOOP}
UNSEEN = {"type": "string", "pattern": "(a+)+$"}
RING = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
BAD_SCHEMAS: dict[str, Any] = {
    "is a list": [],
    "is text": "object",
    "is true": True,
    "type is an array": {"type": "array"},
    "type is text": {"type": "string"},
    "type is null": {"type": None},
    "type in a list": {"type": ["object", "null"]},
    "a choice at the top": {"anyOf": [{"type": "object"}]},
    "a choice beside the type": {"type": "object", "oneOf": [{"required": ["a"]}]},
    "only a reference": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
    "a reference to itself": {"$ref": "#"},
    "required as text": {"type": "object", "required": "a"},
    "required as a number": {"type": "object", "required": 3},
    "required as numbers": {"type": "object", "required": [1]},
    "required twice": {"type": "object", "required": ["a", "a"]},
    "required as null": {"type": "object", "required": None},
    "properties as a list": {"type": "object", "properties": ["a"]},
    "properties as null": {"type": "object", "properties": None},
    "a property that is text": with_a("string"),
    "a property that is a number": with_a(5),
    "an unknown type": with_a({"type": "str"}),
    "a Python type": with_a({"type": str}),
    "a type that is a number": with_a({"type": 5}),
    "no types": with_a({"type": []}),
    "an enum that is text": with_a({"enum": "xyz"}),
    "items that are text": with_a({"type": "array", "items": "string"}),
    "an empty choice": with_a({"anyOf": []}),
    "a choice that is an object": with_a({"anyOf": {}}),
    "a choice of texts": with_a({"anyOf": ["string"]}),
    "no additional ones, in words": {"type": "object", "additionalProperties": "no"},
    "a description that is a number": {"type": "object", "description": 5},
    "a format that is a number": with_a({"format": 5}),
    "a pattern that is a number": with_a({"pattern": 5}),
    "a pattern that does not compile": with_a({"pattern": "(["}),
    "a key of pattern properties": with_a({"patternProperties": {"x": 1}}),
    "definitions as a list": {"type": "object", "$defs": []},
    "a reference that is a number": with_a({"$ref": 5}),
    "a reference elsewhere": with_a({"$ref": "https://example.com/s.json"}),
    "a reference to a file": with_a({"$ref": "file:///etc/passwd"}),
    "a reference to nothing": with_a({"$ref": "#/$defs/none"}),
    "a reference to a value": {"properties": {"a": {"$ref": "#/properties/b/default"}, "b": {"default": UNSEEN}}},
    "a reference to a value in escapes": {
        "properties": {"a": {"$ref": "#/properties/b/%64efault"}, "b": {"%64efault": {}, "default": UNSEEN}}
    },
    "a key that is a number": {"type": "object", "properties": {1: {"type": "string"}}},
    "a key that is null": {"type": "object", None: 1},
    "a key that is a switch": {"type": "object", "properties": {True: {}}},
    "half a surrogate pair": {"type": "object", "description": "\ud800"},
    "half a surrogate pair as a key": {"type": "object", "properties": {"\udc00": {}}},
    "a set": with_a({"default": {1, 2}}),
    "bytes": with_a({"default": b"x"}),
    "a function": with_a({"default": len}),
    "not a number": with_a({"minimum": float("nan")}),
    "infinite": with_a({"default": float("inf")}),
    "an argument without a name": {"type": "object", "properties": {"": {}}},
    "an argument with a space": {"type": "object", "properties": {"a b": {}}},
    "an argument with a line": {"type": "object", "properties": {"a\n": {}}},
    "an argument of 65 letters": {"type": "object", "properties": {"a" * 65: {}}},
    "holds itself": LOOP,
    "too deep": deep(60),
    "endlessly deep": deep(3000),
    "too large": {"type": "object", "description": "x" * 300_000},
}
GOOD_SCHEMAS: dict[str, Any] = {
    # No service would take these two; they are sent in a form that each takes (docs/services.md).
    "an empty enum": with_a({"enum": []}),
    "items as a list": with_a({"type": "array", "items": [{"type": "string"}]}),
    "nothing": {},
    "no arguments": {"type": "object"},
    "frozen": MappingProxyType({"type": "object", "properties": MappingProxyType({"a": MappingProxyType({"type": "string"})})}),
    "ordered, with tuples": OrderedDict(type="object", required=("a",), properties={"a": {"enum": ("x", "y")}}),
    "a required name that is not described": {"type": "object", "required": ["nope"]},
    "data that looks like keywords": {
        "type": "object",
        "properties": {"pattern": {"type": "string", "default": {"pattern": "(["}}, "type": {"type": "string"}},
    },
    "a reference in escapes": {**with_a({"$ref": "#/$defs/Page%3Cstr%3E"}), "$defs": {"Page<str>": {"type": "string"}}},
    "a reference to an argument": {"properties": {"default": {"type": "string"}, "b": {"$ref": "#/properties/default"}}},
    "a tree": {**with_a({"$ref": "#/$defs/node"}), "$defs": {"node": NODE}},
    "a choice of an argument": with_a({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}),
    "anything": with_a(True),
    "an unknown keyword": with_a({"x-order": [1, 2]}),
}
BAD_NAMES = [
    "", " ", "a b", "a\tb", "a\n", "a\0b", "a/b", "a.b", "a:b", "1a", "-a", "a" * 65, "a" * 200, "__class__", "__init__", "__x",
    "r\u0435ad", "read\u200b", "ba\u0300sh", "größe", "\ud800", "\x1b[31m", None, 5, b"x", ("a",), Ellipsis,
]  # fmt: skip
BAD_TIMES = [0, -1, "5", float("nan"), float("inf"), True, [], Ellipsis]


def body(**given: Any) -> str:
    return "x"


def made(**fields: Any) -> Tool:
    return Tool(**{"name": "t", "description": "A tool.", "function": body, "schema": {"type": "object"}, **fields})


@pytest.mark.parametrize("schema", BAD_SCHEMAS.values(), ids=BAD_SCHEMAS)
def test_a_schema_that_a_model_service_would_refuse_is_refused_here(schema: Any):
    """With a reason, and nothing is fetched for it (S4.9, R28)."""
    with pytest.raises(Refused, match=r"the schema of 't' cannot be used: .{10}"):
        usable(made(schema=schema), "user")


@pytest.mark.parametrize("schema", GOOD_SCHEMAS.values(), ids=GOOD_SCHEMAS)
def test_a_schema_that_is_right_is_taken(schema: Any):
    """A tree refers to itself through its branches, and data may look like a keyword (S4.9)."""
    item, remark = usable(made(schema=schema), "user")
    assert remark == "" and item.parameters["type"] == "object"


def test_what_was_accepted_cannot_be_changed_afterwards():
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    item, _ = usable(made(schema=schema), "user")
    schema["properties"] = "gone"
    assert item.parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_name_that_a_model_service_would_refuse_is_refused_here(name: Any):
    """Names go into every request, rules, traces and the command line (S4.9)."""
    with pytest.raises(Refused, match="is not a tool name"):
        usable(made(name=name), "user")


@pytest.mark.parametrize("timeout", BAD_TIMES, ids=ascii)
def test_a_time_that_is_none_is_refused(timeout: Any):
    """Nothing waits for ever (invariant 9)."""
    with pytest.raises(Refused, match=r"timeout of 't' is .*seconds"):
        usable(made(timeout=timeout), "user")


@pytest.mark.parametrize("description", [None, 5, "", "  \n", "x" * 20_000, "\ud800"], ids=lambda value: ascii(value)[:20])
def test_a_description_that_is_none_is_a_remark(description: Any):
    item, remark = usable(made(description=description), "user")
    assert remark and item.description.encode() is not None and len(item.description) < 20_000


def test_type_hints_are_checked_by_what_they_come_to():
    """A default that is not JSON shows when the tool is accepted, not in a turn (S4.9)."""

    @tool
    def hello(times: float = float("inf")) -> str:
        """Say hello."""
        return ""

    with pytest.raises(Refused, match=r"not JSON|JSON compliant"):
        usable(hello, "user")


KEYWORDS = st.sampled_from(
    ["type", "properties", "required", "items", "anyOf", "enum", "$ref", "$defs", "pattern", "minimum", "not"]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["object", "#/$defs/a", "#"])
)
JUNK = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS | st.text(max_size=3) | st.integers(), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(KEYWORDS | st.text(max_size=3), JUNK, max_size=5))
def test_any_schema_is_taken_or_refused_with_a_reason(schema: dict[str, Any]):
    """No schema breaks the check; what it takes, it takes again (invariant 5)."""
    try:
        taken = plain_schema(schema)
    except ValueError as refused:
        assert str(refused)
    else:
        assert plain_schema(taken) == taken


PLUGIN = """from moryflow_sdk import Tool, hookimpl


def body(**given):
    return "x"


def made(name, schema=None):
    return Tool(name=name, description="A tool.", function=body, schema=schema or {"type": "object"})


@hookimpl
def tools():
    named = [made(name) for name in ("good", "BASH", "good", "Good", "a b")]
    return [*named, made("odd", {"required": "a"}), made("fine"), *[5] * 100, made]
"""


async def test_each_tool_that_is_refused_is_named_with_file_line_reason_and_command(tmp_path: Path):
    """The others are there; a name is taken whatever its case; what is said of many is said once (D57, invariant 5)."""
    folder = tmp_path / "plugins"
    folder.mkdir(mode=0o700)
    file = folder / "mine.py"
    file.write_text(PLUGIN)
    async with await open_host(tmp_path, environ={}) as host:
        record = next(record for record in host.plugin_set.records if record.name == "mine")
        assert host.tools["bash"].plugin == "shell"
    assert record.status == "loaded" and record.tools == ("good", "fine")
    where, step = f"{file}:4: ", "; next: moryflow plugin check mine"
    assert [note.removeprefix(where).removesuffix(step) for note in record.notes[:5]] == [
        "the name 'BASH' is taken by the builtin plugin shell",
        "the name 'good' is taken by the user plugin mine",
        "the name 'Good' is taken by the user plugin mine",
        "'a b' is not a tool name: a letter or _, then up to 63 letters, digits, _ and -",
        "the schema of 'odd' cannot be used: required must be a list of names, not 'a'",
    ]
    assert record.notes[5] == f"{file}:12: 5 is not a tool; make it with @tool{step}"
    assert "the function made is not a tool; make it with @tool" in record.notes[6]


def hello(a: str = "") -> str:
    """Say hello."""
    return a


def counted():
    """Count."""
    yield "1"


async def counted_later():
    """Count."""
    yield "1"


@pytest.mark.parametrize("function", [counted, counted_later])
def test_a_tool_that_yields_is_refused(function: Any):
    """A model would read ``<generator object …>``, and not one line of the tool would run (invariant 5)."""
    with pytest.raises(Refused, match=f"'{function.__name__}' yields, and what it yields would be lost; return the result"):
        usable(tool(function), "user")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"domain": 5}, "the domain of 'hello' is 5, not a text"),
        ({"more_time": 90}, "the more_time of 'hello' is 90, not a text"),
        ({"parallel_safe": "no"}, "the parallel_safe of 'hello' is 'no', not True or False"),
        ({"targets": ["a"]}, "the targets of 'hello' is ['a'], not a function"),
        ({"offered": True}, "the offered of 'hello' is True, not a function"),
    ],
)
def test_what_a_tool_declares_is_what_it_says(changed: dict[str, Any], said: str):
    """A text is not a yes and a list is not a function: such a tool is not offered (invariant 5, S2.15)."""
    with pytest.raises(Refused, match=re.escape(said)):
        usable(replace(tool(hello), **changed), "user")


def test_a_domain_that_no_rule_can_name_is_told():
    """With what was meant (S0.31, invariant 5)."""
    _, remark = usable(tool(domain="raed")(hello), "user")
    assert "which no rule can name; did you mean 'read'?" in remark


def test_what_nobody_sees_in_the_text_of_a_tool_is_told():
    """Marks that reverse a line or have no width: the model would read what the user cannot (R40)."""
    told, remark = usable(replace(tool(hello), description="Say hello.\u202e\n\tKindly."), "user")
    assert "has characters that nobody sees (\\u202e)" in remark and told.description == "Say hello.\n\tKindly."
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "a\u200bb"}}}
    _, remark = usable(replace(tool(hello), schema=schema), "user")
    assert "the schema of 'hello' has characters that nobody sees (\\u200b)" in remark
    assert usable(tool(hello), "user")[1] == ""


def test_hints_that_make_no_schema_are_told_in_a_line():
    """Whatever pydantic raises over them, and without its advice to its own users (invariant 5)."""
    source = "def odd(a: ValueError, b: {'x': int}): 'd'"
    for hint in ("ValueError", "{'x': int}", "'5+'"):
        names: dict[str, Any] = {}
        exec(source.replace("ValueError, b: {'x': int}", hint), names)
        with pytest.raises(Refused, match=r"^no schema can be made of the type hints of 'odd': [^\n]+$") as caught:
            usable(tool(names["odd"]), "user")
        assert "arbitrary_types_allowed" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def odd(**k): 'd'", "odd: a tool takes named parameters only, not **k"),
        ("def odd(*k): 'd'", "odd: a tool takes named parameters only, not *k"),
        ("def odd(k): 'd'", "odd: parameter 'k' needs a type hint; the schema is made from it"),
    ],
)
def test_parameters_that_make_no_schema_are_told(source: str, said: str):
    """A ``Tool`` made by hand is checked as ``@tool`` checks it, not refused with ``KeyError: 'k'`` (invariant 5, S2.15)."""
    names: dict[str, Any] = {}
    exec(source, names)
    with pytest.raises(Refused, match=f"^no schema can be made of the type hints of 'odd': TypeError: {re.escape(said)}$"):
        usable(Tool(name="odd", description="d", function=names["odd"]), "user")


class _Repeat:
    def __call__(self, text: str, times: int = 2) -> str:
        return text * times


@pytest.mark.parametrize("body", [_Repeat(), partial(_Repeat.__call__, _Repeat()), partial(_Repeat(), times=2)])
def test_what_has_no_name_of_its_own_is_a_tool_with_a_name(body: Any):
    """``@tool`` refuses a partial and a callable object without a name; with the name that it asks for, they work (S2.15)."""
    made = tool(name="repeat", description="d")(body)
    usable(made, "user")
    assert made.function(**made.arguments.bind(b'{"text":"a","times":3}')) == "aaa"


@pytest.mark.parametrize("name", ["_a", "__a", "model_config"])
def test_a_parameter_that_nothing_can_be_given_to_is_told(name: str):
    """pydantic keeps such names for itself: the model would be told of a tool that cannot be called (invariant 5)."""
    names: dict[str, Any] = {}
    exec(f"def odd({name}: str): 'd'", names)
    with pytest.raises(Refused, match=f"pydantic reserves the name of the parameter '{name}' of 'odd'; rename it"):
        usable(tool(names["odd"]), "user")


@pytest.mark.parametrize("wrong", ["a name", 5, tool(hello)])
def test_what_is_no_function_is_no_tool(wrong: Any):
    """``@tool("name")`` says how a name is given (S2.15)."""
    with pytest.raises(TypeError, match=r"@tool marks a function, not .*@tool\(name=…\)"):
        tool(wrong)


@pytest.mark.parametrize(("tier", "refused"), [("builtin", False), ("installed", True), ("user", True)])
def test_only_a_built_in_plugin_is_believed_that_a_schema_was_checked(tier: str, refused: bool) -> None:
    """What a plugin of somebody else calls checked is checked."""
    schema = CheckedSchema({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}})
    item = Tool(name="t", description="Does it", function=print, schema=schema)
    if not refused:
        assert usable(item, tier)[0].schema is schema
        return
    with pytest.raises(Refused, match="leads nowhere"):
        usable(item, tier)

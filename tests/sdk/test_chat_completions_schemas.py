"""What is sent of a tool's schema: a form that the strictest service accepts, whatever the tool's author wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from moryflow_sdk.chat_completions.sent_schemas import sent_schema
from moryflow_sdk.support.tool_schemas import plain_schema

KINDS = ("null", "boolean", "integer", "number", "string", "array", "object")


def refused(part: Any, *, gemini: bool = False, top: bool = True) -> str:
    """Return why the strictest service would refuse a schema; the sources are in ``docs/services.md``."""
    if not isinstance(part, dict):
        return "a schema that is no object"
    kind, choices = part.get("type"), part.get("anyOf", [])
    found = {
        "a type that is not one name": "type" in part and kind not in KINDS,
        "no type": gemini and not kind and not choices,
        "a list without items": kind == "array" and not isinstance(part.get("items"), dict),
        "items that may be anything": gemini and kind == "array" and not part.get("items"),
        "a type beside anyOf": bool(choices) and "type" in part,
        "an object without properties": top and (kind != "object" or "properties" not in part),
        "a choice at the top": top and bool(choices),
        "required names no property": not set(part.get("required", ())) <= set(part.get("properties", {})),
        "an empty list": any(part.get(key) == [] for key in ("required", "enum", "anyOf")),
        "a value of another type in enum": any(not fits(value, kind) for value in part.get("enum", ())),
        "an empty word in enum": gemini and "" in part.get("enum", ()),
        "a pattern without its ends": "pattern" in part and not (part["pattern"][:1] == "^" and part["pattern"][-1:] == "$"),
        "a keyword few services know": bool(
            part.keys() & {"$ref", "$defs", "$schema", "definitions", "const", "oneOf", "allOf", "not", "prefixItems", "if"}
        ),
        "a keyword that Gemini does not know": gemini and bool(part.keys() & {"additionalProperties", "exclusiveMinimum"}),
    }
    inner = [*part.get("properties", {}).values(), *choices, *([part["items"]] if isinstance(part.get("items"), dict) else ())]
    others = part.get("additionalProperties", True)
    inner += [others] if isinstance(others, dict) else []
    found |= {"inside": False} | {reason: True for each in inner if (reason := refused(each, gemini=gemini, top=False))}
    return next((reason for reason, holds in found.items() if holds), "")


def fits(value: Any, kind: str) -> bool:
    types: dict[str, Any] = {"string": str, "integer": int, "number": int | float, "boolean": bool, "null": type(None)}
    return kind is not None and isinstance(value, types.get(kind, object))


def members(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


ODD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a list of anything": (members(a={"type": "array"}), members(a={"type": "array", "items": {}})),
    "a list or nothing": (members(a={"type": ["array", "null"]}), members(a={"type": "array", "items": {}})),
    "a list in a choice": (
        members(a={"anyOf": [{"type": "array"}, {"type": "string"}]}),
        members(a={"anyOf": [{"type": "array", "items": {}}, {"type": "string"}]}),
    ),
    "a list in a list in an object": (
        members(a={"properties": {"b": {"items": {"type": "array"}}}}),
        members(a={"properties": {"b": {"items": {"type": "array", "items": {}}, "type": "array"}}, "type": "object"}),
    ),
    "a tuple": (
        members(a={"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}),
        members(a={"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}),
    ),
    "a tuple of draft 7": (
        members(a={"type": "array", "items": [{"type": "integer"}, {"type": "integer"}]}),
        members(a={"type": "array", "items": {"type": "integer"}}),
    ),
    "an optional value": (
        members(a={"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "A"}),
        members(a={"type": "string", "title": "A"}),
    ),
    "a value that may be null but not left out": (
        {**members(a={"type": ["string", "null"]}), "required": ["a"]},
        {**members(a={"anyOf": [{"type": "string"}, {"type": "null"}]}), "required": ["a"]},
    ),
    "required without a property": ({**members(a={"type": "string"}), "required": ["b"]}, members(a={"type": "string"})),
    "a constant": (members(a={"const": "x"}), members(a={"type": "string", "enum": ["x"]})),
    "an empty enum": (members(a={"type": "string", "enum": []}), members(a={"type": "string"})),
    "an enum with null": (members(a={"type": "string", "enum": ["x", None]}), members(a={"type": "string", "enum": ["x"]})),
    "oneOf beside a type": (
        members(a={"type": "string", "oneOf": [{"const": "x"}, {"const": "y"}]}),
        members(a={"anyOf": [{"enum": ["x"], "type": "string"}, {"enum": ["y"], "type": "string"}]}),
    ),
    "branches that only say what goes together": (
        members(a={"type": "object", "properties": {"b": {}}, "anyOf": [{"required": ["b"]}, {"required": ["c"]}]}),
        members(a={"type": "object", "properties": {"b": {}}}),
    ),
    "a reference": (
        {**members(a={"$ref": "#/$defs/A", "description": "mine"}), "$defs": {"A": {"type": "string", "description": "its"}}},
        members(a={"type": "string", "description": "mine"}),
    ),
    "a tree": (
        {**members(a={"$ref": "#/$defs/A"}), "$defs": {"A": members(b={"type": "array", "items": {"$ref": "#/$defs/A"}})}},
        members(a=members(b={"type": "array", "items": {"type": "object"}})),
    ),
    "allOf": (
        members(a={"allOf": [members(b={"type": "string"}), {"required": ["b"]}]}),
        members(a={**members(b={"type": "string"}), "required": ["b"]}),
    ),
    "true and false": (members(a=True, b=False), members(a={})),
    "names by pattern": (
        members(a={"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": False}),
        members(a={"type": "object", "additionalProperties": True}),
    ),
    "a pattern with look-ahead": (members(a={"type": "string", "pattern": "^(?=x).$"}), members(a={"type": "string"})),
    "nothing": ({}, members()),
}


@pytest.mark.parametrize("name", ODD)
def test_each_odd_schema_is_sent_in_a_form_that_services_accept(name: str) -> None:
    """One tool never costs the others (S4.6, R30)."""
    written, sent = ODD[name]
    found = sent_schema(plain_schema(written))
    assert found == sent and not refused(found)
    assert not refused(sent_schema(plain_schema(written), gemini=True), gemini=True)


def test_gemini_is_shown_what_it_does_not_know_in_words() -> None:
    """Numbers in enum, and empty words, are refused there (S4.6)."""
    written = members(a={"type": "integer", "enum": [1, 2], "description": "How many."}, b={"enum": ["", "x"]})
    found = sent_schema(plain_schema(written), gemini=True)["properties"]
    assert found["a"] == {"type": "integer", "description": "How many. One of: 1, 2"}
    assert found["b"] == {"type": "string", "description": 'One of: "", "x"'}


def test_a_schema_that_grows_without_end_is_cut() -> None:
    """Thirty references that each lead twice to the next (R30)."""
    links = {f"link{n}": members(a={"$ref": f"#/$defs/link{n + 1}"}, b={"$ref": f"#/$defs/link{n + 1}"}) for n in range(30)}
    written = {**members(a={"$ref": "#/$defs/link0"}), "$defs": {**links, "link30": {"type": "string"}}}
    assert len(json.dumps(found := sent_schema(plain_schema(written)))) < 200_000 and not refused(found)


LEAVES = some.one_of(
    some.just({}),
    some.just(True),
    some.sampled_from(KINDS).map(lambda kind: {"type": kind}),
    some.lists(some.sampled_from(KINDS), min_size=1, unique=True).map(lambda kinds: {"type": kinds}),
    some.lists(some.one_of(some.none(), some.text(), some.integers()), max_size=3).map(lambda values: {"enum": values}),
    some.one_of(some.none(), some.text(), some.integers(), some.booleans()).map(lambda value: {"const": value}),
    some.just({"$ref": "#/$defs/A"}),
)


def larger(inner: Any) -> Any:
    names = some.dictionaries(some.sampled_from("abc"), inner, max_size=3)
    several = some.lists(inner, min_size=1, max_size=3)
    return some.one_of(
        some.builds(lambda p, r: {"properties": p, "required": r}, names, some.lists(some.sampled_from("abcd"), unique=True)),
        some.builds(lambda p, o: {"type": "object", "properties": p, "additionalProperties": o}, names, inner),
        inner.map(lambda item: {"type": "array", "items": item}),
        several.map(lambda items: {"type": "array", "prefixItems": items}),
        some.builds(lambda word, parts: {word: parts}, some.sampled_from(("anyOf", "oneOf", "allOf")), several),
        some.builds(lambda word, parts: {"type": "object", word: parts}, some.sampled_from(("anyOf", "oneOf")), several),
    )


@given(some.dictionaries(some.sampled_from("abc"), some.recursive(LEAVES, larger, max_leaves=12)), some.booleans())
def test_whatever_a_tool_takes_is_sent_in_a_form_that_services_accept(properties: dict[str, Any], gemini: bool) -> None:
    """Also in combinations that nobody has seen (S4.6, R30)."""
    written = {**members(**properties), "$defs": {"A": {"type": ["array", "null"]}}}
    assert not refused(sent_schema(plain_schema(written), gemini=gemini), gemini=gemini)

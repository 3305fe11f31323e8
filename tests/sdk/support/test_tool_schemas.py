"""Values against a JSON Schema: neither a schema nor a value can hold up the host."""

from __future__ import annotations

from typing import Any

import pytest
from moryflow_sdk.support.tool_schemas import misfits

LONG = "a" * 60 + "!"


def texts(pattern: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (texts("(a+)+$"), LONG, "does not match"),
        (texts("(x+x+)+y"), "x" * 5000, "does not match"),
    ],
)
def test_no_pattern_holds_up_the_host(schema: dict[str, Any], value: str, message: str) -> None:
    """Python's own expressions would take years for these (D6)."""
    [(place, said)] = misfits(schema, {"a": value})
    assert message in said and (list(place) == ["a"] or "cannot be checked" in said)


@pytest.mark.parametrize("schema", [
    {"patternProperties": {"(?!x)(a+)+$": {}}},
    {"additionalProperties": False, "patternProperties": {"(?!x)(a+)+$": {}}},
    {"unevaluatedProperties": False, "patternProperties": {"(a+)+$": {}}},
    {"allOf": [{"patternProperties": {"^.*.*.*x$": {}}}], "unevaluatedProperties": False},
])  # fmt: skip
def test_no_pattern_for_names_holds_up_the_host(schema: dict[str, Any]) -> None:
    """The names, too, are a model's (D6)."""
    assert len(misfits(schema, {LONG * 100: 1})) <= 1


def test_names_are_matched_as_texts_are() -> None:
    """In linear time, and what matches no pattern is what the schema calls additional (D6)."""
    schema = {"patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": False}
    assert misfits(schema, {"a": 1}) == []
    found = {said for _, said in misfits(schema, {"a": "x", LONG: 1})}
    assert found == {"'x' is not of type 'integer'", f"Additional properties are not allowed ({LONG!r} was unexpected)"}


@pytest.mark.parametrize(("schema", "value"), [
    (texts("(a+)+$"), {"a": "aa"}),
    ({"patternProperties": {"^[a-z]+(-[a-z]+)*$": {"type": "integer"}}, "additionalProperties": False}, {"a-b-c": 1}),
    (texts("^[a-z]{2,}$"), {"a": "b" * 1_000_000}),
    (texts("^(?!-)[a-z-]+(?<!-)$"), {"a": "b-c"}),
    (texts("^(?!x)"), {"a": "b" * 1_000_000}),
    (texts(r"b\Z"), {"a": "ab"}),
    ({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}, {"x-a": 1}),
])  # fmt: skip
def test_a_value_that_fits_its_patterns_is_accepted(schema: dict[str, Any], value: Any) -> None:
    """Also with look-around, and also if it is long."""
    assert misfits(schema, value) == []

"""The arguments of a tool: simple hints are read without pydantic, and exactly as pydantic reads them."""

from __future__ import annotations

import inspect
import json
import math
import subprocess
import sys
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_sdk import Frozen
from moryflow_sdk.arguments import ToolArguments
from moryflow_sdk.field_types import Between
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model


class Edit(Frozen):
    """One edit.

    What a model reads of it.
    """

    path: Annotated[str, "where"]
    times: Annotated[int, Between(1, 9)] = 1
    all: Annotated[bool, "everywhere"] = False
    tags: Annotated[list[str] | None, "labels"] = None


EditModel = create_model(
    "Edit",
    __config__=ConfigDict(extra="forbid"),
    __doc__=Edit.__doc__,
    path=(str, Field(description="where")),
    times=(int, Field(default=1, ge=1, le=9)),
    all=(bool, Field(default=False, description="everywhere")),
    tags=(list[str] | None, Field(default=None, description="labels")),
)
"""What a person would write with pydantic."""


HINTS: list[tuple[Any, Any]] = [
    (str, str),
    (int, int),
    (float, float),
    (bool, bool),
    (Literal["a", "ö", ""], Literal["a", "ö", ""]),
    (Literal["only"], Literal["only"]),
    (Annotated[int, Between(1)], Annotated[int, Field(ge=1)]),
    (Annotated[int, Between(-5, 600)], Annotated[int, Field(ge=-5, le=600)]),
    (Annotated[float, Between(-math.inf, 1.5)], Annotated[float, Field(le=1.5)]),
    (Annotated[float, Between(0, 2)], Annotated[float, Field(ge=0, le=2)]),
    (Annotated[str, Between(1, 3)], Annotated[str, Field(min_length=1, max_length=3)]),
]
HINTS += [(mine | None, its | None) for mine, its in HINTS]
HINTS += [(list[mine], list[its]) for mine, its in HINTS]
HINTS += [
    (Annotated[list[str], Between(1, 2)], Annotated[list[str], Field(min_length=1, max_length=2)]),
    (list[list[bool]] | None, list[list[bool]] | None),
]
RECORDS: list[tuple[Any, Any]] = [(list[Edit], list[EditModel]), (Edit, EditModel), (list[Edit] | None, list[EditModel] | None)]
TEXTS = st.text(max_size=4) | st.sampled_from(["a", "ö", "", "only", "1", "true", "yes", "1.0", "\ud800", "é", "\0"])
SCALARS = st.none() | st.booleans() | st.integers(-7, 12) | st.integers() | st.floats() | TEXTS
EDITS = st.fixed_dictionaries(
    {}, optional={name: SCALARS | st.lists(TEXTS, max_size=2) for name in (*Edit.model_fields, "odd")}
)
GOOD_EDITS = st.fixed_dictionaries({"path": st.text(max_size=3)}, optional={"times": st.integers(1, 9), "all": st.booleans()})
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2))
OBJECTS = EDITS | GOOD_EDITS | st.lists(EDITS | GOOD_EDITS, max_size=3)
DEFAULTS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4)


def made(parameters: dict[str, tuple[Any, Any]]) -> ToolArguments:
    """Return what a function with such parameters, as hint and default, takes; ``...`` stands for no default."""

    def function(**_: Any) -> None: ...

    function.__signature__ = inspect.Signature(
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty if default is ... else default
            )
            for name, (_, default) in parameters.items()
        ]
    )
    function.__annotations__ = {name: hint for name, (hint, _) in parameters.items()}
    return ToolArguments("made", function, None)


def by_pydantic(parameters: dict[str, tuple[Any, Any]]) -> type[BaseModel]:
    """Return the model that a person would write."""
    fields: Any = parameters
    return create_model("made_arguments", __config__=ConfigDict(extra="forbid"), **fields)


def untitled(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: untitled(item) for key, item in schema.items() if not (key == "title" and isinstance(item, str))}
    return [untitled(item) for item in schema] if isinstance(schema, list) else schema


def outcome(function: Any, *args: Any) -> tuple[str, Any]:
    """Return what came out, as JSON in its order and with its types, or what pydantic says."""
    try:
        return "value", json.dumps(function(*args))
    except ValidationError as error:
        return "error", [(item["loc"], item["msg"]) for item in error.errors()]


@given(pair=st.sampled_from(HINTS + RECORDS), value=VALUES | OBJECTS)
def test_what_is_accepted_without_pydantic_is_what_pydantic_accepts(pair: tuple[Any, Any], value: Any):
    """Same values, in type and order too; where the direct check is not sure, pydantic decides and speaks."""
    arguments, model = made({"it": (pair[0], ...)}), by_pydantic({"it": (pair[1], ...)})
    expected = outcome(lambda: model.model_validate({"it": value}).model_dump(mode="json", exclude_unset=True))
    assert outcome(arguments.validate, {"it": value}) == expected


@given(pairs=st.lists(st.tuples(st.sampled_from(HINTS), SCALARS), max_size=3), required=st.integers(0, 3), odd=st.booleans())
def test_missing_and_unknown_arguments_are_as_pydantic_has_them(pairs: list[Any], required: int, odd: bool):
    """Defaults are not filled in, unknown arguments are named, and the order is that of the function."""
    names = [f"p{number}" for number in range(len(pairs))]
    defaults = [... if number < required else None for number in range(len(pairs))]
    fields = list(zip(names, pairs, defaults, strict=True))
    arguments = made({name: (pair[0], default) for name, (pair, _), default in fields})
    model = by_pydantic({name: (pair[1], default) for name, (pair, _), default in fields})
    given = {name: value for name, (_, value), _ in reversed(fields[1:])} | ({"odd": 1} if odd else {})
    expected = outcome(lambda: model.model_validate(given).model_dump(mode="json", exclude_unset=True))
    assert outcome(arguments.validate, given) == expected


@given(
    pair=st.sampled_from(HINTS + RECORDS),
    described=st.none() | st.text(max_size=9),
    default=st.just(...) | DEFAULTS,
)
def test_a_schema_made_here_is_the_one_pydantic_makes(pair: tuple[Any, Any], described: str | None, default: Any):
    """Byte for byte, for it stands at the head of every request."""
    mine, its = pair if described is None else (Annotated[pair[0], described], Annotated[pair[1], Field(description=described)])
    arguments, model = made({"it": (mine, default)}), by_pydantic({"it": (its, default)})
    expected = json.dumps(untitled(model.model_json_schema()))
    assert json.dumps(arguments.schema) == expected and "model" not in vars(arguments)


@pytest.mark.parametrize(
    "hint", [dict[str, int], Any, int | str, Literal[1], tuple[int, ...], Annotated[int, Field(ge=1)], list]
)
def test_other_hints_are_pydantics(hint: Any):
    """Also with bounds of ours in them."""
    arguments = made({"it": (hint, ...), "more": (Annotated[int, Between(1, 3)], 1)})
    assert arguments.schema["properties"]["more"] == {"default": 1, "maximum": 3, "minimum": 1, "type": "integer"}
    assert "model" in vars(arguments)
    with pytest.raises(ValidationError, match="less than or equal to 3"):
        arguments.validate({"it": 1, "more": 4})


def test_values_of_the_sdk_reach_the_function():
    """Whether the arguments were clear, or pydantic had to convert them."""
    arguments = made({"edits": (list[Edit], ...)})
    for times in (2, "2"):
        canonical = json.dumps(arguments.validate({"edits": [{"path": "a", "times": times}]})).encode()
        assert canonical == b'{"edits": [{"path": "a", "times": 2}]}'
        assert arguments.bind(canonical) == {"edits": [Edit(path="a", times=2)]}


def test_one_class_in_two_places_is_described_once():
    """A class that holds itself, or two of one name, cannot be described."""
    arguments = made({"a": (list[Edit], ...), "b": (Edit | None, None)})
    assert list(arguments.schema["$defs"]) == ["Edit"]
    other = type("Edit", (Frozen,), {"__annotations__": {"x": int}, "__module__": __name__})
    with pytest.raises(Exception, match="JsonSchema"):
        _ = made({"a": (Edit, ...), "b": (other, ...)}).schema


def test_simple_tools_need_no_pydantic():
    """Neither to be described nor to be called: its import is a third of a start."""
    code = """
import json, sys
from typing import Annotated
from moryflow_sdk import tool

@tool
def greet(name: Annotated[str, "who"], times: int = 1, to: list[str] | None = None) -> str:
    "Greet."
    return name * times

assert greet.parameters["required"] == ["name"]
assert greet.bind(json.dumps(greet.validate({"name": "a", "to": ["b"]})).encode(), None) == {"name": "a", "to": ["b"]}
print("pydantic" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_an_argument_may_be_called_as_a_method_of_a_model_is(recwarn: pytest.WarningsRecorder):
    """pydantic would warn the author of a name that nobody uses."""

    def look(schema: dict[str, Any], json: str = "") -> None: ...

    arguments = ToolArguments("look", look, None)
    assert arguments.validate({"schema": {"a": 1}, "json": "x"}) == {"schema": {"a": 1}, "json": "x"}
    assert list(recwarn) == []

"""Settings are read without pydantic, and are what pydantic would make of them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow.base.builtins import BUILTINS
from moryflow.config.schema import host_models
from moryflow_sdk.support.settings import Meta, ServerSettings, Settings, from_json, pydantic_model
from pydantic import BaseModel, ValidationError

MODELS: list[type[Settings]] = [
    *(model for _, model in host_models()),
    ServerSettings,
    *(found for name in BUILTINS if (found := getattr(import_module(name), "config_model", None)) is not None),
]
ODD: list[Any] = [
    None, True, False, 0, 1, 7, 10**6, 2**70, 10**400, -1, 0.5, 1.0, float("inf"), float("nan"), "", "7", "a", "\0", "\ud800",
    "http://x/", "off", "agent", "auto", {}, [], ["a"], [1], {"a": "b"}, {"a": 1}, {"a": {}}, {"a": [{"b": None}]},
]  # fmt: skip
PLAIN: st.SearchStrategy[Any] = st.sampled_from(ODD)


def fitting(hint: Any) -> st.SearchStrategy[Any]:
    """Values for a field of a type: most of them good, some almost."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fitting(parts[0])
    if origin is Literal:
        return st.sampled_from(parts)
    if isinstance(hint, type) and issubclass(hint, Settings):
        return sections(hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(st.sampled_from(["a", "*", ""]), nearly(parts[1]), max_size=2)
    if origin is tuple:
        return st.lists(nearly(parts[0]), max_size=2)
    simple = {
        str: st.sampled_from(["a", "http://x/"]),
        bool: st.booleans(),
        int: st.integers(0, 9),
        float: st.sampled_from([0.5, 1]),
    }
    if hint in simple:
        return simple[hint]
    return st.one_of(*map(fitting, parts)) if parts else PLAIN


def nearly(hint: Any) -> st.SearchStrategy[Any]:
    return st.one_of(fitting(hint), fitting(hint), fitting(hint), PLAIN)


@cache
def sections(model: type[Settings]) -> st.SearchStrategy[dict[str, Any]]:
    """Sections of a configuration for `model`; a name may be the program's, or nobody's."""
    known = {field.alias: nearly(field.annotation) for field in model.model_fields.values()}
    odd = {name: nearly(field.annotation) for name, field in model.model_fields.items()}
    return st.one_of(
        st.fixed_dictionaries({}, optional=known), st.fixed_dictionaries({}, optional={**known, **odd, "x": PLAIN})
    )


def outcome(make: Any, section: Any) -> Any:
    """What comes of it: the values, or what is said."""
    try:
        made = make(section)
    except ValidationError as error:
        return error.errors(include_url=False, include_context=False, include_input=False)
    return plain(made)


def plain(value: Any) -> Any:
    """A value to compare, in which 1, 1.0 and True are three things."""
    if isinstance(value, BaseModel | Settings):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}, sorted(value.model_fields_set)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else (type(value).__name__, repr(value))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@given(st.data())
@settings(max_examples=60)
def test_settings_are_what_pydantic_makes_of_them(model: type[Settings], data: st.DataObject) -> None:
    """From a section as it is read, as it stands in a file, and strictly: the same values, the same words."""
    section = data.draw(sections(model))
    made = pydantic_model(model)
    assert outcome(model.model_validate, section) == outcome(made.model_validate, section)
    text = json.dumps(section)
    for strict in (False, True):
        as_text = outcome(partial(made.model_validate_json, strict=strict or None), text)
        assert outcome(partial(from_json, model, strict=strict), section) == as_text


class Nested(Settings):
    """A part."""

    count: Annotated[int, Meta(gt=0)] = 1


class Sample(Settings):
    """Settings of a plugin."""

    aliases = {"word": "$word"}

    word: Annotated[str, Meta("said at the end", min_length=2)]
    long_name: Annotated[float, Meta(ge=0, le=9)] | None = None
    parts: dict[str, Nested] = {}
    part: Nested = Nested()


def test_names_are_camel_case_or_what_is_said_and_unknown_ones_are_left_out() -> None:
    made = Sample.model_validate({"$word": "ho", "longName": 3, "parts": {"a": {"count": 2, "x": 1}}, "other": 1})
    assert made == Sample(word="ho", long_name=3.0, parts={"a": Nested(count=2)})
    assert made.model_fields_set == {"word", "long_name", "parts"}
    assert pickle.loads(pickle.dumps(made)) == made and hash(made) == hash(pickle.loads(pickle.dumps(made)))
    assert made.replace(word="hi") == Sample(word="hi", long_name=3.0, parts={"a": Nested(count=2)})


def test_what_is_wrong_is_said_by_pydantic() -> None:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate({"$word": "h", "parts": {"a": {"count": 0}}})
    told = [(error["loc"], error["msg"]) for error in caught.value.errors()]
    assert told == [
        (("$word",), "String should have at least 2 characters"),
        (("parts", "a", "count"), "Input should be greater than 0"),
    ]
    with pytest.raises(ValidationError, match="Field required"):
        Sample.model_validate({})


def test_what_only_pydantic_understands_is_converted_by_it() -> None:
    assert Sample.model_validate({"word": "ho", "longName": "3", "part": {"count": "4"}}).part == Nested(count=4)
    with pytest.raises(ValidationError):
        from_json(Sample, {"$word": "ho", "longName": "3"}, strict=True)


def test_the_schema_has_limits_and_descriptions() -> None:
    properties = pydantic_model(Sample).model_json_schema()["properties"]
    assert properties["$word"] == {"type": "string", "minLength": 2, "description": "said at the end", "title": "$Word"}
    assert properties["part"]["default"] == {"count": 1}


def test_settings_that_are_right_need_no_pydantic() -> None:
    code = (
        "import sys\n"
        "from moryflow_sdk.support.settings import ModelsSettings\n"
        "own = {'baseUrl': 'http://x/', 'models': {'m': {'maxOutput': 9}}}\n"
        "made = ModelsSettings.model_validate({'providers': {'own': own}})\n"
        "assert made.providers['own'].base_url == 'http://x' and made.providers['own'].models['m'].max_output == 9\n"
        "print([name for name in sys.modules if name.startswith('pydantic')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stderr

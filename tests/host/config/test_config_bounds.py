"""Every number has bounds and every choice its names: what is beyond them is refused with what to write (D40, S0.87)."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from moryflow.config import load_config, merged, nested
from moryflow.config.schema import host_models
from moryflow_sdk.support.settings import Settings
from pydantic import BaseModel


def kinds(annotation: Any) -> Iterator[Any]:
    """The types that a setting may have, without what surrounds them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from kinds(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for one in get_args(annotation):
            yield from kinds(one)
    else:
        yield annotation


def settings_of(path: str, model: Any) -> Iterator[tuple[str, Any]]:
    """Every setting below `path` that is not a section, with its types."""
    for name, field in model.model_fields.items():
        place = f"{path}.{field.alias or name}".removeprefix(".")
        for kind in kinds(field.annotation):
            if isinstance(kind, type) and issubclass(kind, (BaseModel, Settings)):
                yield from settings_of(place, kind)
            else:
                yield place, kind


@pytest.fixture(scope="module")
def every(known: Any) -> list[tuple[str, Any]]:
    return [setting for path, model in (*host_models(), *known) for setting in settings_of(path, model)]


def refused(keys: Sequence[str], written: str, home: Path, known: Any) -> dict[str, str]:
    """What is said of each setting where all of them have this value; empty for one that is taken."""
    assert keys
    text = json.dumps(reduce(merged, [nested(key.split("."), "@@") for key in keys])).replace('"@@"', written)
    (home / "config.jsonc").write_text(text)
    problems = load_config(home, environ={}).checked(known).problems
    if unread := [problem.message for problem in problems if problem.code == "config_syntax"]:
        return dict.fromkeys(keys, unread[0])
    return {key: " ".join(p.message for p in problems if p.message.startswith(f"{key}: ")) for key in keys}


@pytest.mark.parametrize("written", ["1e18", "1000000000000000000", "-1", "1e400", "true", '"5"', "[5]", "NaN"])
def test_no_number_is_taken_as_it_comes(written: str, every: Any, tmp_path: Path, known: Any) -> None:
    """Huge, negative, none, true and digits in quotes: the default holds, and what would do is said (D40)."""
    said = refused([key for key, kind in every if kind in (int, float)], written, tmp_path, known)
    assert [key for key, text in said.items() if not text] == []


def test_a_misspelt_choice_names_those_there_are(every: Any, tmp_path: Path, known: Any) -> None:
    """The names stand in the message (D40)."""
    choices = {key: get_args(kind) for key, kind in every if get_origin(kind) is Literal}
    assert len(choices) > 5
    for key, text in refused(list(choices), '"bogus"', tmp_path, known).items():
        assert text and [name for name in choices[key] if str(name) not in text] == [], key


@pytest.mark.parametrize("written", ['"maybe"', "7"])
def test_a_switch_is_true_or_false(written: str, every: Any, tmp_path: Path, known: Any) -> None:
    """``"no"`` is a text, and so is ``"false"``."""
    said = refused([key for key, kind in every if kind is bool], written, tmp_path, known)
    assert [key for key, text in said.items() if not text] == []

"""Every number has bounds and every choice its names: what is beyond them is refused with what to write (D40, S0.87)."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from moryflow.config import load_config
from moryflow.config.layers import nested
from moryflow.config.schema import host_models
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


def settings_of(path: str, model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """Every setting below `path` that is no section, with its types."""
    for name, field in model.model_fields.items():
        place = f"{path}.{field.alias or name}".removeprefix(".")
        for kind in kinds(field.annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from settings_of(place, kind)
            else:
                yield place, kind


@pytest.fixture(scope="module")
def every(known: Any) -> list[tuple[str, Any]]:
    return [setting for path, model in (*host_models(), *known) for setting in settings_of(path, model)]


def refused(key: str, written: str, home: Path, known: Any) -> str:
    """What is said of a value; empty when it is taken."""
    text = json.dumps(nested(key.split("."), "@@")).replace('"@@"', written)
    (home / "config.jsonc").write_text(text)
    return " ".join(str(problem) for problem in load_config(home, environ={}, known=known).problems)


@pytest.mark.parametrize("written", ["1e18", "1000000000000000000", "-1", "1e400", "true", '"5"', "[5]", "NaN"])
def test_no_number_is_taken_as_it_comes(written: str, every: Any, tmp_path: Path, known: Any) -> None:
    """Huge, negative, none, true and digits in quotes: the default holds, and what would do is said (D40)."""
    taken = [key for key, kind in every if kind in (int, float) and not refused(key, written, tmp_path, known)]
    assert [key for key, kind in every if kind in (int, float)]
    assert taken == []


def test_a_misspelt_choice_names_those_there_are(every: Any, tmp_path: Path, known: Any) -> None:
    """The names stand in the message (D40)."""
    choices = [(key, get_args(kind)) for key, kind in every if get_origin(kind) is Literal]
    assert len(choices) > 5
    for key, names in choices:
        said = refused(key, '"bogus"', tmp_path, known)
        assert said and [name for name in names if str(name) not in said] == [], key


def test_a_switch_is_true_or_false(every: Any, tmp_path: Path, known: Any) -> None:
    """``"no"`` is a text, and so is ``"false"``."""
    switches = [key for key, kind in every if kind is bool]
    assert [key for key in switches if not refused(key, '"maybe"', tmp_path, known)] == []
    assert [key for key in switches if not refused(key, "7", tmp_path, known)] == []

"""Validate a layer against the models of its settings: drop and report bad values, keep the rest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from moryflow_sdk.secrets import hidden, masked
from pydantic import BaseModel, ValidationError

from .layers import MISSING, Layer, dotted, step_into
from .problems import MOST, Problem
from .rules import holds_deny
from .schema import Known

_ROUNDS = 5
"""Dropping one value may bring another error to light; after this many rounds the whole section goes."""

TIGHTENING = (("disabledPlugins",), ("onlyPlugins",), ("safeMode",), ("profile",), ("limits",))
"""Settings whose defaults are looser than whatever was meant: one that is lost fails the check, as a lost deny does."""


def drop_bad_values(layer: Layer, known: Iterable[Known], *, strict: bool = False) -> tuple[Layer, list[Problem]]:
    """Return `layer` with only values that its models accept, and what was dropped.

    :param strict: ``"2000"`` is not 2000. A plugin's model says so itself, as it does when the plugin is loaded.
    """
    problems: list[Problem] = []
    for path, model in known:
        layer = _checked(layer, tuple(path.split(".")) if path else (), model, problems, strict)
    if len(problems) > MOST:
        rest = layer.problem((), f"{len(problems) - MOST} more values are wrong", code="config_value")
        problems = [*problems[:MOST], rest]
    return layer, problems


def _checked(layer: Layer, path: tuple[str, ...], model: type[BaseModel], problems: list[Problem], strict: bool) -> Layer:
    for end in range(1, len(path) + 1):
        section = layer.find(path[:end])
        if section is MISSING:
            return layer
        if not isinstance(section, Mapping):
            message = f"{dotted(path[:end])} must be an object, not {kind(section)}; it is ignored"
            problems.append(layer.problem(path[:end], message, code="config_type", fatal=holds_deny(section)))
            return layer.without(path[:end])
    for _ in range(_ROUNDS):
        found = layer.find(path)
        section = _own(found, model) if isinstance(found, Mapping) else None
        if not section:
            return layer
        try:
            made = model.model_validate_json(json.dumps(section), strict=strict or None)
        except ValidationError as error:
            if all(map(_may_stand_elsewhere, error.errors())):
                return layer
            layer = _without_bad(layer, path, section, error, problems)
        else:
            problems.extend(_remarks(layer, path, made))
            return layer
    return layer.without(path) if path else layer


def _remarks(layer: Layer, path: tuple[str, ...], made: BaseModel) -> Iterable[Problem]:
    """Return what a model that drops bad values itself has to say; each sentence begins with the key."""
    for sentence in getattr(made, "problems", ()):
        key = str(sentence).partition(":")[0]
        yield layer.problem((*path, *key.split(".")), f"{dotted(path)}.{sentence}", code="config_value")


def _own(section: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return the part of `section` that `model` declares; another model may declare the rest."""
    names = fields(model)
    return {key: value for key, value in section.items() if key in names}


def _may_stand_elsewhere(detail: Mapping[str, Any]) -> bool:
    """Whether what is missing may be given by another layer, as a key is; lists are not put together."""
    return detail["type"] == "missing" and not any(isinstance(step, int) for step in detail["loc"])


def _without_bad(
    layer: Layer, path: tuple[str, ...], section: dict[str, Any], error: ValidationError, problems: list[Problem]
) -> Layer:
    bad: dict[tuple[str | int, ...], str] = {}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        if _may_stand_elsewhere(detail):
            continue
        place = (*path, *deepest(section, detail["loc"]))
        bad.setdefault(place, _fault(layer, place, (*path, *detail["loc"]), str(detail["msg"])))
    for place, message in bad.items():
        problems.append(layer.problem(place, message, code="config_value", fatal=place[:1] in TIGHTENING))
    for place in sorted(bad, key=_last_first, reverse=True):
        layer = layer.without(place) if place else layer
    return layer


def _fault(layer: Layer, place: tuple[str | int, ...], location: tuple[str | int, ...], message: str) -> str:
    """Say what is wrong at `location`, and what is left out for it: the value, or the entry of a list at `place`."""
    if isinstance(place[-1] if place else "", int):
        value, name, left_out = layer.find(location), dotted(location), "the entry is left out"
    else:
        left_out = "the default holds" if layer.source == "user" else "it is left out"
        value, name = layer.find(place), dotted(place)
    plain = value is not MISSING and not isinstance(value, Mapping | list)
    key = next((name for name in reversed(location) if isinstance(name, str)), "")
    shown = f", not {json.dumps(hidden(masked(value, name=key)), ensure_ascii=False)[:60]}" if plain else ""
    return f"{name}: {sentence(message)}{shown}; {left_out}"


def _last_first(place: tuple[str | int, ...]) -> tuple[Any, ...]:
    return tuple((0, part, "") if isinstance(part, int) else (1, 0, part) for part in place)


def deepest(value: Any, location: tuple[str | int, ...]) -> list[str | int]:
    """Follow `location` as far as it exists; union members and missing keys are steps that do not."""
    place: list[str | int] = []
    for step in location:
        inner = step_into(value, step)
        if inner is not MISSING:
            place.append(step)
            value = inner
    return _whole_entry(place)


def _whole_entry(place: list[str | int]) -> list[str | int]:
    """Half an entry of a list is not what somebody wrote: drop the entry."""
    for index, step in enumerate(place):
        if isinstance(step, int):
            return place[: index + 1]
    return place


def sentence(message: str) -> str:
    """Return what pydantic says as the end of a sentence."""
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    return message[:1].lower() + message[1:]


def kind(value: Any) -> str:
    """Name the JSON type of `value`."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def fields(model: type[BaseModel]) -> dict[str, Any]:
    """Return the names a section of `model` may hold, with their types."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}

"""Check a layer: drop and report bad values and MCP servers, keep the rest.

Unknown keys are reported with the name that was probably meant.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from moryflow_sdk.hookspecs import HOOKS, spelled
from moryflow_sdk.support.secrets import hidden, masked
from moryflow_sdk.support.settings import ServerSettings, from_json, not_valid, wrong_name, wrong_values
from moryflow_sdk.support.texts import nearest

from moryflow.config import MAX_PROBLEMS, MISSING, Layer, Place, Problem, dotted, holds_deny, merged, nested, step_into

from .schema import RULES_PATH, Known

if TYPE_CHECKING:
    from pydantic import ValidationError


# Dropping one value may reveal another error; after this many rounds the whole section is dropped.
_ROUNDS = 5

AGENT = ("agents", "runtime", "agent")
# Settings whose defaults may be looser than another value: while one is dropped, every call is asked about.
TIGHTENING = (("disabledPlugins",), ("onlyPlugins",), ("safeMode",), ("profile",), ("limits",), AGENT)


def drop_bad_values(layer: Layer, known: Iterable[Known], *, strict: bool = False) -> tuple[Layer, list[Problem]]:
    """Return `layer` with only values that its models accept, and a problem for each value that was dropped.

    :param strict: do not accept ``"2000"`` for 2000. A plugin's model decides that itself, as when the plugin is loaded.
    """
    problems: list[Problem] = []
    for path, model in known:
        layer = _checked(layer, tuple(path.split(".")) if path else (), model, problems, strict)
    if len(problems) > MAX_PROBLEMS:
        rest = problems[MAX_PROBLEMS:]
        asks = any(problem.asks for problem in rest)
        problems = [
            *problems[:MAX_PROBLEMS],
            layer.problem((), f"{len(rest)} more values are wrong", code="config_value", asks=asks),
        ]
    return layer, problems


def _checked(layer: Layer, path: tuple[str, ...], model: Any, problems: list[Problem], strict: bool) -> Layer:
    for end in range(1, len(path) + 1):
        section = layer.find(path[:end])
        if section is MISSING:
            return layer
        if not isinstance(section, Mapping):
            strictest = getattr(model, "strictest", {}) if end == len(path) and not isinstance(section, bool | None) else {}
            asks, fatal = _tightens(path[:end]) and _says_something(section), bool(strictest) or holds_deny(section)
            effect = "" if asks else f"; {_short(strictest)} is used" if strictest else "; it is ignored"
            message = f"{dotted(path[:end])} must be an object, not {kind(section)}{effect}"
            problems.append(layer.problem(path[:end], message, code="config_type", fatal=fatal, asks=asks))
            layer = layer.without(path[:end])
            return replace(layer, value=merged(layer.value, nested(path, dict(strictest)))) if strictest else layer
    for _ in range(_ROUNDS):
        found = layer.find(path)
        section = _declared_part(found, model) if isinstance(found, Mapping) else None
        if not section:
            return layer
        try:
            made = from_json(model, section, strict=strict)
        except not_valid() as error:
            if all(map(_may_stand_elsewhere, error.errors())):
                return layer
            layer = _without_bad(layer, path, section, error, problems, getattr(model, "strictest", {}))
        else:
            problems.extend(_remarks(layer, path, made))
            return layer
    return layer.without(path) if path else layer


def _remarks(layer: Layer, path: tuple[str, ...], made: Any) -> Iterable[Problem]:
    """Yield the problems of a model that drops bad values itself; each sentence begins with the key."""
    for sentence in getattr(made, "problems", ()):
        key = str(sentence).partition(":")[0]
        yield layer.problem((*path, *key.split(".")), f"{dotted(path)}.{sentence}", code="config_value")


def _declared_part(section: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return the part of `section` that `model` declares; another model may declare the rest."""
    names = {field.alias or name for name, field in model.model_fields.items()}
    return {key: value for key, value in section.items() if key in names}


def _may_stand_elsewhere(detail: Mapping[str, Any]) -> bool:
    """Whether a missing value may be in another layer, as a key is; not for an item of a list, since lists are not merged."""
    return detail["type"] == "missing" and not any(isinstance(step, int) for step in detail["loc"])


def _without_bad(
    layer: Layer,
    path: tuple[str, ...],
    section: dict[str, Any],
    error: ValidationError,
    problems: list[Problem],
    strictest: Mapping[str, Any],
) -> Layer:
    bad: dict[tuple[str | int, ...], str] = {}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        if _may_stand_elsewhere(detail):
            continue
        place = (*path, *deepest(section, detail["loc"]))
        bad.setdefault(place, _fault(layer, place, (*path, *detail["loc"]), str(detail["msg"])))
    own = [place for place in bad if len(place) == len(path) + 1 and place[-1] in strictest]
    # A plain no (null) restricts nothing; of anything else nobody knows whether it was meant to.
    strict = {place: strictest[str(place[-1])] for place in own if layer.find(place) is not None}
    for place, message in bad.items():
        fatal = _tightens(place) or place in strict
        asks = fatal and place not in strict and place[0] not in strictest and _says_something(layer.find(place))
        if not asks:
            message += f"; {_short(strict[place])} is used" if place in strict else f"; {_effect(layer, place)}"
        problems.append(layer.problem(place, message, code="config_value", fatal=fatal, asks=asks))
    for place in sorted(bad, key=_last_first, reverse=True):
        layer = layer.without(place) if place else layer
    for place, value in strict.items():
        layer = replace(layer, value=merged(layer.value, nested([str(name) for name in place], value)))
    return layer


def _tightens(place: Place) -> bool:
    return any(tuple(place[: len(path)]) == path for path in TIGHTENING)


def _says_something(value: Any) -> bool:
    """Whether a value in a place that restricts may have been meant to restrict."""
    return not (value is None or value is False or value == {})


def _effect(layer: Layer, place: Place) -> str:
    if isinstance(place[-1] if place else "", int):
        return "the entry is left out"
    return "the default is used" if layer.source == "user" else "it is left out"


def _fault(layer: Layer, place: tuple[str | int, ...], location: tuple[str | int, ...], message: str) -> str:
    location = location if isinstance(place[-1] if place else "", int) else place
    # Without pydantic's steps for the members of a union, such as ``function-after[…]``.
    location = tuple(step for step in location if not (isinstance(step, str) and step.endswith("]")))
    value, name = layer.find(location), dotted(location)
    plain = value is not MISSING and not isinstance(value, Mapping | list)
    key = next((name for name in reversed(location) if isinstance(name, str)), "")
    shown = f", not {json.dumps(hidden(masked(value, name=key)), ensure_ascii=False)[:60]}" if plain else ""
    return f"{name}: {sentence(message)}{shown}"


def _last_first(place: tuple[str | int, ...]) -> tuple[Any, ...]:
    return tuple((0, part, "") if isinstance(part, int) else (1, 0, part) for part in place)


def deepest(value: Any, location: tuple[str | int, ...]) -> list[str | int]:
    """Follow `location` as far as it exists. Steps for union members and missing keys do not exist and are skipped."""
    place: list[str | int] = []
    for step in location:
        inner = step_into(value, step)
        if inner is not MISSING:
            place.append(step)
            value = inner
            if isinstance(step, int):  # an entry of a list is dropped as a whole, because half of it was never meant
                break
    return place


def sentence(message: str) -> str:
    """Return pydantic's message as the end of a sentence."""
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    return message[:1].lower() + message[1:]


def kind(value: Any) -> str:
    """Return the JSON type of `value`, with its article."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


_MODE = ("agents", "runtime", "mode", "default")
_HOOKS = ("agents", "runtime", "hooks")


def normalised(layer: Layer) -> Layer:
    """Return `layer` with the older name of the mode `agent`, and hooks in one word, written as they are now."""
    if layer.find(_MODE) == "ask":
        layer = replace(layer, value=merged(layer.value, nested(_MODE, "agent")))
    hooks = layer.find(_HOOKS)
    if not isinstance(hooks, Mapping) or not any("." in name for name in hooks):
        return layer
    nested_hooks: Any = {}
    for name, value in hooks.items():
        known = spelled(name) if "." in name else None
        nested_hooks = _joined(nested_hooks, nested(HOOKS[known].dotted.split("."), value) if known else {name: value})
    agents, runtime = layer.value["agents"], layer.value["agents"]["runtime"]
    return replace(layer, value={**layer.value, "agents": {**agents, "runtime": {**runtime, "hooks": nested_hooks}}})


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return {**first, **{key: _joined(first[key], item) if key in first else item for key, item in second.items()}}
    return [*first, *second] if isinstance(first, list) and isinstance(second, list) else second


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:60]


SECTION = ("mcp", "servers")
CODE = "mcp_config"
Fault = tuple[Place, str]


def checked_servers(layer: Layer) -> tuple[Layer, list[Problem]]:
    """Return `layer` without invalid MCP servers, and the problems. A server is dropped as a whole, never a part of it."""
    section = layer.find(("mcp",))
    if section is MISSING:
        return layer, []
    for end, value in ((1, section), (2, layer.find(SECTION))):
        if value is not MISSING and not isinstance(value, Mapping):
            text = f"{'.'.join(SECTION[:end])} must be an object, not {kind(value)}; it is ignored"
            return layer.without(SECTION[:end]), [layer.problem(SECTION[:end], text, code=CODE)]
    servers = layer.find(SECTION)
    if servers is MISSING:
        return layer, []
    problems: list[Problem] = []
    bad: set[str] = set()
    for name, server in servers.items():
        for place, fault in _faults(str(name), server):
            bad.add(name)
            problems.append(layer.problem((*SECTION, name, *place), f"{fault}; the entry is left out", code=CODE))
    if len(problems) > MAX_PROBLEMS:
        more = layer.problem(SECTION, f"{len(problems) - MAX_PROBLEMS} more faults in MCP servers", code=CODE)
        problems = [*problems[:MAX_PROBLEMS], more]
    kept = {name: server for name, server in servers.items() if name not in bad}
    return replace(layer, value={**layer.value, "mcp": {**section, "servers": kept}}), problems


def _faults(name: str, server: Any) -> Iterator[Fault]:
    shown = f"MCP server {name[:60]!r}"
    if text := wrong_name(name):
        yield (), f"{shown}: {text}"
    if not isinstance(server, Mapping):
        yield (), f"{shown} must be an object with command or url, not {kind(server)}"
        return
    wrong = list(_wrong_types(server))
    yield from ((place, f"{shown}: {text}") for place, text in wrong or wrong_values(server))


def _wrong_types(server: Mapping[str, Any]) -> Iterator[Fault]:
    try:
        from_json(ServerSettings, server, strict=True)
    except not_valid() as error:
        for place, message in {
            tuple(deepest(server, detail["loc"])): sentence(str(detail["msg"]))
            for detail in error.errors(include_url=False, include_context=False, include_input=False)
        }.items():
            yield place, f"{dotted(place)}: {message}"


# What is known below a place: the rest of a path, and the model or type there.
_Models = list[tuple[tuple[str, ...], Any]]


def unknown_keys(layer: Layer, known: Iterable[Known]) -> list[Problem]:
    """Return a problem for every key that no model declares, with a similar name of the same section."""
    models = [(tuple(path.split(".")) if path else (), model) for path, model in (*known, (RULES_PATH, None))]
    return list(islice(_unknown_keys_in(layer, (), layer.value, models), MAX_PROBLEMS))


def _unknown_keys_in(layer: Layer, path: tuple[str | int, ...], value: Any, models: _Models) -> Iterator[Problem]:
    here = [part for rest, model in models if not rest for part in _parts(model)]
    if isinstance(value, list):
        items: _Models = [((), get_args(part)[0]) for part in here if get_origin(part) in (tuple, list)]
        for index, item in enumerate(value) if items else ():
            yield from _unknown_keys_in(layer, (*path, index), item, items)
    if not isinstance(value, Mapping):
        return
    fields = {field.alias or name: field for part in here for name, field in getattr(part, "model_fields", {}).items()}
    open_to: _Models = [((), get_args(part)[1]) for part in here if get_origin(part) in (dict, Mapping)]
    is_open = bool(open_to) or any(getattr(part, "model_config", {}).get("extra") == "allow" for part in here)
    names = {*fields, *(rest[0] for rest, _ in models if rest)}
    for key, item in value.items() if names or is_open else ():
        if key in names or is_open:
            inner: _Models = [(rest[1:], model) for rest, model in models if rest[:1] == (key,)]
            inner += [((), fields[key].annotation)] if key in fields else []
            yield from _unknown_keys_in(layer, (*path, key), item, inner or open_to)
            continue
        place = (*path, key)
        near = nearest(_plain(key), {_plain(name): name for name in names})
        meant = next((name for name in names if near and _plain(name) == near), "")
        hint = f'did you mean "{meant}"?' if meant else "moryflow config show --all"
        fatal = any(map(_tightens, (place, (*path, meant)))) or holds_deny({key: item})
        yield layer.problem(place, f'unknown key "{dotted(place)}"', hint, code="config_unknown_key", fatal=fatal)


def _plain(key: str) -> str:
    return key.casefold().replace("_", "").replace("-", "")


def _parts(annotation: Any) -> list[Any]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _parts(inner[0])
    if origin in (Union, types.UnionType):
        return [part for each in inner for part in _parts(each)]
    return [annotation] if hasattr(annotation, "model_fields") or origin in (dict, Mapping, tuple, list) else []

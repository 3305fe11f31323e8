"""JSON Schemas: whether that of a tool can be sent to a model service, looked at once; and what in a value does not fit one.

Nothing is fetched for it. A schema that one service refuses makes every request of the turn fail, not only calls of
the tool; so what they refuse, and what a validator or a converter would never end with, is refused here with its reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from itertools import count, islice
from typing import Any, cast
from urllib.parse import unquote

MOST_BYTES = 256 * 1024
MOST_DEPTH = 32
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_AT_THE_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if")
"""What services do not take beside ``"type": "object"``: the arguments are always one object with named members."""


RULES = 2
"""Of the checks below: what an earlier one has found usable is looked at again."""


class CheckedSchema(dict[str, Any]):
    """A schema that :func:`plain_schema` has found usable; a built-in plugin that stores it need not have it checked again."""


def plain_schema(schema: Any) -> dict[str, Any]:
    """Return `schema` as plain JSON of our own, which nobody else can change.

    :raises ValueError: a tool cannot have it; the text says why.
    """
    plain = _plain(schema)
    if plain.setdefault("type", "object") != "object" or any(word in plain for word in ("$ref", *_AT_THE_TOP)):
        raise ValueError("a tool takes one object with named arguments: type and properties, and no choice between several")
    _check(plain, plain, 0, "")
    for name in plain.get("properties", {}):
        if not _ARGUMENT.fullmatch(name):
            raise ValueError(f"{_said(name)} is not an argument name: up to 64 letters, digits, _ . and -")
    if place := _endless(plain):
        raise ValueError(f"the reference {_said(place)} leads back to itself, so that no value ever fits")
    return plain


def _plain(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        raise ValueError("it is not an object")
    _only_names(schema)
    try:
        text = json.dumps(schema, allow_nan=False, default=_listed)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if len(text) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES // 1024} KiB")
    return cast("dict[str, Any]", json.loads(text))


def _listed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise TypeError(f"{value!r:.60} is a {type(value).__name__}")


def _only_names(schema: Any) -> None:
    """Refuse keys that JSON would quietly make text of, and text that cannot be sent."""
    waiting: list[tuple[Any, int]] = [(schema, 0)]
    while waiting:
        part, depth = waiting.pop()
        if depth > MOST_DEPTH * 2:
            raise ValueError(f"it is nested deeper than {MOST_DEPTH}, or holds itself")
        if isinstance(part, Mapping):
            for key in (mapping := cast("Mapping[Any, Any]", part)):
                if not isinstance(key, str):
                    raise ValueError(f"the key {key!r:.40} is not text")
            waiting += [(item, depth + 1) for pair in mapping.items() for item in pair]
        elif isinstance(part, list | tuple):
            waiting += [(item, depth + 1) for item in cast("list[Any]", part)]
        elif isinstance(part, str) and not can_be_sent(part):
            raise ValueError(f"{_said(part)} holds half of a surrogate pair, which cannot be sent")


def can_be_sent(text: str) -> bool:
    """Whether `text` is Unicode that a request can carry."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# ---------------------------------------------------------------- keywords


def _check(part: Any, root: dict[str, Any], depth: int, place: str) -> None:
    """Go through one schema and those inside it.

    :param place: where it stands, as a person finds it.
    """
    if depth > MOST_DEPTH:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH}")
    if isinstance(part, bool) and place:
        return
    if not isinstance(part, dict):
        raise ValueError(f'{place} must be a schema: an object, as in {{"type": "string"}}')
    for keyword, value in cast("dict[str, Any]", part).items():
        here = f"{place}.{keyword}" if place else keyword
        if keyword in _CHECKS:
            wanted, holds = _CHECKS[keyword]
            if not holds(value):
                raise ValueError(f"{here} must be {wanted}, not {_said(value)}")
        if keyword == "$ref":
            _target(value, root)
        if keyword in _OTHER_REFERENCES:
            raise ValueError(f"{here} is a reference that no service follows; write $ref")
        for name, inner in _inside(keyword, value):
            _check(inner, root, depth + 1, f"{here}{name}")


def _inside(keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas that stand under a keyword, each with the rest of its place."""
    if keyword in _MAPS:
        yield from ((f".{_short(name)}", inner) for name, inner in value.items())
    elif keyword in _LISTS:
        yield from ((f"[{number}]", inner) for number, inner in enumerate(value))
    elif keyword in _ONE:
        yield "", value


_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_ITEMS = ("items", "contains", "unevaluatedItems")
_MEMBERS = ("additionalProperties", "propertyNames", "unevaluatedProperties")
_OTHER_REFERENCES = ("$dynamicRef", "$recursiveRef")
_ONE = frozenset((*_ITEMS, *_MEMBERS, "not", "if", "then", "else"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_names(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    names = cast("list[Any]", value)
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _is_type(value: Any) -> bool:
    return value in _TYPES if isinstance(value, str) else _are_names(value) and bool(value) and _TYPES.issuperset(value)


def _compiles(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except (re.error, RecursionError, OverflowError):
        return False


Check = tuple[str, Callable[[Any], bool]]
_TEXT: Check = ("text", lambda value: isinstance(value, str))
_NUMBER: Check = ("a number", _is_number)
_COUNT: Check = ("a number from 0", lambda value: _is_number(value) and isinstance(value, int) and value >= 0)
_SWITCH: Check = ("true or false", lambda value: isinstance(value, bool))
_OBJECT: Check = ("an object", lambda value: isinstance(value, dict))
_SOME: Check = ("a list that is not empty", lambda value: isinstance(value, list) and value != [])
_CHECKS: dict[str, Check] = {
    "type": (f"one of {', '.join(sorted(_TYPES))}, or a list of them", _is_type),
    "required": ("a list of names", _are_names),
    "pattern": ("a regular expression", _compiles),
    "multipleOf": ("a number above 0", lambda value: _is_number(value) and value > 0),
    "dependentRequired": (
        "an object of lists of names",
        lambda value: isinstance(value, dict) and all(map(_are_names, cast("dict[str, Any]", value).values())),
    ),
    **dict.fromkeys(("title", "description", "format", "$ref", "$id", "$schema", "$comment", "$anchor"), _TEXT),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _SWITCH),
    **dict.fromkeys(("enum", *_LISTS), _SOME),
    **dict.fromkeys(_MAPS, _OBJECT),
}


# ---------------------------------------------------------------- references


def _target(reference: str, root: dict[str, Any]) -> Any:
    """Return what a reference within the schema leads to; nothing is fetched.

    It leads only to where a schema stands: what stands elsewhere, such as in a ``default``, was not looked at.
    """
    if reference != "#" and not reference.startswith("#/"):
        raise ValueError(f"the reference {_said(reference)} does not lead to a part of it")
    place: Any = root
    keyword = ""
    for part in unquote(reference).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        inside = cast("dict[str, Any]", place) if isinstance(place, dict) else {}
        if not keyword and name not in _MAPS | _ONE:
            inside = {}
        place, keyword = inside.get(name), "" if keyword or name in _ONE else name
    if keyword or not isinstance(place, dict | bool):
        raise ValueError(f"the reference {_said(reference)} leads nowhere")
    return cast("Any", place)


def _endless(root: dict[str, Any]) -> str:
    """Return a reference that no finite value can satisfy, because one must come back to it; empty when there is none.

    A tree that refers to itself through members it may lack, or through a list, is fine.
    """
    leads = {reference: set(_forced(_target(reference, root))) for reference in _references(root)}
    while ends := [reference for reference, following in leads.items() if not following & leads.keys()]:
        for reference in ends:
            del leads[reference]
    return min(leads, default="")


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for keyword, value in cast("dict[str, Any]", part).items():
            if keyword == "$ref":
                yield value
            for _, inner in _inside(keyword, value):
                yield from _references(inner)


def _forced(part: Any) -> Iterator[str]:
    """Yield the references that every value of a schema has to follow."""
    if not isinstance(part, dict):
        return
    schema = cast("dict[str, Any]", part)
    if "$ref" in schema:
        yield schema["$ref"]
    members = schema.get("properties", {})
    for inner in (*schema.get("allOf", ()), *(members[name] for name in schema.get("required", ()) if name in members)):
        yield from _forced(inner)


# ---------------------------------------------------------------- words


def _said(value: Any) -> str:
    return f"{value!a:.60}"


def _short(name: str) -> str:
    return ascii(name)[1:-1][:40]


# ---------------------------------------------------------------- values


MOST_FAULTS = 10
MOST_REFERENCES = 50_000
"""That are followed to hold a value against a schema: less than a second."""
_followed: ContextVar[Iterator[int]] = ContextVar("followed")


def misfits(schema: Mapping[str, Any], value: Any) -> list[tuple[Iterable[str | int], str]]:
    """Return what in `value` does not fit a JSON Schema, as place and sentence; nothing that it refers to is fetched."""
    validators: Any = import_module("jsonschema.validators")
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    validator = _counting(kind)(schema, registry=import_module("jsonschema_specifications").REGISTRY)
    started = _followed.set(count(1))
    try:
        return [(error.absolute_path, error.message[:300]) for error in islice(validator.iter_errors(value), MOST_FAULTS)]
    except Exception as error:  # somebody else's schema: a pattern that is none, values nested without end
        return [((), f"the schema cannot be held against it: {type(error).__name__}: {error}"[:300])]
    finally:
        _followed.reset(started)


@lru_cache(maxsize=8)
def _counting(kind: Any) -> Any:
    """Return a validator that ends when it has followed :data:`MOST_REFERENCES`: thirty that each lead twice to the next are
    a billion."""
    plain = kind.VALIDATORS.get("$ref")
    if plain is None:
        return kind

    def follow(validator: Any, reference: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if next(_followed.get()) > MOST_REFERENCES:
            raise RecursionError(f"it leads through more than {MOST_REFERENCES} references")
        yield from plain(validator, reference, instance, schema) or ()

    return import_module("jsonschema.validators").extend(kind, {"$ref": follow})

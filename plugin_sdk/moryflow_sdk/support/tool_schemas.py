"""JSON Schemas: check once whether the schema of a tool can be sent to a model service; find what in a value does not fit.

Nothing is fetched. If a service refuses a schema, every request of the turn fails, not only calls of the tool. So this
module refuses, with a reason, what services refuse and what a validator or a converter would never finish with.
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

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_AT_THE_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if")
"""Keywords that services refuse beside ``"type": "object"``: the arguments are always one object with named members."""


RULES = 3
"""The version of the checks below: a stored schema that an earlier version accepted is checked again."""


class CheckedSchema(dict[str, Any]):
    """A schema that :func:`plain_schema` has accepted; a built-in plugin that stores it need not check it again."""


def plain_schema(schema: Any) -> dict[str, Any]:
    """Return a copy of `schema` as plain JSON, which its owner cannot change afterwards.

    :raises ValueError: a tool cannot have this schema; the message says why.
    """
    if not isinstance(schema, Mapping):
        raise ValueError("it is not an object")
    # JSON would silently convert other keys to text; and no service takes half of a surrogate pair.
    waiting: list[tuple[Any, int]] = [(schema, 0)]
    while waiting:
        part, depth = waiting.pop()
        if depth > MAX_DEPTH * 2:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH}, or holds itself")
        if isinstance(part, Mapping):
            for key in (mapping := cast("Mapping[Any, Any]", part)):
                if not isinstance(key, str):
                    raise ValueError(f"the key {key!r:.40} is not text")
            waiting += [(item, depth + 1) for pair in mapping.items() for item in pair]
        elif isinstance(part, list | tuple):
            waiting += [(item, depth + 1) for item in cast("list[Any]", part)]
        elif isinstance(part, str) and not can_be_sent(part):
            raise ValueError(f"{_quoted(part)} holds half of a surrogate pair, which cannot be sent")
    try:
        text = json.dumps(schema, allow_nan=False, default=_mapping_to_dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 1024} KiB")
    plain = _modern(cast("dict[str, Any]", json.loads(text)))
    if plain.setdefault("type", "object") != "object" or any(word in plain for word in ("$ref", *_AT_THE_TOP)):
        raise ValueError("a tool takes one object with named arguments: type and properties, and no choice between several")
    _check(plain, plain, 0, "")
    for name in plain.get("properties", {}):
        if not _ARGUMENT.fullmatch(name):
            raise ValueError(f"{_quoted(name)} is not an argument name: up to 64 letters, digits, _ . and -")
    return plain


def _modern(part: Any) -> Any:
    """Write older forms as today's: a list under ``items`` is ``prefixItems``, an empty ``enum`` says nothing."""
    if isinstance(part, list):
        return [_modern(item) for item in cast("list[Any]", part)]
    if not isinstance(part, dict):
        return part
    made = {
        key: value if key in ("default", "const", "enum", "examples", "required") else _modern(value)
        for key, value in cast("dict[str, Any]", part).items()
        if (key, value) != ("enum", [])
    }
    if isinstance(made.get("items"), list):
        others = {"items": made.pop("additionalItems")} if "additionalItems" in made else {}
        places = made.pop("items")
        made |= {**({"prefixItems": places} if places else {}), **others}
    return made


def _mapping_to_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise TypeError(f"{value!r:.60} is a {type(value).__name__}")


def can_be_sent(text: str) -> bool:
    """Whether `text` can be encoded as UTF-8, and so be sent in a request."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# ---------------------------------------------------------------- keywords


_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_ONE = frozenset((
    "items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties",
    "not", "if", "then", "else",
))  # fmt: skip


def _check(part: Any, root: dict[str, Any], depth: int, place: str) -> None:
    """Check one schema and those inside it: its shape, and the values that the host or a service would fail on.

    :param place: the path to the schema, for the message.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
    if isinstance(part, bool) and place:
        return
    if not isinstance(part, dict):
        raise ValueError(f'{place} must be a schema: an object, as in {{"type": "string"}}')
    for keyword, value in cast("dict[str, Any]", part).items():
        here = f"{place}.{keyword}" if place else keyword
        if wanted := _wanted(keyword, value):
            raise ValueError(f"{here} must be {wanted}, not {_quoted(value)}")
        if keyword == "$ref":
            _target(value, root)
        elif keyword in _MAPS:
            for name, inner in value.items():
                _check(inner, root, depth + 1, f"{here}.{ascii(name)[1:-1][:40]}")
        elif keyword in _LISTS:
            for number, inner in enumerate(value):
                _check(inner, root, depth + 1, f"{here}[{number}]")
        elif keyword in _ONE:
            _check(value, root, depth + 1, here)


def _wanted(keyword: str, value: Any) -> str:
    match keyword:
        case "type":
            kinds: list[Any] = cast("list[Any]", value) if isinstance(value, list) and value else [value]
            known = all(isinstance(kind, str) and kind in _TYPES for kind in kinds)
            return "" if known else f"one of {', '.join(sorted(_TYPES))}, or a list of them"
        case "required":
            names = cast("list[Any]", value) if isinstance(value, list) else [None]
            texts = {name for name in names if isinstance(name, str)}
            return "" if len(texts) == len(names) else "a list of names"
        case "pattern":
            try:
                return "" if isinstance(value, str) and re.compile(value) else "a regular expression"
            except (re.error, RecursionError, OverflowError):
                return "a regular expression"
        case "$ref" | "title" | "description" | "format":
            return "" if isinstance(value, str) else "text"
        case _ if keyword in _MAPS:
            return "" if isinstance(value, dict) else "an object"
        case _ if keyword in _LISTS or keyword == "enum":
            return "" if isinstance(value, list) and value else "a list that is not empty"
        case _:
            return ""


def _target(reference: str, root: dict[str, Any]) -> Any:
    """Return the schema that a reference within `root` leads to; nothing is fetched.

    Only places for schemas are accepted: other values, such as a ``default``, have not been checked as schemas.
    """
    if reference != "#" and not reference.startswith("#/"):
        raise ValueError(f"the reference {_quoted(reference)} does not lead to a part of this schema")
    place: Any = root
    keyword = ""
    for part in unquote(reference).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        inside = cast("dict[str, Any]", place) if isinstance(place, dict) else {}
        if not keyword and name not in _MAPS | _ONE:
            inside = {}
        place, keyword = inside.get(name), "" if keyword or name in _ONE else name
    if keyword or not isinstance(place, dict | bool):
        raise ValueError(f"the reference {_quoted(reference)} leads nowhere")
    return cast("Any", place)


def _quoted(value: Any) -> str:
    return f"{value!a:.60}"


# ---------------------------------------------------------------- values


MAX_FAULTS = 10
MAX_REFERENCES = 50_000
"""How many references are followed to check one value: less than a second."""
_followed: ContextVar[Iterator[int]] = ContextVar("followed")


def misfits(schema: Mapping[str, Any], value: Any) -> list[tuple[Iterable[str | int], str]]:
    """Return the places in `value` that do not fit a JSON Schema, each with a message; no reference is fetched."""
    validators: Any = import_module("jsonschema.validators")
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    validator = _counting(kind)(schema, registry=import_module("jsonschema_specifications").REGISTRY)
    started = _followed.set(count(1))
    try:
        return [(error.absolute_path, error.message[:300]) for error in islice(validator.iter_errors(value), MAX_FAULTS)]
    except Exception as error:  # a foreign schema: an invalid pattern, or endless nesting
        return [((), f"the value cannot be checked against the schema: {type(error).__name__}: {error}"[:300])]
    finally:
        _followed.reset(started)


def _unchecked(*_: Any) -> tuple[()]:
    return ()


@lru_cache(maxsize=8)
def _counting(kind: Any) -> Any:
    """Return a validator that no schema and no value can hold up.

    It stops after :data:`MAX_REFERENCES` references: thirty that each lead twice to the next make a billion. It matches
    patterns in linear time, and leaves those that only Python's expressions can read, and the keyword that jsonschema checks
    with them, to whoever wrote the schema.
    """
    plain, additional = kind.VALIDATORS.get("$ref"), kind.VALIDATORS["additionalProperties"]

    def follow(validator: Any, reference: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if next(_followed.get()) > MAX_REFERENCES:
            raise RecursionError(f"it leads through more than {MAX_REFERENCES} references")
        yield from plain(validator, reference, instance, schema) or ()

    def match(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, str) and not _fits(pattern, instance):
            yield import_module("jsonschema.exceptions").ValidationError(f"{instance!r:.60} does not match {pattern!r}")

    def match_names(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
        named = cast("dict[str, Any]", instance) if isinstance(instance, dict) else {}
        for pattern, inner in patterns.items():
            for name, value in named.items():
                if _fits(pattern, name):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)

    def match_others(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if patterns := schema.get("patternProperties") if isinstance(instance, dict) else None:
            names = cast("dict[str, Any]", instance)
            instance = {name: value for name, value in names.items() if not any(_fits(each, name) for each in patterns)}
            schema = {key: value for key, value in schema.items() if key != "patternProperties"}
        yield from additional(validator, allowed, instance, schema) or ()

    keywords: dict[str, Any] = {
        "pattern": match,
        "patternProperties": match_names,
        "additionalProperties": match_others,
        "unevaluatedProperties": _unchecked,
        **({"$ref": follow} if plain is not None else {}),
    }
    return import_module("jsonschema.validators").extend(kind, keywords)


@lru_cache(maxsize=256)
def _searcher(pattern: str) -> Callable[[str], bool] | None:
    """Return a function that searches a text in linear time; Python's own expressions may take years for forty characters.

    Return ``None`` for a pattern with look-around or back-references, which cannot be searched so.
    """
    core: Any = import_module("pydantic_core")
    try:
        return core.SchemaValidator(core.core_schema.str_schema(pattern=pattern)).isinstance_python
    except core.SchemaError:
        return None


def _fits(pattern: str, text: str) -> bool:
    search = _searcher(pattern)
    return search is None or search(text)


def unusable_pattern(part: Any) -> str:
    """Return a pattern in a schema that cannot be searched in linear time; empty if there is none."""
    if isinstance(part, list):
        return next(filter(None, (unusable_pattern(item) for item in cast("list[Any]", part))), "")
    if not isinstance(part, dict):
        return ""
    schema = cast("dict[str, Any]", part)
    pattern: Any = schema.get("pattern")
    if isinstance(pattern, str) and _searcher(pattern) is None:
        return pattern
    return next(filter(None, (unusable_pattern(item) for item in schema.values())), "")

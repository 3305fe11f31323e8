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
    plain = _modern(_plain(schema))
    if plain.setdefault("type", "object") != "object" or any(word in plain for word in ("$ref", *_AT_THE_TOP)):
        raise ValueError("a tool takes one object with named arguments: type and properties, and no choice between several")
    _check(plain, plain, 0, "")
    for name in plain.get("properties", {}):
        if not _ARGUMENT.fullmatch(name):
            raise ValueError(f"{_quoted(name)} is not an argument name: up to 64 letters, digits, _ . and -")
    if place := _endless_reference(plain):
        raise ValueError(f"the reference {_quoted(place)} leads back to itself, so that no value ever fits")
    return plain


def _plain(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        raise ValueError("it is not an object")
    _only_names(schema)
    try:
        text = json.dumps(schema, allow_nan=False, default=_mapping_to_dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 1024} KiB")
    return cast("dict[str, Any]", json.loads(text))


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


def _only_names(schema: Any) -> None:
    """Refuse keys that JSON would silently convert to text, and text that cannot be sent."""
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


def can_be_sent(text: str) -> bool:
    """Whether `text` can be encoded as UTF-8, and so be sent in a request."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# ---------------------------------------------------------------- keywords


def _check(part: Any, root: dict[str, Any], depth: int, place: str) -> None:
    """Check one schema and those inside it.

    :param place: the path to the schema, for the message.
    :raises ValueError: a keyword has a value that it cannot have.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
    if isinstance(part, bool) and place:
        return
    if not isinstance(part, dict):
        raise ValueError(f'{place} must be a schema: an object, as in {{"type": "string"}}')
    for keyword, value in cast("dict[str, Any]", part).items():
        here = f"{place}.{keyword}" if place else keyword
        if keyword in _CHECKS:
            wanted, holds = _CHECKS[keyword]
            if not holds(value):
                raise ValueError(f"{here} must be {wanted}, not {_quoted(value)}")
        if keyword == "$ref":
            _target(value, root)
        if keyword in _OTHER_REFERENCES:
            raise ValueError(f"{here} is a reference that no service follows; write $ref")
        for name, inner in _subschemas(keyword, value):
            _check(inner, root, depth + 1, f"{here}{name}")


def _subschemas(keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas below a keyword, each with the end of its path."""
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
    """Return the schema that a reference within `root` leads to; nothing is fetched.

    Only places for schemas are accepted: other values, such as a ``default``, have not been checked as schemas.

    :raises ValueError: the reference leads to something else.
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


def _endless_reference(root: dict[str, Any]) -> str:
    """Return a reference that every value must follow back to itself, so that no finite value fits; empty if there is none.

    A tree that refers to itself through optional members or through a list is fine.
    """
    leads = {reference: set(_required_references(_target(reference, root))) for reference in _references(root)}
    while ends := [reference for reference, following in leads.items() if not following & leads.keys()]:
        for reference in ends:
            del leads[reference]
    return min(leads, default="")


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for keyword, value in cast("dict[str, Any]", part).items():
            if keyword == "$ref":
                yield value
            for _, inner in _subschemas(keyword, value):
                yield from _references(inner)


def _required_references(part: Any) -> Iterator[str]:
    """Yield the references that every value of a schema has to follow."""
    if not isinstance(part, dict):
        return
    schema = cast("dict[str, Any]", part)
    if "$ref" in schema:
        yield schema["$ref"]
    members = schema.get("properties", {})
    for inner in (*schema.get("allOf", ()), *(members[name] for name in schema.get("required", ()) if name in members)):
        yield from _required_references(inner)


# ---------------------------------------------------------------- words


def _quoted(value: Any) -> str:
    return f"{value!a:.60}"


def _short(name: str) -> str:
    return ascii(name)[1:-1][:40]


# ---------------------------------------------------------------- values


MAX_FAULTS = 10
MAX_REFERENCES = 50_000
"""How many references are followed to check one value: less than a second."""
MAX_STEPS = 10**8
"""Steps that Python's own expressions may need at most: the text's length, to the power of the repetitions in the pattern."""
_REPEATED_GROUP = re.compile(r"\)[*+{]")
"""What makes the steps grow exponentially, in ``(a+)+$``."""
_followed: ContextVar[Iterator[int]] = ContextVar("followed")


def misfits(schema: Mapping[str, Any], value: Any) -> list[tuple[Iterable[str | int], str]]:
    """Return the places in `value` that do not fit a JSON Schema, each with a message; no reference is fetched."""
    validators: Any = import_module("jsonschema.validators")
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    validator = _counting(kind)(schema, registry=import_module("jsonschema_specifications").REGISTRY)
    started = _followed.set(count(1))
    try:
        _check_names(schema, value)
        return [(error.absolute_path, error.message[:300]) for error in islice(validator.iter_errors(value), MAX_FAULTS)]
    except Exception as error:  # a foreign schema: an invalid pattern, or endless nesting
        return [((), f"the value cannot be checked against the schema: {type(error).__name__}: {error}"[:300])]
    finally:
        _followed.reset(started)


@lru_cache(maxsize=8)
def _counting(kind: Any) -> Any:
    """Return a validator that stops after :data:`MAX_REFERENCES` references: thirty that each lead twice to the next make a
    billion. It matches patterns in linear time."""
    plain, additional = kind.VALIDATORS.get("$ref"), kind.VALIDATORS["additionalProperties"]

    def follow(validator: Any, reference: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if next(_followed.get()) > MAX_REFERENCES:
            raise RecursionError(f"it leads through more than {MAX_REFERENCES} references")
        yield from plain(validator, reference, instance, schema) or ()

    def match_others(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if patterns := schema.get("patternProperties") if isinstance(instance, dict) else None:
            names = cast("dict[str, Any]", instance)
            instance = {name: value for name, value in names.items() if not any(_searcher(each)(name) for each in patterns)}
            schema = {key: value for key, value in schema.items() if key != "patternProperties"}
        yield from additional(validator, allowed, instance, schema) or ()

    keywords = {"pattern": _match, "patternProperties": _match_names, "additionalProperties": match_others}
    followers = {"$ref": follow} if plain is not None else {}
    return import_module("jsonschema.validators").extend(kind, {**keywords, **followers})


def _match(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not _searcher(pattern)(instance):
        yield import_module("jsonschema.exceptions").ValidationError(f"{instance!r:.60} does not match {pattern!r}")


def _match_names(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    named = cast("dict[str, Any]", instance) if isinstance(instance, dict) else {}
    for pattern, inner in patterns.items():
        for name, value in named.items():
            if _searcher(pattern)(name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


@lru_cache(maxsize=256)
def _searcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that searches a text in linear time: Python's own expressions may take years for forty characters.

    pydantic's expressions have no look-around and no back-references; patterns with those are searched by Python, if that
    cannot take long.
    """
    core: Any = import_module("pydantic_core")
    try:
        return core.SchemaValidator(core.core_schema.str_schema(pattern=pattern)).isinstance_python
    except core.SchemaError:
        expression = re.compile(pattern)

    def search(text: str) -> bool:
        _check_duration(pattern, (text,))
        return expression.search(text) is not None

    return search


def _check_duration(pattern: str, texts: Iterable[str]) -> None:
    power = 1 + sum(map(pattern.count, "*+{"))
    if _REPEATED_GROUP.search(pattern) or any(len(text) ** power > MAX_STEPS for text in texts):
        raise ValueError(f"matching {_quoted(pattern)} could take very long")


def _check_names(schema: Any, value: Any) -> None:
    """Refuse what could take very long: for ``unevaluatedProperties``, jsonschema matches names with Python's expressions."""
    for part in _objects(schema) if any("unevaluatedProperties" in part for part in _objects(schema)) else ():
        for pattern in part.get("patternProperties") or ():
            _check_duration(pattern, (name for inner in _objects(value) for name in inner))


def unusable_pattern(schema: Any) -> str:
    """Return why no value can be checked against one of the patterns in a schema; empty if there is none."""
    try:
        _check_names(schema, None)
        for part in _objects(schema):
            names = part.get("patternProperties")
            for pattern in (part.get("pattern"), *(cast("Any", names) if isinstance(names, dict) else ())):
                if isinstance(pattern, str):
                    _searcher(pattern)("")
    except (ValueError, re.error, RecursionError, OverflowError) as error:
        return str(error)
    return ""


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, Mapping):
        yield cast("dict[str, Any]", value)
    for inner in cast("Any", value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()):
        yield from _objects(inner)

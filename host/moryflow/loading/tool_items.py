"""Whether a tool that a plugin contributes can be offered: its name, its body, its schema, its words.

A schema is looked at once, here, and nothing is fetched for it (R28): what a model service would refuse, or a validator
would never end with, is refused with its reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from moryflow_sdk import Tool

MOST_TOOLS = 256
"""Tools of one plugin, or of one file; a model is told of each in every request."""
MOST_DESCRIPTION = 16_384
MOST_SCHEMA = 256 * 1024
MOST_DEPTH = 32
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_DATA = frozenset({"default", "enum", "const", "examples", "example"})
"""Keywords whose values are data, not schemas."""


class Refused(Exception):
    """The tool cannot be offered."""


def usable(item: Any, tier: str) -> tuple[Tool, str]:
    """Return the tool as it will be offered, and what had to be changed about it.

    :raises Refused: it cannot be offered.
    """
    if not isinstance(item, Tool):
        raise Refused(f"{item!r:.80} is not a tool; make it with @tool")
    if not isinstance(item.name, str) or not _NAME.fullmatch(item.name):
        raise Refused(f"{item.name!a:.80} is not a tool name: a letter or underscore, then up to 63 letters, digits, _ and -")
    if not callable(item.function):
        raise Refused(f"{item.name!r} has no function")
    if tier != "builtin" and not isinstance(item.parameters, Mapping):
        raise Refused(f"the schema of {item.name!r} is not an object")
    if item.schema is not None and (problem := schema_problem(item.schema)):
        raise Refused(f"the schema of {item.name!r} cannot be used: {problem}")
    if not isinstance(item.description, str):
        return replace(item, description=""), f"{item.name!r} has no description, so a model can only guess what it is for"
    if len(item.description) > MOST_DESCRIPTION:
        cut = item.description[:MOST_DESCRIPTION]
        return replace(item, description=cut), f"the description of {item.name!r} is cut at {MOST_DESCRIPTION} characters"
    return item, ""


def schema_problem(schema: Any) -> str:
    """Say why a tool cannot have `schema`; empty when it can."""
    if not isinstance(schema, Mapping):
        return "it is not an object"
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    if len(text) > MOST_SCHEMA:
        return f"it is larger than {MOST_SCHEMA // 1024} KiB"
    root = cast("dict[str, Any]", json.loads(text))
    if root.get("type", "object") != "object":
        return "a tool takes an object"
    return next((problem for part, depth in _parts(root) if (problem := _wrong(part, depth, root))), "")


def _parts(root: dict[str, Any]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield every object in the schema that may be a schema, with its depth."""
    waiting: list[tuple[Any, int]] = [(root, 0)]
    while waiting:
        part, depth = waiting.pop()
        if isinstance(part, dict):
            yield part, depth
            waiting += [(value, depth + 1) for key, value in part.items() if key not in _DATA]
        elif isinstance(part, list):
            waiting += [(value, depth + 1) for value in part]


def _wrong(part: dict[str, Any], depth: int, root: dict[str, Any]) -> str:
    if depth > MOST_DEPTH:
        return f"it is nested deeper than {MOST_DEPTH}"
    reference, pattern = part.get("$ref"), part.get("pattern")
    if isinstance(reference, str) and (problem := _reference(reference, root)):
        return problem
    if isinstance(pattern, str) and (problem := _pattern(pattern)):
        return problem
    types = part.get("type")
    named = types if isinstance(types, list) else [types] if isinstance(types, str) else []
    if unknown := [name for name in named if not isinstance(name, str) or name not in _TYPES]:
        return f"{unknown[0]!a:.40} is not a type"
    required = part.get("required", [])
    if isinstance(required, list) and not all(isinstance(name, str) for name in required):
        return "required must be a list of names"
    return "properties must be an object" if not isinstance(part.get("properties", {}), dict) else ""


def _reference(reference: str, root: dict[str, Any]) -> str:
    """Follow a reference within the schema; nothing is fetched, and it must end."""
    seen: set[str] = set()
    while True:
        if not reference.startswith("#/"):
            return f"the reference {reference!a:.80} does not lead to a part of it"
        if reference in seen:
            return f"the reference {reference!a:.80} leads back to itself"
        seen.add(reference)
        place: Any = root
        for name in reference.removeprefix("#/").split("/"):
            place = place.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
        if not isinstance(place, dict | bool):
            return f"the reference {reference!a:.80} leads nowhere"
        following = place.get("$ref") if isinstance(place, dict) else None
        if not isinstance(following, str):
            return ""
        reference = following


def _pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"the pattern {pattern!a:.40} does not compile: {error}"
    return ""

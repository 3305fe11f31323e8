"""What a call does, as a hash: two calls with the same one do the same, however they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from moryflow_sdk import Target, Tool

from moryflow.kernel.tool_prepare import canonical, digest

_PLACES = ("file", "shell", "url")
"""Kinds of targets whose argument may be written in many ways."""


def effect_of(tool: Tool, args: Mapping[str, Any], targets: Sequence[Target]) -> str:
    """Return the hash of what a call does: its arguments without remarks and defaults, and what they lead to.

    :param args: as they were validated.
    """
    named = {target.given: target.text for target in targets if target.kind in _PLACES}
    named |= {target.folder.given: target.folder.text for target in targets if target.folder is not None}
    told = _without_defaults(args, tool.parameters, tool.parameters)
    kept = {
        name: _plain(value, named)
        for name, value in told.items()
        if name not in tool.remarks and not (isinstance(value, str) and value in named)
    }
    touched = [[item.domain, item.text.strip(), item.folder.text if item.folder else ""] for item in targets]
    return digest(canonical({"args": kept, "targets": touched}))


def _plain(value: Any, named: Mapping[str, str]) -> Any:
    """Return `value` with one form for each number and each path."""
    if isinstance(value, str):
        return named.get(value, value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item, named) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item, named) for item in cast("Sequence[Any]", value)]
    return value


def _without_defaults(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Return `value` without the members that say what is so anyway."""
    schema = _meant(schema, root)
    if isinstance(value, Mapping):
        known: Mapping[str, Any] = schema.get("properties", {})
        given = cast("Mapping[str, Any]", value).items()
        said = [(name, item) for name, item in given if not _is_default(item, known.get(name))]
        return {name: _without_defaults(item, known.get(name, {}), root) for name, item in said}
    if isinstance(value, list | tuple):
        inner = schema.get("items", {})
        return [_without_defaults(item, inner, root) for item in cast("Sequence[Any]", value)]
    return value


def _is_default(value: Any, schema: Any) -> bool:
    return isinstance(schema, Mapping) and "default" in schema and schema["default"] == value


def _meant(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a schema that describes members or items, wherever it stands."""
    if not isinstance(schema, Mapping):
        return {}
    part = cast("Mapping[str, Any]", schema)
    if isinstance(reference := part.get("$ref"), str):
        definitions: Mapping[str, Any] = root.get("$defs", {})
        return definitions.get(reference.rpartition("/")[2], {})
    for name in ("anyOf", "allOf", "oneOf"):
        choices = (_meant(choice, root) for choice in part.get(name, ()))
        found = next((choice for choice in choices if "properties" in choice or "items" in choice), None)
        if found is not None:
            return found
    return part

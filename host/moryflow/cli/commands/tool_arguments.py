"""Arguments of a tool as typed on a command line, turned into what its schema asks for."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from moryflow_sdk import ConfigError, Tool


def tool_arguments(tool: Tool, text: str | None, words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments in `text` (JSON), overlaid by those in `words` (``--path README.md``).

    :raises ConfigError: the JSON is no object, or a word is not one of the tool's parameters.
    """
    given = {} if text is None else _object(sys.stdin.read() if text == "-" else text)
    return {**given, **_from_words(tool, list(words))}


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--json is not JSON: {error}", next_step='for example --json \'{"path": "README.md"}\'') from error
    if not isinstance(value, dict):
        raise ConfigError("--json must be an object", next_step='for example --json \'{"path": "README.md"}\'')
    return value


def _from_words(tool: Tool, words: list[str]) -> dict[str, Any]:
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    found: dict[str, Any] = {}
    while words:
        key, schema, value = _next(tool, properties, words)
        if _kind(schema) == "array" and isinstance(found.get(key), list):
            found[key] += value if isinstance(value, list) else [value]
        else:
            found[key] = value
    return found


def _next(tool: Tool, properties: Mapping[str, Any], words: list[str]) -> tuple[str, Any, Any]:
    word = words.pop(0)
    if not word.startswith("--"):
        raise ConfigError(f"unexpected argument {word!r}", next_step=_usage(tool))
    name, equals, text = word[2:].partition("=")
    key = name.replace("-", "_")
    if key not in properties and key.startswith("no_") and _kind(properties.get(key[3:])) == "boolean":
        return key[3:], properties[key[3:]], False
    if key not in properties:
        near = difflib.get_close_matches(key, properties, n=1)
        hint = f"; did you mean --{near[0]}?" if near else ""
        raise ConfigError(f"{tool.name} takes no --{name}{hint}", next_step=_usage(tool))
    schema = properties[key]
    if not equals:
        if _kind(schema) == "boolean" and (not words or words[0].casefold() not in ("true", "false")):
            return key, schema, True
        if not words:
            raise ConfigError(f"--{name} needs a value", next_step=_usage(tool))
        text = words.pop(0)
    return key, schema, _value(schema, text)


def _value(schema: Any, text: str) -> Any:
    """Read `text` as the schema's type; what does not fit stays text, and the tool's own check says so."""
    kind = _kind(schema)
    if kind == "string":
        return text
    if kind == "array" and not text.lstrip().startswith("["):
        return [_value(schema.get("items", {}), text)]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _kind(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return ""
    kinds = [schema.get("type"), *(part.get("type") for part in schema.get("anyOf", ()) if isinstance(part, Mapping))]
    named = [kind for kind in kinds if kind not in (None, "null")]
    return str(named[0]) if len(named) == 1 else ""


def _usage(tool: Tool) -> str:
    return f"moryflow tool show {tool.name}"

"""Tool definitions of servers: hashed for the pin, checked, compared with the pin, and simplified for a model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from moryflow_sdk.support.texts import without_unseen
from moryflow_sdk.support.tool_schemas import RULES, plain_schema

from .lock import canonical, digest

# How many tools of one server are pinned at most; a model could not choose among more.
MAX_TOOLS = 256
MAX_DESCRIPTION = 16_384
# The largest definition of a tool, in bytes.
MAX_BYTES = 64 * 1024
# The largest description of a prompt, in bytes.
MAX_PROMPT = 16 * 1024
# The fields that a tool's hash covers, beside the identity of its server.
FIELDS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")

Definition = Mapping[str, Any]


def tool_hash(definition: Definition, identity: Mapping[str, Any]) -> str:
    """Return the hash of a tool; it changes with any of :data:`FIELDS`, and with the identity of the server."""
    return digest({"server": identity, **{name: definition.get(name) for name in FIELDS}})


def tokens(definition: Definition) -> int:
    """Return about how many tokens a tool costs in each request."""
    text = f"{definition['name']}{definition.get('description') or ''}{json.dumps(definition.get('inputSchema') or {})}"
    return len(text) // 4


def problem_of(definition: Definition, all_tools: Sequence[Definition]) -> str:
    """Return why a tool of `all_tools` is never offered, even if the user accepts it; empty if it can be."""
    if problem := definition.get("problem"):  # the server's definition could not be read
        return problem
    name = definition.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.\-/]{1,128}", name):
        return "its name is invalid: up to 128 letters, digits, _ . - and /"
    if sum(each.get("name") == name for each in all_tools) > 1:
        return "the server has several tools of this name"
    schema = definition.get("inputSchema")
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        return "its arguments are not described as an object"
    if len(definition.get("description") or "") > MAX_DESCRIPTION:
        return f"its description is longer than {MAX_DESCRIPTION} characters"
    if len(canonical(dict(definition))) > MAX_BYTES:
        return f"its definition is larger than {MAX_BYTES // 1024} KiB"
    return ""


def hides(value: Any) -> bool:
    """Whether a text in `value` has invisible characters, or characters that reverse the order of others."""
    return cleaned(value) != value


def cleaned(value: Any) -> Any:
    """Return a JSON value without invisible characters."""
    if isinstance(value, str):
        return without_unseen(value)
    if isinstance(value, Mapping):
        return {without_unseen(key): cleaned(item) for key, item in value.items()}
    return [cleaned(item) for item in value] if isinstance(value, list) else value


# ---------------------------------------------------------------- the schema for the model


# The keywords at the top of a tool's schema that are kept.
AT_THE_TOP = ("type", "properties", "required", "additionalProperties", "$defs", "definitions", "description")
_NAMED = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
# Keywords that services refuse; and those with regular expressions, because a hostile one could match for ever.
_LEFT_OUT = frozenset(
    {"$schema", "$id", "$anchor", "$dynamicAnchor", "$comment", "pattern", "patternProperties", "x-mcp-header"}
)


def schema_for_model(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema that the model gets and that calls are checked against; the server checks the rest itself."""
    top = {key: value for key, value in schema.items() if key in AT_THE_TOP}
    plain = cleaned(_plain(top))
    return {"properties": {}, **plain, "type": "object"}


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            kept[key] = {name: _plain(inner) for name, inner in value.items()}
        elif key in ("enum", "const", "default", "examples", "required"):
            kept[key] = value
        elif key not in _LEFT_OUT:
            kept[key] = _plain(value)
    return kept


def pinned_tool(definition: Mapping[str, Any], problem: str) -> dict[str, Any]:
    """Return the entry of a tool in a pin, prepared for quick starts; if it is never offered, only its name and the problem."""
    kept = {"name": str(definition.get("name"))[:200], "hash": definition["hash"]}
    parameters = dict[str, Any]()
    if not problem:
        try:
            parameters = plain_schema(schema_for_model(definition["inputSchema"]))
        except ValueError as error:
            problem = f"the schema of its arguments cannot be used: {error}"
    if problem:
        return {**kept, "problem": problem}
    given = {} if parameters == definition["inputSchema"] else {"parameters": parameters}
    return {**definition, **given, "checked": RULES, "tokens": tokens(definition)}


# ---------------------------------------------------------------- drift


def differences(pinned: Mapping[str, Definition], found: Sequence[Definition]) -> dict[str, str]:
    """Return the differences from the pin: tool → why.

    :param pinned: the tools of the pin by name.
    :param found: the definitions that the server lists now, each with its hash.
    """
    now = {str(each.get("name")): each for each in found}
    changes = {name: "the server has it no longer" for name in pinned if name not in now}
    for name, each in now.items():
        if name not in pinned:
            changes[name] = "new"
        elif each["hash"] != pinned[name]["hash"]:
            fields = [field for field in FIELDS if each.get(field) != pinned[name].get(field)]
            changes[name] = f"changed: {', '.join(fields)}" if fields else "the server is another one than was reviewed"
    return changes

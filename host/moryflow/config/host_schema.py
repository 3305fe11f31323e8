"""The host's settings by path, their defaults, and the JSON Schema of the whole configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .schema import (
    COMPACTION_PATH,
    RULES_PATH,
    AgentSettings,
    CompactionSettings,
    ExternalToolSettings,
    Known,
    ModeSettings,
    PermissionRule,
    PromptSettings,
    RootSettings,
)
from .servers import ServersSettings


def host_models() -> tuple[Known, ...]:
    """Return the host's own settings by path."""
    return (
        ("", RootSettings),
        (COMPACTION_PATH, CompactionSettings),
        ("agents.runtime.agent", AgentSettings),
        ("agents.runtime.mode", ModeSettings),
        ("agents.runtime.prompt", PromptSettings),
        ("agents.runtime.tools.external", ExternalToolSettings),
        ("mcp", ServersSettings),
    )


def defaults(known: Iterable[Known]) -> dict[str, Any]:
    """Return every default as one tree; what has no default is left out."""
    from pydantic_core import to_jsonable_python

    root: dict[str, Any] = {}
    for path, model in known:
        place = _place(root, path)
        for name, field in model.model_fields.items():
            if not field.is_required():
                value = field.get_default(call_default_factory=True)
                place.setdefault(field.alias or name, to_jsonable_python(value, by_alias=True, fallback=str))
    return root


def _place(root: dict[str, Any], path: str) -> dict[str, Any]:
    place = root
    for name in path.split(".") if path else ():
        step = place.setdefault(name, {})
        place = step if isinstance(step, dict) else {}
    return place


def json_schema(known: Iterable[Known]) -> dict[str, Any]:
    """Return the JSON Schema of the whole configuration, for editors and for ``config schema``."""
    definitions: dict[str, Any] = {}
    root: dict[str, Any] = {"type": "object", "properties": {}}
    for path, model in [*host_models(), *known, ("agents.runtime.permission.rules", PermissionRule)]:
        schema = model.model_json_schema(by_alias=True)
        definitions.update(schema.pop("$defs", {}))
        if path == RULES_PATH:
            schema = {"type": "array", "items": schema}
        _join(root, path, schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Moryflow configuration",
        **root,
        "$defs": definitions,
    }


def _join(root: dict[str, Any], path: str, schema: dict[str, Any]) -> None:
    place = root
    *parents, last = path.split(".") if path else [""]
    for name in parents:
        place = place.setdefault("properties", {}).setdefault(name, {"type": "object", "properties": {}})
    if last:
        place = place.setdefault("properties", {}).setdefault(last, {})
    properties = {**schema.pop("properties", {}), **place.get("properties", {})}
    place.update(schema)
    if properties:
        place["properties"] = properties

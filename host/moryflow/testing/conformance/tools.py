"""Checks of the plugin's tools: models can call them, and rules can judge them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from moryflow_sdk import Tool

from . import Subject

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_PATHS = frozenset({"path", "paths", "file", "files", "filename", "folder", "directory", "dir", "source", "destination"})


def test_its_tools_have_names_that_models_accept(plugin_subject: Subject) -> None:
    """The names have lower-case letters, digits and ``_`` only, which every provider accepts."""
    for tool in plugin_subject.tools:
        if not _NAME.match(tool.name):
            plugin_subject.fail(f"the tool is called {tool.name!r}", "use lower-case letters, digits and _", tool.function)


def test_its_schemas_are_json_schema(plugin_subject: Subject) -> None:
    """What a schema requires is one of its properties; a type that JSON Schema does not know is refused when it loads."""
    for tool in plugin_subject.tools:
        missing = [name for name in tool.parameters.get("required", ()) if name not in tool.parameters.get("properties", {})]
        if missing:
            text = f"{tool.name}: required names {', '.join(missing)}, which is not a property"
            plugin_subject.fail(text, "use plain types in the function's hints", tool.function)


def test_rules_can_judge_its_tools(plugin_subject: Subject) -> None:
    """A tool that touches files, runs programs or uses the network declares targets, and they can be told for any arguments.

    Without targets no rule matches a call; if they fail, the tool does not run.
    """
    for tool in plugin_subject.tools:
        names = set(cast("Mapping[str, Any]", tool.parameters.get("properties", {})))
        touches = tool.domain in ("edit", "bash", "web") or (tool.domain == "read" and names & _PATHS)
        if touches and tool.targets is None:
            to_do = 'add targets=lambda args: [file_target(args["path"])] (or shell_target, url_target)'
            plugin_subject.fail(f"{tool.name}: domain {tool.domain!r} needs targets=", to_do, tool.function)
        for args in (_sample(tool, full=True), _sample(tool, full=False)):
            try:
                tool.target_requests(args)
            except Exception as error:  # anything that the author's function raises fails the check
                text = f"{tool.name}: targets fail for {json.dumps(args)[:120]}: {type(error).__name__}: {error}"
                plugin_subject.fail(text, "optional arguments may be missing: use args.get(...)", tool.targets or tool.function)


def _sample(tool: Tool, *, full: bool) -> dict[str, Any]:
    root = tool.parameters
    properties = cast("Mapping[str, Any]", root.get("properties", {}))
    names = properties if full else root.get("required", ())
    return {name: _value(properties[name], root) for name in names if name in properties}


def _value(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return _value(root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {}), root)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return _value(schema["anyOf"][0], root)
    match schema.get("type"):
        case "integer" | "number":
            return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return True
        case "array":
            return [_value(schema.get("items", {}), root)] * int(schema.get("minItems", 0))
        case "object":
            return {name: _value(schema["properties"][name], root) for name in schema.get("required", ())}
        case _:
            return "x" * max(1, int(schema.get("minLength", 1)))

"""Checks of the plugin's tools: models understand them, rules can judge them, and no arguments break them before they run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from moryflow_sdk import Tool
from pydantic import ValidationError

from . import Subject

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_TYPES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_PATHS = frozenset({"path", "paths", "file", "files", "filename", "folder", "directory", "dir", "source", "destination"})
LONGEST = 4000
"""Characters of name, description and schema that a tool may take in every request: about 1,000 tokens."""


def test_its_tools_have_names_that_models_accept(plugin_subject: Subject) -> None:
    """The names have lower-case letters, digits and ``_`` only, which every provider accepts."""
    for tool in plugin_subject.tools:
        if not _NAME.match(tool.name):
            plugin_subject.fail(f"the tool is called {tool.name!r}", "use lower-case letters, digits and _", tool.function)


def test_its_tools_are_described(plugin_subject: Subject) -> None:
    """The model reads the description to decide whether to call the tool."""
    for tool in plugin_subject.tools:
        if len(tool.description.split()) < 2:
            plugin_subject.fail(
                f"{tool.name} is not described", "the docstring is what the model reads: say what it does", tool.function
            )


def test_its_parameters_are_described(plugin_subject: Subject) -> None:
    """From the name alone, the model would have to guess units, formats and places."""
    for tool in plugin_subject.tools:
        for name, schema in cast("Mapping[str, Any]", tool.parameters.get("properties", {})).items():
            if not schema.get("description"):
                to_do = f'write {name}: Annotated[..., "what it is"]'
                plugin_subject.fail(f"{tool.name}: the parameter {name!r} is not described", to_do, tool.function)


def test_its_schemas_are_json_schema(plugin_subject: Subject) -> None:
    """Each schema is an object whose required properties exist, with types that JSON Schema has."""
    for tool in plugin_subject.tools:
        problem = next(_problems(json.loads(json.dumps(dict(tool.parameters)))), None)
        if problem:
            plugin_subject.fail(f"{tool.name}: {problem}", "use plain types in the function's hints", tool.function)


def test_its_tools_cost_little(plugin_subject: Subject) -> None:
    """Name, description and schema are short, because they are sent with every request."""
    for tool in plugin_subject.tools:
        size = len(tool.name) + len(tool.description) + len(json.dumps(dict(tool.parameters)))
        if size > LONGEST:
            text = f"{tool.name} takes {size} characters of every request"
            plugin_subject.fail(text, f"keep it under {LONGEST}: shorten the docstring, or make two tools", tool.function)


def test_rules_can_judge_its_tools(plugin_subject: Subject) -> None:
    """A tool that touches files, runs programs or uses the network declares targets; otherwise no rule can match them."""
    for tool in plugin_subject.tools:
        names = set(cast("Mapping[str, Any]", tool.parameters.get("properties", {})))
        touches = tool.domain in ("edit", "bash", "web") or (tool.domain == "read" and names & _PATHS)
        if touches and tool.targets is None:
            to_do = 'add targets=lambda args: [file_target(args["path"])] (or shell_target, url_target)'
            plugin_subject.fail(f"{tool.name}: domain {tool.domain!r} needs targets=", to_do, tool.function)


def test_its_targets_can_be_told_for_any_arguments(plugin_subject: Subject) -> None:
    """``targets`` works for all valid arguments: it runs before the call is judged, and if it fails, the tool does not run."""
    for tool in plugin_subject.tools:
        for args in (_sample(tool, full=True), _sample(tool, full=False)):
            try:
                tool.target_requests(args)
            except Exception as error:  # anything that the author's function raises fails the check
                text = f"{tool.name}: targets fail for {json.dumps(args)[:120]}: {type(error).__name__}: {error}"
                plugin_subject.fail(text, "optional arguments may be missing: use args.get(...)", tool.targets or tool.function)


def test_its_tools_refuse_arguments_with_a_sentence(plugin_subject: Subject) -> None:
    """Arguments that do not fit are refused with a message for the model; the author's validators must not crash."""
    for tool in plugin_subject.tools:
        full = _sample(tool, full=True)
        for args in (full, _sample(tool, full=False), {}, dict.fromkeys(full), dict.fromkeys(full, "no such value")):
            try:
                tool.validate(args)
            except ValidationError:
                continue
            except Exception as error:  # anything else that the author's validator raises fails the check
                text = f"{tool.name}: {json.dumps(args)[:120]} is not refused but fails: {type(error).__name__}: {error}"
                plugin_subject.fail(text, "raise ValueError with a sentence in the validator", tool.function)


def _problems(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of the schema of a tool's arguments."""
    if schema.get("type") != "object":
        yield "the schema must be an object"
        return
    properties = cast("dict[str, Any]", schema.get("properties", {}))
    missing = [name for name in schema.get("required", ()) if name not in properties]
    if missing:
        yield f"required names {', '.join(missing)}, which is not a property"
    for path, part in _parts(schema, ""):
        kind = part.get("type")
        kinds = cast("list[str]", kind) if isinstance(kind, list) else [kind] if kind else []
        for each in kinds:
            if each not in _TYPES:
                yield f"{path or 'the schema'} has the type {each!r}, which JSON Schema does not know"


def _parts(schema: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(schema, dict):
        part = cast("dict[str, Any]", schema)
        yield path, part
        for name, inner in part.items():
            if name in ("properties", "$defs") and isinstance(inner, dict):
                for key, value in cast("dict[str, Any]", inner).items():
                    yield from _parts(value, f"{path}.{key}".lstrip("."))
            elif name in ("items", "anyOf", "oneOf", "allOf", "additionalProperties"):
                for value in cast("list[Any]", inner) if isinstance(inner, list) else [inner]:
                    yield from _parts(value, path)


def _sample(tool: Tool, *, full: bool) -> dict[str, Any]:
    """Return arguments that fit the schema: all of them, or only the required ones."""
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

"""A call as its gates see it: validated, resolved, hashed, with the hash of what it does. Nothing runs here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from moryflow_sdk import Target, TargetRequest, Tool, ToolCall, ToolError, freeze

from moryflow.hooks.plugin_set import RegisteredTool
from moryflow.hooks.threads import text_of

from .tool_arguments import canonical, digest, validate_arguments
from .turn_context import TurnContext

T = TypeVar("T")


def call_as_judged(
    scope: TurnContext, plugin: str, tool: str, args: Mapping[str, Any], call_id: str, step: int
) -> tuple[ToolCall, bytes]:
    """Return the frozen call and the canonical JSON it was built from: validated, resolved, hashed.

    :raises ToolError: the arguments do not fit the tool.
    """
    owned = scope.plugin_set.tools[tool]
    encoded = _of_the_tool(owned, "could not check its arguments", lambda: canonical(validate_arguments(owned.tool, args)))
    resolve = scope.around.services["resolve"](scope, plugin)
    targets = tuple([resolve(item) for item in _requests(owned, json.loads(encoded))])
    judged, hash = freeze(json.loads(encoded)), digest(encoded)
    call = ToolCall.model_construct(
        id=call_id,
        tool=tool,
        args=judged,
        step=step,
        domain=owned.tool.domain,
        targets=targets,
        hash=hash,
        effect=_effect(owned, judged, targets) or hash,
        source=owned.tool.source,
    )
    return call, encoded


def _effect(owned: RegisteredTool, args: Mapping[str, Any], targets: Sequence[Target]) -> str:
    """Return the hash of what the call does; none where its schema is not understood: it only compares calls."""
    try:
        return effect_of(owned.tool, args, targets)
    except Exception:
        return ""


def _requests(owned: RegisteredTool, values: Mapping[str, Any]) -> tuple[TargetRequest, ...]:
    """Return what the tool says it touches; one that cannot say is not run."""
    return _of_the_tool(owned, "could not say what it touches", lambda: owned.tool.target_requests(values))


def _of_the_tool(owned: RegisteredTool, failed: str, work: Callable[[], T]) -> T:
    """Do `work` that runs code of the tool's own: validators, types, targets. What breaks there costs this call alone.

    :raises ToolError: it broke, or it says itself what is wrong with the arguments.
    """
    try:
        return work()
    except ToolError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{owned.tool.name} (plugin {owned.plugin}) {failed}: {type(error).__name__}: {text_of(error)}"
        raise ToolError(what, code="tool_failed", next_step=f"moryflow plugin info {owned.plugin}") from error


def prepared_call(turn: Any, tool: str, args: Mapping[str, Any]) -> ToolCall:
    """Return what a call of `tool` with `args` would be judged as in `turn`.

    :param turn: a turn that the host made.
    :raises ToolError: there is no such tool, or the arguments do not fit it.
    """
    scope: TurnContext = turn.scope_for_host()
    if tool not in scope.plugin_set.tools:
        raise ToolError(f"there is no tool {tool!r}", code="unknown_tool", next_step="moryflow tool list")
    return call_as_judged(scope, scope.plugin_set.tools[tool].plugin, tool, args, "call_prepared", 1)[0]


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

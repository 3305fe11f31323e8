"""A call as gates would see it, without running it: for ``permission test`` and its like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from moryflow_sdk import ToolCall, ToolError

from .arguments import canonical, digest, validated
from .scope import TurnScope


def call_as_judged(
    scope: TurnScope, plugin: str, tool: str, args: Mapping[str, Any], call_id: str, step: int
) -> tuple[ToolCall, bytes]:
    """Return the frozen call and the canonical JSON it was built from: validated, resolved, hashed.

    :raises ToolError: the arguments do not fit the tool.
    """
    owned = scope.plugin_set.tools[tool]
    encoded = canonical(validated(owned.tool, args))
    values = json.loads(encoded)
    resolve = scope.around.services["resolve"](scope, plugin)
    targets = tuple(resolve(item) for item in owned.tool.target_requests(values))
    call = ToolCall(
        id=call_id, tool=tool, args=values, step=step, domain=owned.tool.domain, targets=targets, hash=digest(encoded)
    )
    return call, encoded


def prepared_call(turn: Any, tool: str, args: Mapping[str, Any]) -> ToolCall:
    """Return what a call of `tool` with `args` would be judged as in `turn`.

    :param turn: a turn that the host made.
    :raises ToolError: there is no such tool, or the arguments do not fit it.
    """
    scope: TurnScope = turn.scope_for_host()
    if tool not in scope.plugin_set.tools:
        raise ToolError(f"there is no tool {tool!r}", code="unknown_tool", next_step="moryflow tool list")
    return call_as_judged(scope, scope.plugin_set.tools[tool].plugin, tool, args, "call_prepared", 1)[0]

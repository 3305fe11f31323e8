"""A call as gates would see it, without running it: for ``permission test`` and its like."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from moryflow_sdk import Target, TargetRequest, ToolCall, ToolError

from moryflow.hooks.plugin_set import RegisteredTool
from moryflow.hooks.threads import text_of

from .call_effect import effect_of
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
    targets = tuple(resolve(item) for item in _requests(owned, json.loads(encoded)))
    call = ToolCall(
        id=call_id,
        tool=tool,
        args=json.loads(encoded),
        step=step,
        domain=owned.tool.domain,
        targets=targets,
        hash=digest(encoded),
        effect=_effect(owned, encoded, targets),
        source=owned.tool.source,
    )
    return call, encoded


def _effect(owned: RegisteredTool, encoded: bytes, targets: Sequence[Target]) -> str:
    """Return the hash of what the call does. It only compares calls, so a schema that is not understood costs nothing else."""
    try:
        return effect_of(owned.tool, json.loads(encoded), targets)
    except Exception:
        return digest(encoded)


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

"""Turn what a body returned, or the reason that it did not run, into the result that the model reads."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moryflow_sdk import Denied, Ruling, ToolCall, ToolError, ToolResult

from moryflow.hooks.call import describe, plugin_error
from moryflow.hooks.plugin_set import RegisteredTool

from .turn_context import TurnContext

CAP_FACTOR = 4
DEFAULT_LIMIT_BYTES = 51200
LEAST_CAP_BYTES = 8192
"""However small the limit, the hint that says where the whole output is stays readable."""


def as_result(owned: RegisteredTool, outcome: Any, collected: Mapping[str, Any]) -> ToolResult:
    """Return what a body returned as a result: text as it is, anything else as JSON.

    One that is not ours is built anew and checked, like what a hook returns: a result that cannot be read again would be
    stored all the same.

    :param collected: what was said through ``ctx.metadata``.
    :raises Exception: whatever looking at it raises.
    """
    if not owned.foreign and isinstance(outcome, ToolResult) and not collected:
        return outcome
    try:
        result = _as_result(outcome)
        if collected:
            result = result.replace(metadata={**result.metadata, **collected})
        if result.metadata:
            json.dumps(result.model_dump(mode="json", include={"metadata"}))
        return result
    except GeneratorExit as error:
        raise plugin_error(error) from error


def _as_result(outcome: Any) -> ToolResult:
    kind = type(outcome)  # isinstance would believe what it says of itself
    if issubclass(kind, ToolResult):
        return ToolResult(**{name: getattr(outcome, name) for name in ToolResult.model_fields})
    if issubclass(kind, str):
        return ToolResult(output=outcome)
    if outcome is None:
        return ToolResult(output="done")
    return ToolResult(output=json.dumps(outcome, ensure_ascii=False, default=str), format="json")


def tool_payload(call: ToolCall, result: ToolResult) -> dict[str, Any]:
    """Return the node payload of a result."""
    fields = result.model_dump(mode="json", exclude_defaults=True, exclude={"spool"})
    return {"call_id": call.id, "tool": call.tool, "status": result.status, "output": result.output, **fields}


def cap_output(result: ToolResult, scope: TurnContext) -> ToolResult:
    """Return `result` within four times the truncation limit, whatever plugins did."""
    limit = scope.around.config.get("agents.runtime.truncation.maxBytes", DEFAULT_LIMIT_BYTES)
    cap = max(CAP_FACTOR * (limit if isinstance(limit, int) and limit > 0 else DEFAULT_LIMIT_BYTES), LEAST_CAP_BYTES)
    data = result.output.encode("utf-8", "replace")
    if len(data) <= cap:
        return result if len(data) == len(result.output) or _clean(result.output) else result.replace(output=data.decode())
    kept = data[:cap].decode("utf-8", "ignore")
    return result.replace(output=f"{kept}\n[cut by the host: {len(data)} bytes]", truncated=True)


def _clean(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def failure(error: ToolError) -> ToolResult:
    return ToolResult(status="error", code=error.code, output=str(error))


def result_of_error(owned: RegisteredTool, body: Callable[..., Any], error: Exception) -> ToolResult:
    """Return the result of a `body` that raised. The error's text and code are foreign code and may raise."""
    try:
        if isinstance(error, ToolError):
            return failure(error)
        if isinstance(error, Denied):
            return ToolResult(status="denied", code="denied", output=str(error))
    except BaseException as another:
        error = plugin_error(another)
    return crash(owned, body, error)


def crash(owned: RegisteredTool, body: Callable[..., Any], error: Exception) -> ToolResult:
    """Return what a `body` that raised comes to: what, and the last line of its own file that it passed through."""
    tool = owned.tool
    code = getattr(inspect.unwrap(body), "__code__", None)
    said, file, line = describe(error, tool.source or getattr(code, "co_filename", ""))
    place = f" ({Path(file).name}:{line})" if line else ""
    output = f"{tool.name} (plugin {owned.plugin}) failed: {said}{place}"
    return ToolResult(status="error", code="tool_failed", output=output)


def refusal(ruling: Ruling) -> ToolResult:
    step = f" Next: {ruling.next_step}" if ruling.next_step else ""
    return ToolResult(status="denied", code=ruling.cause, output=f"denied: {ruling.reason}.{step}")

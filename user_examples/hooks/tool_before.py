"""Read a hundred lines at a time where the model did not say how many."""

from __future__ import annotations

from moryflow_sdk import ToolCall, hookimpl


@hookimpl
def tool_before(call: ToolCall) -> ToolCall | None:
    """Fill in a default. The arguments are as the model wrote them, so expect anything."""
    if call.tool != "read" or "limit" in call.args:
        return None
    return call.replace(args={**call.args, "limit": 100})

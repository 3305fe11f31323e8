"""What ``read`` returns, fenced. Copy it to ``~/.moryflow/plugins/``."""

from __future__ import annotations

from moryflow_sdk import ToolCall, ToolResult, hookimpl


@hookimpl
def tool_after(call: ToolCall, result: ToolResult) -> ToolResult | None:
    """Format what went well; an error stays as it is."""
    if call.tool != "read" or result.status != "ok":
        return None
    return result.replace(output=f"```\n{result.output}\n```")

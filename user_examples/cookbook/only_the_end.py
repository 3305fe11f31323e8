"""A limit on what the model reads of long test runs.

The end of the output says what failed; the beginning only costs tokens. Errors of the tool itself are not shortened.

Try it: ``moryflow tool run bash --command "seq 200"``.
"""

from __future__ import annotations

from moryflow_sdk import ToolCall, ToolResult, hookimpl

TOOLS = {"bash"}
KEPT = 60


@hookimpl
def tool_after(call: ToolCall, result: ToolResult) -> ToolResult | None:
    """Keep the last lines, and say how many are gone."""
    lines = result.output.splitlines()
    if call.tool not in TOOLS or result.status != "ok" or len(lines) <= KEPT:
        return None
    return result.replace(output="\n".join([f"[{len(lines) - KEPT} lines left out]", *lines[-KEPT:]]))

"""Hide keys, tokens and passwords in what tools return, before the model or a log sees them.

Copy it to ``~/.moryflow/plugins/``. With ``on_failure="withhold"`` a redactor that breaks does not let the secret
through: the call then ends as an error, and nothing of the result is sent on.
"""

from __future__ import annotations

from moryflow_sdk import ToolCall, ToolResult, hookimpl, redact


@hookimpl(on_failure="withhold")
def tool_after(call: ToolCall, result: ToolResult) -> ToolResult | None:
    """Replace whatever looks like a secret."""
    clean = redact(result.output)
    return result.replace(output=clean) if clean != result.output else None

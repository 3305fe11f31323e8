"""Keep mail addresses from the model."""

from __future__ import annotations

import re

from moryflow_sdk import ToolResult, hookimpl

ADDRESS = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w")


@hookimpl(on_failure="withhold")
def tool_after(result: ToolResult) -> ToolResult | None:
    """If this raised, the whole result would be withheld: a redactor that breaks must not let through."""
    clean = ADDRESS.sub("[address]", result.output)
    return result.replace(output=clean) if clean != result.output else None

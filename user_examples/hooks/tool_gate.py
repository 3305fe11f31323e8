"""Ask before a tool for files changes anything below ``contracts/``, in every mode. Commands have ``shell:`` targets only."""

from __future__ import annotations

from moryflow_sdk import Ask, ToolCall, hookimpl


@hookimpl
def tool_gate(call: ToolCall) -> Ask | None:
    """Look at the resolved targets, not at the arguments: links and spellings are dealt with by then."""
    for target in call.targets:
        if target.domain == "edit" and target.text.startswith("vault:/contracts/"):
            return Ask("contracts are signed", bypass="never")
    return None

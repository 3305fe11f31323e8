"""Redaction of secrets, also of those that only your house knows.

``redact`` knows the usual kinds of keys; the settings add your own patterns. With ``on_failure="withhold"``, nothing is sent
if the redactor itself fails or is late; an output may have 32 MiB, and so it gets half a minute.

Try it: ``moryflow hook fire tool.after '{"result": {"output": "ticket ACME-123456"}}'``.
"""

from __future__ import annotations

import re

from moryflow_sdk import ToolResult, Turn, hookimpl, redact
from pydantic import BaseModel


class Settings(BaseModel, frozen=True):
    """What ``plugins.house_secrets`` may say."""

    patterns: list[str] = [r"\bACME-\d{6}\b"]


config_model = Settings


@hookimpl(on_failure="withhold", timeout=30.0)
def tool_after(result: ToolResult, turn: Turn) -> ToolResult | None:
    """Replace what must not be read."""
    clean = redact(result.output)
    for pattern in turn.config.patterns:
        clean = re.sub(pattern, "[redacted]", clean)
    return result.replace(output=clean) if clean != result.output else None

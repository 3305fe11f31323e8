"""Results in another language.

A small model translates what a tool returns before the conversation's model reads it. The request is not part of the
conversation, but its cost counts.

Try it: ``moryflow run "Read liesmich.md"`` with ``"plugins": {"translate_results": {"tools": ["read"]}}``.
"""

from __future__ import annotations

from moryflow_sdk import ModelError, ToolCall, ToolResult, Turn, hookimpl
from pydantic import BaseModel

services = ["complete"]


class Settings(BaseModel, frozen=True):
    """What ``plugins.translate_results`` may say."""

    tools: list[str] = []
    language: str = "English"
    model: str | None = None


config_model = Settings


@hookimpl(timeout=30)
async def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Translate; where the model fails, leave the result as it is."""
    settings: Settings = turn.config
    if call.tool not in settings.tools or result.status != "ok":
        return None
    try:
        said = await turn.complete(result.output, system=f"Translate into {settings.language}.", model=settings.model)
    except ModelError as error:
        turn.log.warning("not translated: %s", error)
        return None
    return result.replace(output=said)

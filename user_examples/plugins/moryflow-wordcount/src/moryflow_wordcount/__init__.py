"""A plugin with one tool and one hook: it counts the words of a file, and notes the count under what other tools read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from moryflow_sdk import TargetRequest, Tool, ToolCall, ToolContext, ToolResult, Turn, file_target, hookimpl, tool
from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """What ``plugins.wordcount`` in the configuration may say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    annotate: tuple[str, ...] = ()
    """Tools whose output gets a line with its word count."""


config_model = Settings


def count(text: str) -> int:
    """Return the number of words, separated by white space."""
    return len(text.split())


def _targets(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    """Say which file a call reads, so that permission rules for files hold for it."""
    return [file_target(args["path"])]


@tool(domain="read", targets=_targets, parallel_safe=True)
def wordcount(path: Annotated[str, "A text file; relative paths start at the vault"], context: ToolContext) -> str:
    """Count the words of a text file."""
    data = context.files.read(context.call.targets[0])
    words = count(data.decode("utf-8", "replace"))
    context.metadata(words=words)
    return f"{path}: {words} words"


@hookimpl
def tools() -> list[Tool]:
    """Offer the tool."""
    return [wordcount]


@hookimpl
def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Note the word count under the output of the configured tools."""
    if call.tool not in turn.config.annotate or result.status != "ok":
        return None
    return result.replace(output=f"{result.output}\n[{count(result.output)} words]")

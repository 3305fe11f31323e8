"""A tool that reads files of the vault, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from moryflow_sdk import PluginContext, TargetRequest, Tool, ToolContext, file_target, hookimpl, tool

services = ("files",)


def what_it_touches(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    """Name the file, so that the rules for files decide; without this the tool as a whole would be asked about."""
    return [file_target(args["path"])]


@tool(domain="read", targets=what_it_touches, parallel_safe=True)
def headings(path: Annotated[str, "a Markdown file"], ctx: ToolContext) -> str:
    """List the headings of a Markdown file."""
    text = ctx.files.read(ctx.call.targets[0]).decode("utf-8")
    return "\n".join(line for line in text.splitlines() if line.startswith("#"))


@hookimpl
def tools(ctx: PluginContext) -> list[Tool]:
    """Everything the model may call from this plugin."""
    return [headings]

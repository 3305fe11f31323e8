"""A tool that says how far it is.

While the tool works, the user sees its last progress line; the model reads only the result. A tool that looks at
``context.cancelled`` ends soon after Ctrl-C.

Try it: ``moryflow tool run count_words --folder . -v``.
"""

from __future__ import annotations

from typing import Annotated

from moryflow_sdk import Tool, ToolContext, file_target, hookimpl, tool

services = ["files"]


@tool(domain="read", targets=lambda args: file_target(args["folder"]), timeout=300)
def count_words(folder: Annotated[str, "Where to look"], context: ToolContext) -> dict[str, int]:
    """Count the words of all Markdown files below FOLDER."""
    files = words = 0
    folder_target = context.call.targets[0]
    for path, _ in context.files.walk(folder_target):
        if context.cancelled:
            break
        if path.endswith(".md"):
            content = context.files.read(context.files.resolve(path, base=folder_target.path))
            files, words = files + 1, words + len(content.split())
            context.progress(f"{files} files, now {path}")
    return {"files": files, "words": words}


@hookimpl
def tools() -> list[Tool]:
    """Offer the tool."""
    return [count_words]

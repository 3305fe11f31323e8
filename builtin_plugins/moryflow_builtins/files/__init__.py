"""Files: ``read``, ``ls``, ``write``, ``edit``, ``multiedit``, ``apply_patch``, ``move`` and ``delete``.

A body opens only the judged targets, never a path by its name. Models of the GPT family are offered ``apply_patch``, all
others ``edit``, ``multiedit`` and ``write``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from moryflow_sdk import Frozen, ModelInfo, TargetRequest, Tool, ToolContext, ToolResult, file_target, hookimpl, tool
from moryflow_sdk.field_types import Between

name = "files"
services = ("files",)

Path = Annotated[str, "path of the file, absolute or relative to the working folder"]


class OneEdit(Frozen):
    """One replacement of ``multiedit``."""

    path: Annotated[str, "path of the file"]
    old_string: Annotated[str, "the text to replace; it must be there once"]
    new_string: Annotated[str, "the text to put in its place"]
    replace_all: Annotated[bool, "replace it everywhere in the file"] = False


def writes_patches(model: ModelInfo) -> bool:
    """Whether `model` was trained on ``apply_patch``."""
    return model.family.lower() == "gpt"


def writes_edits(model: ModelInfo) -> bool:
    """Whether `model` is offered ``edit``, ``multiedit`` and ``write``, instead of ``apply_patch``."""
    return not writes_patches(model)


def _read_path(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    return (file_target(args.get("path", "."), "read"),)


def _edit_path(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    return (file_target(args["path"], "edit"),)


def _both_paths(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    return file_target(args["path"], "edit"), file_target(args["to"], "edit")


def _edited_paths(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    return [file_target(path, "edit") for path in dict.fromkeys(edit["path"] for edit in args["edits"])]


def _patched_paths(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    from .patches import parse_patch, paths_of

    return [file_target(path, "edit") for path in paths_of(parse_patch(args["patch"]))]


def _preview(ctx: ToolContext) -> str:
    from .preview import PREVIEWS

    return PREVIEWS[ctx.call.tool](ctx)


@tool(domain="read", targets=_read_path, parallel_safe=True)
async def read(
    path: Path,
    ctx: ToolContext,
    offset: Annotated[int, Between(1), "first line to return, counted from 1"] = 1,
    limit: Annotated[int, Between(1, 1900), "how many lines to return at most"] = 1900,
    encoding: Annotated[str | None, "text encoding, if the file has neither UTF-8 nor a byte-order mark"] = None,
    line_numbers: Annotated[bool, "put the line number before each line; it is not part of the file"] = False,
) -> ToolResult:
    """Read a text file, a page of it at a time, or look at an image (PNG, JPEG, GIF, WebP)."""
    import asyncio

    from .reader import read_target

    return await asyncio.to_thread(read_target, ctx, offset, limit, encoding, line_numbers)


@tool(domain="read", targets=_read_path, parallel_safe=True)
def ls(
    ctx: ToolContext,
    path: Annotated[str, "the folder, absolute or relative to the working folder"] = ".",
    all: Annotated[bool, "also what .gitignore and .ignore leave out"] = False,
) -> ToolResult:
    """List a folder: names, sizes, folders with a slash. To find files deeper down use glob."""
    from .reader import list_target

    return list_target(ctx, all)


@tool(domain="edit", targets=_edit_path, offered=writes_edits, preview=_preview)
def write(path: Path, content: Annotated[str, "the whole new content"], ctx: ToolContext) -> ToolResult:
    """Create a file, or replace all of it. To change a part of a file use edit."""
    from .editor import write_target

    return write_target(ctx, content)


@tool(domain="edit", targets=_edit_path, offered=writes_edits, preview=_preview)
def edit(
    path: Path,
    old_string: Annotated[str, "the text to replace, with enough around it to be there only once"],
    new_string: Annotated[str, "the text to put in its place"],
    ctx: ToolContext,
    replace_all: Annotated[bool, "replace it everywhere in the file"] = False,
) -> ToolResult:
    """Replace a text in a file; it must be there exactly once unless replace_all is set."""
    from .editor import edit_files
    from .match import Edit

    return edit_files(ctx, [(ctx.call.targets[0], Edit(old_string, new_string, replace_all))], "edit")


@tool(domain="edit", targets=_edited_paths, offered=writes_edits, preview=_preview)
def multiedit(
    edits: Annotated[list[OneEdit], Between(1), "made in order, each on what the one before left"], ctx: ToolContext
) -> ToolResult:
    """Make several edits in one or more files: all of them, or none if one does not fit."""
    from .editor import edit_files, targets_of
    from .match import Edit

    targets = targets_of([item.path for item in edits], ctx.call.targets)
    whole = [
        (target, Edit(item.old_string, item.new_string, item.replace_all)) for target, item in zip(targets, edits, strict=True)
    ]
    return edit_files(ctx, whole, "multiedit")


@tool(domain="edit", targets=_patched_paths, offered=writes_patches, preview=_preview)
def apply_patch(patch: Annotated[str, "the patch, from '*** Begin Patch' to '*** End Patch'"], ctx: ToolContext) -> ToolResult:
    """Add, update, move or delete files with one patch: all of it is applied, or nothing.

    *** Begin Patch
    *** Update File: path (then optionally *** Move to: new path)
    @@ a line that stands above the change, when the lines around it are not unique
     three lines before
    -old line
    +new line
     three lines after
    *** Add File: path (each line begins with +)
    *** Delete File: path
    *** End Patch
    """
    from .patches import apply_patch_text

    return apply_patch_text(ctx, patch)


@tool(domain="edit", targets=_both_paths, preview=_preview)
def move(path: Path, to: Annotated[str, "the new path; nothing may be there yet"], ctx: ToolContext) -> ToolResult:
    """Move or rename a file or a folder."""
    from .editor import move_targets

    return move_targets(ctx)


@tool(domain="edit", targets=_edit_path, preview=_preview)
def delete(
    path: Path, ctx: ToolContext, recursive: Annotated[bool, "delete a folder with all that is in it"] = False
) -> ToolResult:
    """Delete a file, a link (not what it leads to), or an empty folder."""
    from .editor import delete_target

    return delete_target(ctx, recursive)


@hookimpl
def tools() -> list[Tool]:
    """Offer the file tools."""
    return [read, ls, write, edit, multiedit, apply_patch, move, delete]

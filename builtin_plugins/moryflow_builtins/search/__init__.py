"""Search: ``glob``, ``grep`` and ``search_in_file``.

Ignore files are respected. Sensitive files and stored outputs are left out, sensitive files are counted; a search that finds
nothing names the ignored and binary files in which it would have. ``rg`` does the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from moryflow_sdk import TargetRequest, Tool, ToolContext, ToolResult, file_target, hookimpl, tool
from moryflow_sdk.field_types import Between

name = "search"
services = ("files", "rules")

Pattern = Annotated[str, "regular expression (no look-around, no back-references), matched within one line"]
IgnoreCase = Annotated[bool, "upper and lower case are the same"]
Literal = Annotated[bool, "take the pattern as plain text"]
Context = Annotated[int, Between(0, 10), "lines to show before and after each match"]
Limit = Annotated[Annotated[int, Between(1)] | None, "how many matches at most; all by default, a long result is stored"]


def _path(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    return (file_target(args.get("path", "."), "read"),)


def _glob_folder(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    """Return the folder that a pattern starts from, with its ``..`` resolved."""
    from .bodies import split

    return (file_target(split(args["pattern"], args.get("path", "."))[0], "read"),)


@tool(domain="read", targets=_glob_folder, parallel_safe=True)
async def glob(
    pattern: Annotated[str, "for example src/**/*.py or *.{md,txt}; * stops at a slash, ** does not"],
    ctx: ToolContext,
    path: Annotated[str, "the folder the pattern starts from"] = ".",
    limit: Annotated[Annotated[int, Between(1)] | None, "how many files at most; all by default"] = None,
) -> ToolResult:
    """Find files by name. Ignored files (.gitignore, .ignore) and files of secrets are left out."""
    from .bodies import glob_target

    return await glob_target(ctx, pattern, path, limit)


@tool(domain="read", targets=_path, parallel_safe=True)
async def grep(
    pattern: Pattern,
    ctx: ToolContext,
    path: Annotated[str, "folder or file to search"] = ".",
    glob: Annotated[str, "only files with such a name or path, for example *.py or src/**"] = "",
    ignore_case: IgnoreCase = False,
    literal: Literal = False,
    context: Context = 0,
    limit: Limit = None,
    files_only: Annotated[bool, "only the files and how many lines match in each"] = False,
) -> ToolResult:
    """Search the content of files. Ignored files (.gitignore, .ignore), binary files and files of secrets are left out."""
    from .bodies import grep_target
    from .results import SearchRequest

    return await grep_target(ctx, SearchRequest(pattern, ignore_case, literal, context, glob), limit, files_only=files_only)


@tool(domain="read", targets=_path, parallel_safe=True)
async def search_in_file(
    path: Annotated[str, "the file"],
    pattern: Pattern,
    ctx: ToolContext,
    ignore_case: IgnoreCase = False,
    literal: Literal = False,
    context: Context = 0,
    limit: Limit = None,
) -> ToolResult:
    """Search the content of one file, also a large one or one that is ignored."""
    from .bodies import search_file_target
    from .results import SearchRequest

    return await search_file_target(ctx, SearchRequest(pattern, ignore_case, literal, context), limit)


@hookimpl
def tools() -> list[Tool]:
    """Offer the search tools."""
    return [glob, grep, search_in_file]

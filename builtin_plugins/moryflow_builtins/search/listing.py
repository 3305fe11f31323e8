"""The files below a folder, without what ``.gitignore`` and ``.ignore`` leave out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from moryflow_sdk import Target, ToolContext, ToolError
from moryflow_sdk.texts import composed

WALK_SECONDS = 30.0
MAX_FILES = 1_000_000


@dataclass(frozen=True)
class Listing:
    """Paths relative to the folder, in any order; `complete` is false when there was no time for all of them."""

    paths: list[str]
    complete: bool = True


async def list_files(ctx: ToolContext, target: Target) -> Listing:
    """List the files below `target`: with ``rg`` where there is one, else by walking."""
    import asyncio

    from .ripgrep import find_rg, listed

    program = find_rg(ctx.vault)
    if program is not None:
        found = await listed(ctx, target, program)
        if found is not None:
            return found
    return await asyncio.to_thread(walked, ctx, target)


def walked(ctx: ToolContext, target: Target) -> Listing:
    """List by walking, for as long as is reasonable."""
    paths: list[str] = []
    end = time.monotonic() + WALK_SECONDS
    for path, _ in ctx.files.walk(target):
        paths.append(path)
        if len(paths) >= MAX_FILES or (len(paths) % 256 == 0 and (time.monotonic() > end or ctx.cancelled)):
            return Listing(paths, complete=False)
    return Listing(paths)


def named_by(pattern: str) -> Callable[[str], object]:
    """Return whether a path is named by a glob: ``*`` stops at ``/``, ``**`` does not, ``{a,b}`` is either.

    :raises ToolError: ``invalid_pattern``.
    """
    from moryflow_sdk.patterns.globs import TooMany, braces, path_regex

    try:
        named = re.compile("|".join(path_regex("", one, folders=False) for one in braces(composed(pattern))), re.DOTALL)
    except (re.error, TooMany, RecursionError, OverflowError) as error:
        raise ToolError(f"the glob {pattern[:80]!r} cannot be used: {error}", code="invalid_pattern") from error
    return lambda path: named.fullmatch(composed(path))

"""``glob``: a pattern is a folder and what is looked for below it; the folder is what is judged."""

from __future__ import annotations

import asyncio
import posixpath
import time

from moryflow_sdk import Target, ToolContext, ToolResult

from .allowed import Reader
from .found import FileListing, named_by, one_line, with_notes
from .ripgrep import find_rg, listed

WALK_SECONDS = 30.0
MAX_FILES = 1_000_000
_MAGIC = frozenset("*?[{\\")


def split(pattern: str, path: str) -> tuple[str, str]:
    """Return the folder that `pattern` (relative to `path`) reaches, and the rest of it.

    ``..`` is taken out first, also behind a wildcard, so that no part of the rest can leave the folder.
    """
    plain = posixpath.normpath(posixpath.join(path, pattern)) if pattern else path
    names = plain.split("/")
    if names[-1] in ("", ".", ".."):
        return plain, "*"
    magic = next((index for index, name in enumerate(names) if not _MAGIC.isdisjoint(name)), len(names) - 1)
    folder = "/".join(names[:magic]) or ("/" if plain.startswith("/") else ".")
    return folder, "/".join(names[magic:])


async def glob_target(ctx: ToolContext, pattern: str, path: str, limit: int | None) -> ToolResult:
    """List the files below the call's target that `pattern` names."""
    target = ctx.call.targets[0]
    folder, rest = split(pattern, path)
    listing = await _list_files(ctx, target)
    reader = Reader(ctx, target)
    named = sorted(filter(named_by(rest), listing.paths))
    refused = reader.refused(named)
    found = [path for path in named if path not in refused]
    limit = len(found) if limit is None else limit
    shown = [one_line(posixpath.normpath(posixpath.join(folder, name))) for name in found[:limit]]
    notes = [note.replace("searched", "listed") for note in reader.notes]
    if len(found) > limit:
        notes.insert(0, f"{limit:,} of {len(found):,} files; narrow the pattern")
    if not listing.complete:
        notes.append("not all folders were looked at")
    if not found and "/" not in rest and "**" not in rest:
        notes.append(f"no match here; **/{rest} looks in all folders")
    return ToolResult(
        output="\n".join(with_notes(shown or ["no match"], notes)),
        title=f"glob {pattern} ({len(found)} file{'s' * (len(found) != 1)})",
        metadata={"target": target.text, "files": len(found)},
    )


async def _list_files(ctx: ToolContext, target: Target) -> FileListing:
    """List the files below `target`: with ``rg`` where there is one, else by walking."""
    program = find_rg(ctx.vault)
    if program is not None:
        found = await listed(ctx, target, program)
        if found is not None:
            return found
    return await asyncio.to_thread(_walked, ctx, target)


def _walked(ctx: ToolContext, target: Target) -> FileListing:
    """List by walking, for as long as is reasonable."""
    paths: list[str] = []
    end = time.monotonic() + WALK_SECONDS
    for path, _ in ctx.files.walk(target):
        paths.append(path)
        if len(paths) >= MAX_FILES or (len(paths) % 256 == 0 and (time.monotonic() > end or ctx.cancelled)):
            return FileListing(paths, complete=False)
    return FileListing(paths)

"""``write``, ``edit`` and ``multiedit``: read, change in memory, write once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.services import Files
from moryflow_sdk.texts import looks_binary

from .commit import Change, commit
from .diffs import Diff, Shown, diff, lines_of, short_diffs
from .matching import Edit, apply_edit
from .text import MAX_BYTES, Text, decode, encode_new


def write_target(ctx: ToolContext, content: str) -> ToolResult:
    """Replace or create the call's target."""
    target = ctx.call.targets[0]
    name, data = target.given, encode_new(content, target.given)
    if target.identity is None:
        ctx.files.write(target, data)
        made = Shown(target.text, "new file", diff("", content, name))
        return _told(ctx, f"created {name}", f"write {name} (+{len(lines_of(content))})", shown=[made])
    before = old_text(ctx.files, target)
    if before is not None and before.encode("utf-8", "replace") == data:
        return _told(ctx, f"{name} already holds exactly this", f"write {name} (unchanged)")
    ctx.files.write(target, data)
    if before is None:
        made = Shown(target.text, "replaced", diff("", content, name))
        return _told(ctx, f"replaced {name}", f"write {name}", shown=[made])
    made = diff(before, content, name)
    output, title = f"replaced {name} ({made.count})\n{made.text}", f"write {name} ({made.count})"
    return _told(ctx, output, title, made, [Shown(target.text, "", made)])


def old_text(files: Files, target: Target) -> str | None:
    """Return what a file held as UTF-8 text, for the diff; nothing when it is binary or large."""
    try:
        data = files.read(target, limit=MAX_BYTES)
        return None if looks_binary(data) else data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    except ToolError as error:
        if error.code == "too_large":
            return None
        raise


def edit_files(ctx: ToolContext, edits: Sequence[tuple[Target, Edit]], tool: str) -> ToolResult:
    """Make all `edits`, in order, each file written once; nothing is written when one of them fails."""
    edited, places = planned_edits(ctx.files, edits)
    changes = [Change(one.target, one.data, one.text.encode(one.after, one.target.given)) for one in edited]
    commit(ctx.files, changes)
    made = [diff(one.text.text, one.after, one.target.given) for one in edited]
    return _edited(ctx, [one.target for one in edited], made, places, tool)


@dataclass
class Edited:
    """A file with its edits made in memory: what it holds, and the text that it shall hold."""

    target: Target
    data: bytes
    text: Text
    after: str


def planned_edits(files: Files, edits: Sequence[tuple[Target, Edit]]) -> tuple[list[Edited], int]:
    """Return the files as `edits` leave them, and the number of places; nothing is written.

    :raises ToolError: one of them does not fit.
    """
    edited: dict[str, Edited] = {}
    places = 0
    for number, (target, edit) in enumerate(edits, 1):
        key = target.path or target.text
        if key not in edited:
            data = files.read(target, limit=MAX_BYTES)
            text = decode(data, target.given)
            edited[key] = Edited(target, data, text, text.text)
        try:
            edited[key].after, count = apply_edit(edited[key].after, edit, target.given)
        except ToolError as error:
            raise _numbered(error, number, len(edits)) from error
        places += count
    return list(edited.values()), places


def _numbered(error: ToolError, number: int, count: int) -> ToolError:
    """Say which of several edits it was, and that none was made."""
    if count == 1:
        return error
    message = f"edit {number} of {count}: {error.message}; no file was changed"
    return ToolError(message, code=error.code, where=error.where, next_step=error.next_step)


def _edited(ctx: ToolContext, targets: Sequence[Target], made: Sequence[Diff], places: int, tool: str) -> ToolResult:
    total = Diff(sum(one.added for one in made), sum(one.removed for one in made), "")
    what = targets[0].given if len(targets) == 1 else f"{len(targets)} files"
    count = f"{places} replacements" if places != 1 else "1 replacement"
    text = "\n".join(one.text for one in made if one.text)
    shown = [Shown(target.text, "", one) for target, one in zip(targets, made, strict=True)]
    return _told(ctx, f"edited {what}: {count} ({total.count})\n{text}", f"{tool} {what} ({total.count})", total, shown)


def _told(ctx: ToolContext, output: str, title: str, made: Diff | None = None, shown: Sequence[Shown] = ()) -> ToolResult:
    counts = {"added": made.added, "removed": made.removed} if made else {}
    diffs = {"diff": short_diffs(shown)} if shown else {}
    targets = list(dict.fromkeys(target.text for target in ctx.call.targets))
    return ToolResult(output=output, title=title, metadata={"targets": targets, **counts, **diffs})


def paired(paths: Sequence[str], targets: Sequence[Target]) -> Iterator[Target]:
    """Yield the judged target of each path; equal paths were declared, and judged, once."""
    by_path = dict(zip(dict.fromkeys(paths), targets, strict=True))
    yield from (by_path[path] for path in paths)

"""``write``, ``edit`` and ``multiedit``: read, change in memory, write once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.texts import looks_binary

from .commit import Change, commit
from .diffs import Diff, diff, lines_of
from .matching import Edit, apply_edit
from .text import MAX_BYTES, Text, decode, encode_new


def write_target(ctx: ToolContext, content: str) -> ToolResult:
    """Replace or create the call's target."""
    target = ctx.call.targets[0]
    name, data = target.given, encode_new(content, target.given)
    if target.identity is None:
        ctx.files.write(target, data)
        return _told(ctx, f"created {name}", f"write {name} (+{len(lines_of(content))})")
    before = _old_text(ctx, target)
    if before is not None and before.encode("utf-8", "replace") == data:
        return _told(ctx, f"{name} already holds exactly this", f"write {name} (unchanged)")
    ctx.files.write(target, data)
    if before is None:
        return _told(ctx, f"replaced {name}", f"write {name}")
    made = diff(before, content, name)
    return _told(ctx, f"replaced {name} ({made.count})\n{made.text}", f"write {name} ({made.count})", made)


def _old_text(ctx: ToolContext, target: Target) -> str | None:
    """Return what a file held as UTF-8 text, for the diff; nothing when it is binary or large."""
    try:
        data = ctx.files.read(target, limit=MAX_BYTES)
        return None if looks_binary(data) else data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    except ToolError as error:
        if error.code == "too_large":
            return None
        raise


def edit_files(ctx: ToolContext, edits: Sequence[tuple[Target, Edit]], tool: str) -> ToolResult:
    """Make all `edits`, in order, each file written once; nothing is written when one of them fails."""
    opened: dict[str, tuple[Target, bytes, Text]] = {}
    texts: dict[str, str] = {}
    places = 0
    for number, (target, edit) in enumerate(edits, 1):
        key = target.path or target.text
        if key not in opened:
            data = ctx.files.read(target, limit=MAX_BYTES)
            opened[key] = target, data, decode(data, target.given)
            texts[key] = opened[key][2].text
        try:
            texts[key], count = apply_edit(texts[key], edit, target.given)
        except ToolError as error:
            raise _numbered(error, number, len(edits)) from error
        places += count
    changes = [Change(target, data, text.encode(texts[key], target.given)) for key, (target, data, text) in opened.items()]
    commit(ctx.files, changes)
    made = [diff(text.text, texts[key], target.given) for key, (target, _, text) in opened.items()]
    return _edited(ctx, [target.given for target, _, _ in opened.values()], made, places, tool)


def _numbered(error: ToolError, number: int, count: int) -> ToolError:
    """Say which of several edits it was, and that none was made."""
    if count == 1:
        return error
    message = f"edit {number} of {count}: {error.message}; no file was changed"
    return ToolError(message, code=error.code, where=error.where, next_step=error.next_step)


def _edited(ctx: ToolContext, names: Sequence[str], made: Sequence[Diff], places: int, tool: str) -> ToolResult:
    total = Diff(sum(one.added for one in made), sum(one.removed for one in made), "")
    what = names[0] if len(names) == 1 else f"{len(names)} files"
    count = f"{places} replacements" if places != 1 else "1 replacement"
    shown = "\n".join(one.text for one in made if one.text)
    return _told(ctx, f"edited {what}: {count} ({total.count})\n{shown}", f"{tool} {what} ({total.count})", total)


def _told(ctx: ToolContext, output: str, title: str, made: Diff | None = None) -> ToolResult:
    counts = {"added": made.added, "removed": made.removed} if made else {}
    targets = list(dict.fromkeys(target.text for target in ctx.call.targets))
    return ToolResult(output=output, title=title, metadata={"targets": targets, **counts})


def paired(paths: Sequence[str], targets: Sequence[Target]) -> Iterator[Target]:
    """Yield the judged target of each path; equal paths were declared, and judged, once."""
    by_path = dict(zip(dict.fromkeys(paths), targets, strict=True))
    yield from (by_path[path] for path in paths)

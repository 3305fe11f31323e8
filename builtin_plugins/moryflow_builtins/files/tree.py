"""``ls``, ``move`` and ``delete``."""

from __future__ import annotations

from moryflow_sdk import Entry, ToolContext, ToolError, ToolResult

from .diffs import ShownFile, short_diffs

MAX_ENTRIES = 1000


def list_target(ctx: ToolContext, show_all: bool) -> ToolResult:
    """List the call's target, folders first."""
    target = ctx.call.targets[0]
    entries = ctx.files.entries(target, ignore=not show_all)
    entries.sort(key=lambda entry: (entry.kind != "dir", entry.name))
    lines = [_line(entry) for entry in entries[:MAX_ENTRIES]]
    notes: list[str] = []
    if len(entries) > MAX_ENTRIES:
        notes.append(f"{len(entries) - MAX_ENTRIES:,} more entries; use glob to narrow it down")
    hidden = 0 if show_all else len(ctx.files.entries(target)) - len(entries)
    if hidden:
        notes.append(f"{hidden} ignored by .gitignore or .ignore; all=true shows them")
    if not lines:
        notes.insert(0, "the folder is empty" if not hidden else "nothing else is here")
    count = f"{len(entries)} entries" if len(entries) != 1 else "1 entry"
    return ToolResult(
        output="\n".join([*lines, *(f"[{note}]" for note in notes)]),
        title=f"ls {target.given} ({count})",
        metadata={"target": target.text, "entries": len(entries)},
    )


def _line(entry: Entry) -> str:
    name = entry.name.replace("\n", "\\n").replace("\r", "\\r")  # a line end in a name must not look like another entry
    match entry.kind:
        case "dir":
            return f"{name}/"
        case "link":
            return f"{name} (link)"
        case "other":
            return f"{name} (not a regular file)"
        case _:
            return f"{name} ({_size(entry.size)})"


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1024 or unit == "GB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"


def move_targets(ctx: ToolContext) -> ToolResult:
    """Move the first target to the second."""
    source, destination = ctx.call.targets
    if source.identity is not None and source.path == destination.path:
        what = f"{source.given} and {destination.given} are the same file; it is left where it is"
        raise ToolError(what, code="exists", next_step="choose another name; mv changes how a name is stored")
    if source.path and destination.path and destination.path.startswith(source.path.rstrip("/") + "/"):
        raise ToolError(f"{source.given} cannot be moved into itself", code="invalid_args", next_step="choose another place")
    ctx.files.move(source, destination)
    text = f"moved {source.given} to {destination.given}"
    shown = short_diffs([ShownFile(f"{source.text} → {destination.text}", "moved")])
    return ToolResult(output=text, title=text, metadata={"targets": [source.text, destination.text], "diff": shown})


def delete_target(ctx: ToolContext, recursive: bool) -> ToolResult:
    """Remove the call's target."""
    target = ctx.call.targets[0]
    if target.identity is None and target.lexical is None:
        raise ToolError(f"{target.given} does not exist", code="not_found", next_step="list the folder with ls")
    try:
        ctx.files.remove(target, recursive=recursive)
    except ToolError as error:
        if error.code != "not_empty":
            raise
        raise ToolError(error.message, code=error.code, next_step="set recursive=true to delete all that is in it") from error
    text = f"deleted {target.given}"
    shown = short_diffs([ShownFile(target.text, "deleted")])
    return ToolResult(output=text, title=text, metadata={"targets": [target.text], "diff": shown})

"""The preview in a question about a change: the content or the diff, read from the objects that were judged.

Lines from a file begin with a blank, ``+``, ``-`` or a backslash, and hunk headers with ``@@``. All others are ours, so no
content can look like the name of another file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from moryflow_sdk import Target, ToolContext, ToolError, thaw
from moryflow_sdk.support.texts import visible

from .editor import lines_of, old_text, plan_edits, targets_of, whole_diff
from .match import Edit
from .patches import PlannedPatch, plan_patch

MAX_PATHS = 10_000


def preview_write(ctx: ToolContext) -> str:
    """Return the content of a new file, or the diff of an existing one."""
    target, content = ctx.call.targets[0], str(ctx.call.args["content"])
    if target.identity is None:
        return _with_heading(f"new file, {_lines(content)}", _new_lines(content))
    before = old_text(ctx.files, target)
    if before is None:
        return _with_heading(f"replaces all of it, which is large or not text, with {_lines(content)}", _new_lines(content))
    return _difference(before, content)


def preview_edits(ctx: ToolContext) -> str:
    """Return the diff of each file, with its name in front if there are several."""
    args = thaw(ctx.call.args)
    given = args.get("edits", [args])
    edits = [Edit(one["old_string"], one["new_string"], one.get("replace_all", False)) for one in given]
    targets = targets_of([one["path"] for one in given], ctx.call.targets)
    edited, _ = plan_edits(ctx.files, list(zip(targets, edits, strict=True)))
    made = [(one.target, _difference(one.text.text, one.after)) for one in edited]
    return made[0][1] if len(made) == 1 else "\n".join(_with_heading(_name(target), text) for target, text in made)


def preview_patch(ctx: ToolContext) -> str:
    return "\n".join(_preview_file(one, ctx.call.targets) for one in plan_patch(ctx, str(ctx.call.args["patch"])))


def preview_move(ctx: ToolContext) -> str:
    """Return every path that is moved, and where to."""
    source, destination = ctx.call.targets
    below = _paths_below(ctx, source)
    moved = [f"{_name(source)} → {_name(destination)}"]
    return "\n".join((*moved, *(f"{_name(source, path)} → {_name(destination, path)}" for path in below), *_more_note(below)))


def preview_delete(ctx: ToolContext) -> str:
    target = ctx.call.targets[0]
    below = _paths_below(ctx, target) if ctx.call.args.get("recursive") else []
    return "\n".join((_name(target), *(_name(target, path) for path in below), *_more_note(below)))


# The preview of each tool that changes files.
PREVIEWS = {
    "write": preview_write,
    "edit": preview_edits,
    "multiedit": preview_edits,
    "apply_patch": preview_patch,
    "move": preview_move,
    "delete": preview_delete,
}


def _paths_below(ctx: ToolContext, target: Target) -> list[str]:
    """Return the paths below a folder, at most one more than are shown; none if `target` is not a folder."""
    try:
        found: Iterable[str] = (path for path, _ in ctx.files.walk(target, ignore=False))
        return list(islice(found, MAX_PATHS + 1))
    except ToolError:
        return []


def _more_note(below: Sequence[str]) -> list[str]:
    return [f"and more than {MAX_PATHS:,} files in all"] if len(below) > MAX_PATHS else []


def _preview_file(one: PlannedPatch, targets: Sequence[Target]) -> str:
    name = _name(one.target)
    if one.patch.move_to:
        into = next(target for target in targets if target.given == one.patch.move_to)
        name = f"{name} → {_name(into)}"
    match one.patch.action:
        case "add":
            return _with_heading(f"{name}: new file, {_lines(one.after)}", _new_lines(one.after))
        case "delete":
            return _with_heading(f"{name}: deleted", whole_diff(one.before, "").text)
        case _:
            return _with_heading(name, _difference(one.before, one.after) if one.patch.hunks else "")


def _difference(before: str, after: str) -> str:
    if before == after:
        return "nothing changes"
    made = whole_diff(before, after)
    return _with_heading(f"{made.count} lines", made.text)


def _with_heading(head: str, text: str) -> str:
    return f"{head}\n{text}" if text else head


def _new_lines(content: str) -> str:
    return whole_diff("", content).text.partition("\n")[2]


def _lines(content: str) -> str:
    count = len(lines_of(content))
    return f"{count:,} lines" if count != 1 else "1 line"


def _name(target: Target, below: str = "") -> str:
    return visible(f"{target.text.rstrip('/')}/{below}" if below else target.text)

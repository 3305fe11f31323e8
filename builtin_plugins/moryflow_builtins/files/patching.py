"""``apply_patch``: find each change by its context, make all of them in memory, then write all or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult

from .commit import Change, commit
from .diffs import Diff, Shown, diff, short_diffs
from .indenting import adapted, other_blanks
from .matching import bare, line_end, plain_line
from .patch import FilePatch, Hunk, parse_patch, paths_of
from .text import MAX_BYTES, decode, encode_new

_WAYS: tuple[Callable[[str], str], ...] = (str, str.rstrip, plain_line, bare)
"""How lines are compared, the strictest first."""

_LINE = re.compile(r"([^\n]*?)(\r?\n)|([^\n]+)()\Z")
"""A line and its end, or the last line, which may have none."""


def apply_patch_text(ctx: ToolContext, patch: str) -> ToolResult:
    """Apply a whole patch to the call's targets."""
    planned = planned_patch(ctx, patch)
    commit(ctx.files, [change for one in planned for change in one.changes])
    made = [(_title(one.patch), diff(one.before, one.after, one.patch.path, one.patch.move_to)) for one in planned]
    total = Diff(sum(d.added for _, d in made), sum(d.removed for _, d in made), "")
    what = planned[0].patch.path if len(planned) == 1 else f"{len(planned)} files"
    shown = "\n".join(f"{title} ({one.count})" for title, one in made)
    return ToolResult(
        output=f"{shown}\n" + "\n".join(one.text for _, one in made if one.text),
        title=f"apply_patch {what} ({total.count})",
        metadata={
            "targets": [t.text for t in ctx.call.targets],
            "added": total.added,
            "removed": total.removed,
            "diff": short_diffs([_shown(one, change) for one, (_, change) in zip(planned, made, strict=True)]),
        },
    )


class PlannedPatch(NamedTuple):
    """What a patch makes of one file: the old text, the new one, and the changes on the disk."""

    patch: FilePatch
    target: Target
    before: str
    after: str
    changes: list[Change]


def planned_patch(ctx: ToolContext, patch: str) -> list[PlannedPatch]:
    """Return what `patch` makes of the call's targets; nothing is written.

    :raises ToolError: it cannot be read, or a part of it does not fit.
    """
    patches = parse_patch(patch)
    targets = dict(zip(paths_of(patches), ctx.call.targets, strict=True))
    _refuse_same(targets)
    return [PlannedPatch(one, targets[one.path], *_planned(ctx, one, targets)) for one in patches]


def _shown(one: PlannedPatch, made: Diff) -> Shown:
    into = one.changes[0].into
    name = f"{one.target.text} → {into.text}" if into is not None else one.target.text
    return Shown(name, {"add": "new file", "delete": "deleted"}.get(one.patch.action, ""), made)


def _title(patch: FilePatch) -> str:
    if patch.move_to:
        return f"moved {patch.path} to {patch.move_to}"
    return {"add": "added", "update": "updated", "delete": "deleted"}[patch.action] + f" {patch.path}"


def _refuse_same(targets: Mapping[str, Target]) -> None:
    """Two names of one file would be changed one over the other."""
    seen: dict[str, str] = {}
    for name, target in targets.items():
        other = seen.setdefault(target.path or target.text, name)
        if other != name:
            raise ToolError(f"{other} and {name} are the same file", code="invalid_patch", next_step="name it once")


def _planned(ctx: ToolContext, patch: FilePatch, targets: Mapping[str, Target]) -> tuple[str, str, list[Change]]:
    """Return the old text, the new text and the changes of one file."""
    target = targets[patch.path]
    if patch.action == "add":
        if target.identity is not None:
            raise ToolError(f"{patch.path} already exists", code="exists", next_step="update it instead")
        content = "".join(f"{line}\n" for line in patch.content)
        return "", content, [Change(target, None, encode_new(content, patch.path))]
    if patch.action == "update":
        return _updated(ctx, patch, target, targets.get(patch.move_to))
    data = ctx.files.read(target, limit=MAX_BYTES)
    return _text_or_nothing(data, patch.path), "", [Change(target, data, None)]


def _text_or_nothing(data: bytes, name: str) -> str:
    try:
        return decode(data, name).text
    except ToolError:
        return ""


def _updated(ctx: ToolContext, patch: FilePatch, target: Target, into: Target | None) -> tuple[str, str, list[Change]]:
    if into is not None and into.identity is not None:
        raise ToolError(f"{patch.move_to} already exists", code="exists", next_step="choose another name")
    if not patch.hunks:
        return "", "", [Change(target, None, None, into)]
    data = ctx.files.read(target, limit=MAX_BYTES)
    text = decode(data, patch.path)
    after = apply_hunks(text.text, patch.hunks, patch.path)
    return text.text, after, [Change(target, data, text.encode(after, patch.path), into)]


def apply_hunks(text: str, hunks: Sequence[Hunk], name: str) -> str:
    """Return `text` with all `hunks` applied, in order.

    :raises ToolError: ``not_found`` or ``not_unique``.
    """
    lines = [(match[1] or match[3] or "", match[2] or "") for match in _LINE.finditer(text)]
    bodies, end = [body for body, _ in lines], line_end(text, 0, len(text))
    result: list[tuple[str, str]] = []
    position = 0
    for number, hunk in enumerate(hunks, 1):
        start = _place(bodies, hunk, position, f"change {number} of {len(hunks)} in {name}")
        result += lines[position:start]
        position = start + len(hunk.old)
        nearest = (own for _, own in (*lines[start:position], *lines[:start][-1:]) if own)
        result += _replaced(lines[start:position], hunk, next(nearest, end))
    result += lines[position:]
    if not result:
        return ""
    last_end = lines[-1][1] if lines else end
    inner = "".join(body + (own or end) for body, own in result[:-1])
    return inner + result[-1][0] + last_end


def _replaced(old: Sequence[tuple[str, str]], hunk: Hunk, end: str) -> list[tuple[str, str]]:
    """Return the new lines of a place, each with its end; what the patch only repeats stays as the file has it."""
    lines, there = [text for sign, text in hunk.lines if sign == "+"], [body for body, _ in old]
    if other_blanks(hunk.old, there):
        # Not where only the depth differs: the sign may have been left out before a context line, and the new lines are right.
        lines = adapted(lines, hunk.old, there)
    added = iter(lines)
    result: list[tuple[str, str]] = []
    index = 0
    for sign, _ in hunk.lines:
        if sign == "+":
            result.append((next(added), end))
            continue
        if sign == " ":
            result.append(old[index])
        index += 1
    return result


def _place(lines: Sequence[str], hunk: Hunk, position: int, where: str) -> int:
    """Return the line at which the old lines of `hunk` begin."""
    for header in hunk.headers:
        position = _after_header(lines, header, position, where)
    old = hunk.old
    if not old:
        return position if hunk.headers else len(lines)
    for way in _WAYS:
        wanted = [way(line) for line in old]
        have = [way(line) for line in lines]
        found = [i for i in range(position, len(lines) - len(old) + 1) if have[i : i + len(old)] == wanted]
        if hunk.at_end:
            found = [i for i in found if i + len(old) == len(lines)] or found
        if len(found) > 1 and not hunk.headers:
            shown = ", ".join(str(i + 1) for i in found[:10])
            raise ToolError(
                f"{where}: its lines are {len(found)} times in the file, on lines {shown}; nothing was changed",
                code="not_unique",
                next_step="give more lines around it, or an @@ line that stands above it",
            )
        if found:
            return found[0]
    raise ToolError(
        f"{where}: these lines are not there: {old[0][:80]!r} …; nothing was changed",
        code="not_found",
        next_step="read the file and copy the lines from it",
    )


def _after_header(lines: Sequence[str], header: str, position: int, where: str) -> int:
    """Return the line after the next one that an ``@@`` line names."""
    for way in (*_WAYS, str.strip):
        for index in range(position, len(lines)):
            if way(lines[index]) == way(header):
                return index + 1
    raise ToolError(
        f"{where}: there is no line {header[:80]!r}; nothing was changed", code="not_found", next_step="read the file again"
    )

"""``write``, ``edit``, ``multiedit``, ``move`` and ``delete``: files are changed in memory, then all written or none."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.services import Files
from moryflow_sdk.support.texts import looks_binary, visible

from .match import Edit, apply_edit, common_ends
from .reader import MAX_BYTES, FileText, decode, encode_new


@dataclass(frozen=True)
class FileChange:
    """The change of one file.

    :param before: the old content; ``None``: the file did not exist.
    :param after: the new content; ``None``: the file is removed.
    :param into: the new place of a file that is moved, which keeps its mode, its other hard links and all else that the
        volume stores of it. A file that is only moved has neither `before` nor `after`.
    """

    target: Target
    before: bytes | None
    after: bytes | None
    into: Target | None = None


# The name of a changed file, and a function that restores it.
Undo = tuple[str, Callable[[], object]]


def commit(files: Files, changes: Sequence[FileChange]) -> None:
    """Make all changes, or undo those already made and raise.

    :raises ToolError: ``changed`` when a file differs from what was read; otherwise why a file could not be written.
    """
    for change in changes:
        if change.before is not None and files.read(change.target, limit=MAX_BYTES) != change.before:
            raise ToolError(f"{change.target.given} changed while it was edited", code="changed", next_step="read it again")
    undo: list[Undo] = []
    try:
        for change in changes:
            _make_change(files, change, undo)
    except ToolError as error:
        left = [name for name, put_back in reversed(undo) if not _undo_succeeds(put_back)]
        if left:
            raise ToolError(
                f"{error.message}; these files could not be put back and hold the change: {', '.join(left)}",
                code=error.code,
                next_step="read them before going on",
            ) from error
        raise


def _make_change(files: Files, change: FileChange, undo: list[Undo]) -> None:
    target, name, before = change.target, change.target.given, change.before
    if change.after is not None:
        target = files.write(target, change.after)
        put_back = partial(files.remove, target) if before is None else partial(files.write, target, before)
        undo.append((name, put_back))
    elif change.into is None:
        mode = _mode(files, target)
        files.remove(target)
        undo.append((name, partial(files.write, target.replace(identity=None), before or b"", mode=mode)))
    if change.into is not None:
        files.move(target, change.into)
        moved = change.into.replace(identity=target.identity)
        undo.append((name, partial(files.move, moved, target.replace(identity=None))))


def _mode(files: Files, target: Target) -> int:
    with files.open(target) as file:
        return os.fstat(file.fileno()).st_mode & 0o777


def _undo_succeeds(put_back: Callable[[], object]) -> bool:
    try:
        put_back()
    except ToolError:
        return False
    return True


def write_target(ctx: ToolContext, content: str) -> ToolResult:
    """Replace or create the call's target."""
    target = ctx.call.targets[0]
    name, data = target.given, encode_new(content, target.given)
    if target.identity is None:
        ctx.files.write(target, data)
        made = ShownFile(target.text, "new file", diff("", content, name))
        return _tool_result(ctx, f"created {name}", f"write {name} (+{len(lines_of(content))})", shown=[made])
    before = old_text(ctx.files, target)
    if before is not None and before.encode("utf-8", "replace") == data and not ctx.files.unsaved(target):
        return _tool_result(ctx, f"{name} already holds exactly this", f"write {name} (unchanged)")
    ctx.files.write(target, data)
    if before is None:
        made = ShownFile(target.text, "replaced", diff("", content, name))
        return _tool_result(ctx, f"replaced {name}", f"write {name}", shown=[made])
    made = diff(before, content, name)
    output, title = f"replaced {name} ({made.count})\n{made.text}", f"write {name} ({made.count})"
    return _tool_result(ctx, output, title, made, [ShownFile(target.text, "", made)])


def old_text(files: Files, target: Target) -> str | None:
    """Return the content of a file as text, for the diff; ``None`` if it is not UTF-8, is binary or is too large."""
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
    """Make all `edits` in order, and write each file once; if one edit fails, no file is written."""
    edited, places = plan_edits(ctx.files, edits)
    changes = [FileChange(one.target, one.data, one.text.encode(one.after, one.target.given)) for one in edited]
    commit(ctx.files, changes)
    made = [diff(one.text.text, one.after, one.target.given) for one in edited]
    return _edits_result(ctx, [one.target for one in edited], made, places, tool)


@dataclass
class Edited:
    """A file with its edits made in memory: `data` and `text` are its content, `after` is the new text."""

    target: Target
    data: bytes
    text: FileText
    after: str


def plan_edits(files: Files, edits: Sequence[tuple[Target, Edit]]) -> tuple[list[Edited], int]:
    """Return the edited files and the number of replacements, without writing anything.

    :raises ToolError: an edit does not fit its file.
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
            raise _with_number(error, number, len(edits)) from error
        places += count
    return list(edited.values()), places


def _with_number(error: ToolError, number: int, count: int) -> ToolError:
    if count == 1:
        return error
    message = f"edit {number} of {count}: {error.message}; no file was changed"
    return ToolError(message, code=error.code, where=error.where, next_step=error.next_step)


def _edits_result(ctx: ToolContext, targets: Sequence[Target], made: Sequence[Diff], places: int, tool: str) -> ToolResult:
    total = Diff(sum(one.added for one in made), sum(one.removed for one in made), "")
    what = targets[0].given if len(targets) == 1 else f"{len(targets)} files"
    count = f"{places} replacements" if places != 1 else "1 replacement"
    text = "\n".join(one.text for one in made if one.text)
    shown = [ShownFile(target.text, "", one) for target, one in zip(targets, made, strict=True)]
    return _tool_result(ctx, f"edited {what}: {count} ({total.count})\n{text}", f"{tool} {what} ({total.count})", total, shown)


def _tool_result(
    ctx: ToolContext, output: str, title: str, made: Diff | None = None, shown: Sequence[ShownFile] = ()
) -> ToolResult:
    counts = {"added": made.added, "removed": made.removed} if made else {}
    diffs = {"diff": short_diffs(shown)} if shown else {}
    targets = list(dict.fromkeys(target.text for target in ctx.call.targets))
    return ToolResult(output=output, title=title, metadata={"targets": targets, **counts, **diffs})


def targets_of(paths: Sequence[str], targets: Sequence[Target]) -> Iterator[Target]:
    """Yield the judged target of each path; a path that is named twice was judged once."""
    by_path = dict(zip(dict.fromkeys(paths), targets, strict=True))
    yield from (by_path[path] for path in paths)


def move_targets(ctx: ToolContext) -> ToolResult:
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


CONTEXT = 3
MAX_LINES = 120
MAX_CHARACTERS = 12_000
# How many changed lines are compared one by one; of a larger change only the numbers of lines are shown.
MAX_COMPARED = 3000
# Limits of the diff that the user sees after a change: lines in all, characters of a line, files.
SHORT_LINES, SHORT_WIDTH, SHORT_FILES = 16, 160, 8

_HEADER = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")


@dataclass(frozen=True)
class Diff:
    """Lines added and removed, and the text to show."""

    added: int
    removed: int
    text: str

    @property
    def count(self) -> str:
        """The numbers of lines, as in ``+2 -1``."""
        return f"+{self.added} -{self.removed}"


def diff(before: str, after: str, name: str, new_name: str = "") -> Diff:
    """Return the difference between two texts; their equal beginning and end are removed before the comparison."""
    import difflib

    change = _compare(before, after)
    removed, added = len(change.removed), len(change.added)
    if max(removed, added) > MAX_COMPARED:
        head = change.head
        return Diff(added, removed, f"lines {head + 1}-{head + removed} became lines {head + 1}-{head + added}")
    first = max(0, change.head - CONTEXT)
    names = (visible(name), visible(new_name or name))  # a line end in one would look like a line of the file
    lines = list(difflib.unified_diff(*change.around(first), *names, n=CONTEXT))
    return Diff(*_counts(lines[2:]), _cut_diff([_shift_numbers(line, first) for line in lines]))


def whole_diff(before: str, after: str) -> Diff:
    """Return the complete difference, for the user who decides about it, without file names.

    If a change is too large to be compared line by line, all old lines come before all new lines.
    """
    import difflib

    change = _compare(before, after)
    first = max(0, change.head - CONTEXT)
    if max(len(change.removed), len(change.added)) <= MAX_COMPARED:
        compared = list(difflib.unified_diff(*change.around(first), n=CONTEXT))[2:]
    else:
        old, new = change.around(first)
        place = f"@@ -{1 if old else 0},{len(old)} +{1 if new else 0},{len(new)} @@\n"
        kept, below = change.old[first : change.head], old[change.head - first + len(change.removed) :]
        marked = (("-", change.removed), ("+", change.added), (" ", below))
        compared = [place, *(f" {line}" for line in kept), *(sign + line for sign, lines in marked for line in lines)]
    return Diff(*_counts(compared), "".join(_shift_numbers(line, first) for line in compared).rstrip("\n"))


def _counts(lines: Sequence[str]) -> tuple[int, int]:
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)


class ShownFile(NamedTuple):
    """A changed file: its resolved name, the kind of change (``deleted``), and the difference if there is one."""

    name: str
    what: str = ""
    made: Diff | None = None


def short_diffs(changed: Sequence[ShownFile]) -> str:
    """Return the text that the user sees after a change: each path, with the beginning and the end of its diff.

    Lines from a file begin with a blank, ``+``, ``-`` or a backslash, and hunk headers with ``@@``; all others are ours.
    """
    each = max(SHORT_LINES // max(len(changed), 1), 4)
    lines = [line for one in changed[:SHORT_FILES] for line in _short_diff(one, each)]
    left = len(changed) - SHORT_FILES
    return "\n".join([*lines, f"and {left} more files"] if left > 0 else lines)


def _short_diff(one: ShownFile, most: int) -> list[str]:
    made = one.made or Diff(0, 0, "")
    head = ", ".join(part for part in (one.what, f"{made.count} lines" if made.text else "") if part)
    lines = made.text.split("\n") if made.text else []
    lines = lines[2:] if lines[:1] and lines[0].startswith("--- ") else lines
    if len(lines) > most:
        first = (most - 1) * 2 // 3
        last = most - 1 - first
        lines = [*lines[:first], f"… {len(lines) - first - last} more lines …", *lines[-last:]]
    cut = (line if len(line) <= SHORT_WIDTH else f"{line[:SHORT_WIDTH]}…" for line in lines)
    return [f"{visible(one.name)}: {head}" if head else visible(one.name), *cut]


class _Comparison(NamedTuple):
    """The lines of two texts, and how many are equal at the beginning (`head`) and at the end (`tail`)."""

    old: list[str]
    new: list[str]
    head: int
    tail: int

    @property
    def removed(self) -> list[str]:
        return self.old[self.head : len(self.old) - self.tail]

    @property
    def added(self) -> list[str]:
        return self.new[self.head : len(self.new) - self.tail]

    def around(self, first: int) -> tuple[list[str], list[str]]:
        """Return the old and the new lines, from `first` to :data:`CONTEXT` lines after the change."""
        end = max(0, self.tail - CONTEXT)
        return self.old[first : len(self.old) - end], self.new[first : len(self.new) - end]


def _compare(before: str, after: str) -> _Comparison:
    old, new = lines_of(before), lines_of(after)
    return _Comparison(old, new, *common_ends(old, new))


def lines_of(text: str) -> list[str]:
    """Return the lines with their ends, as editors and ``grep`` count them: a form feed or U+2028 does not end a line."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _shift_numbers(line: str, by: int) -> str:
    """Return a line of the diff, with the numbers of a hunk header counted from the beginning of the file."""
    if line.startswith("@@ "):
        return _HEADER.sub(lambda m: f"@@ -{int(m[1]) + by}{m[2] or ''} +{int(m[3]) + by}{m[4] or ''} @@", line)
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _cut_diff(lines: list[str]) -> str:
    text = "".join(line.replace("\r\n", "\n") for line in lines[:MAX_LINES])
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS] + "…\n"
    left = len(lines) - MAX_LINES
    return text.rstrip("\n") + (f"\n[{left} more lines of the diff]" if left > 0 else "")

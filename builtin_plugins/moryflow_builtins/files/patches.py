"""``apply_patch``: parse the patch format of GPT models, find each change by its context, then write all files or none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult

from .editor import Diff, FileChange, ShownFile, commit, diff, short_diffs
from .match import line_end, nearest
from .reader import MAX_BYTES, decode, encode_new

BEGIN, END = "*** Begin Patch", "*** End Patch"
END_OF_FILE = "*** End of File"
MOVE = "*** Move to: "
_ACTIONS: dict[str, Literal["add", "update", "delete"]] = {
    "*** Add File: ": "add",
    "*** Update File: ": "update",
    "*** Delete File: ": "delete",
}


@dataclass
class Hunk:
    """Lines to find in a file, and lines to replace them with.

    :param headers: the texts after ``@@``: lines of the file somewhere before the change.
    :param lines: ``(sign, text)``; the sign is a blank, ``-`` or ``+``.
    :param at_end: the change is at the end of the file.
    """

    headers: list[str] = field(default_factory=list[str])
    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    at_end: bool = False

    @property
    def old(self) -> list[str]:
        """The lines that the file must hold."""
        return [text for sign, text in self.lines if sign != "+"]


@dataclass
class FilePatch:
    """The part of a patch about one file."""

    path: str
    action: Literal["add", "update", "delete"]
    move_to: str = ""
    hunks: list[Hunk] = field(default_factory=list[Hunk])
    content: list[str] = field(default_factory=list[str])


def parse_patch(patch: str) -> list[FilePatch]:
    """Return the file patches of `patch`.

    :raises ToolError: ``invalid_patch``, with the line.
    """
    lines = list(_body(patch))
    found: list[FilePatch] = []
    for number, line in lines:
        header = next((prefix for prefix in _ACTIONS if line.startswith(prefix)), None)
        if header is not None:
            found.append(FilePatch(_path(line.removeprefix(header), number), _ACTIONS[header]))
        elif not found:
            raise _wrong(number, "a file header such as '*** Update File: path' must come first")
        else:
            _line(found[-1], line, number)
    if not found:
        raise _wrong(1, "the patch names no file")
    _check(found)
    return found


def paths_of(patches: list[FilePatch]) -> list[str]:
    """Return every path that the patches name, each once, in order."""
    return list(dict.fromkeys(path for one in patches for path in (one.path, one.move_to) if path))


def _body(patch: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines between the two marks; a Markdown fence or a here-document around them is ignored."""
    lines = patch.replace("\r\n", "\n").split("\n")
    begin = next((i for i, line in enumerate(lines) if line.strip() == BEGIN), None)
    # The last end mark counts: an earlier one may be a line of a file, or end a first patch, whose rest must not be lost.
    end = next((i for i in reversed(range(len(lines))) if lines[i].strip() == END), None)
    if begin is None:
        raise _wrong(1, f"the patch must begin with {BEGIN!r}")
    if end is None or end < begin:
        raise _wrong(len(lines), f"the patch must end with {END!r}")
    yield from ((number + 1, lines[number]) for number in range(begin + 1, end))


def _path(text: str, number: int) -> str:
    path = text.strip()
    if not path:
        raise _wrong(number, "the path is missing")
    return path


def _line(patch: FilePatch, line: str, number: int) -> None:
    match patch.action:
        case "add":
            if not line.startswith("+"):
                raise _wrong(number, "every line of an added file begins with '+'")
            patch.content.append(line[1:])
        case "delete":
            if line.strip():
                raise _wrong(number, "nothing follows a deleted file")
        case "update":
            _update_line(patch, line, number)


def _update_line(patch: FilePatch, line: str, number: int) -> None:
    if line.startswith(MOVE) and not patch.hunks and not patch.move_to:
        patch.move_to = _path(line.removeprefix(MOVE), number)
    elif line.startswith("@@"):
        header = line[2:].strip().removesuffix("@@").strip()
        hunk = patch.hunks[-1] if patch.hunks and not patch.hunks[-1].lines else Hunk()
        if not patch.hunks or patch.hunks[-1] is not hunk:
            patch.hunks.append(hunk)
        hunk.headers += [header] if header and not header.startswith("-") else []
    elif line.rstrip() == END_OF_FILE:
        if not patch.hunks:
            raise _wrong(number, "there is no change before the end of the file")
        patch.hunks[-1].at_end = True
    elif line[:1] in ("+", "-", " ", ""):
        if not patch.hunks or patch.hunks[-1].at_end:
            patch.hunks.append(Hunk())
        patch.hunks[-1].lines.append((line[:1] or " ", line[1:]))
    else:
        raise _wrong(number, "a line of a change begins with ' ', '+' or '-'")


def _check(patches: list[FilePatch]) -> None:
    for one in patches:
        one.hunks = [hunk for hunk in one.hunks if any(sign != " " for sign, _ in hunk.lines)]
        if one.action == "update" and not one.hunks and not one.move_to:
            raise ToolError(
                f"the patch changes nothing in {one.path}", code="invalid_patch", next_step="add lines with + and -"
            )
    named = [path for one in patches for path in (one.path, one.move_to) if path]
    twice = next((path for path in named if named.count(path) > 1), None)
    if twice:
        raise ToolError(f"the patch names {twice} twice", code="invalid_patch", next_step="put all its changes in one part")


def _wrong(number: int, what: str) -> ToolError:
    return ToolError(
        f"line {number} of the patch: {what}; nothing was changed", code="invalid_patch", next_step="send it again"
    )


# How lines are compared, the strictest first.
_WAYS: tuple[Callable[[str], str], ...] = (str, str.rstrip)

# A line and its end, or the last line, which may have none.
_LINE = re.compile(r"([^\n]*?)(\r?\n)|([^\n]+)()\Z")


def apply_patch_text(ctx: ToolContext, patch: str) -> ToolResult:
    planned = plan_patch(ctx, patch)
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
            "diff": short_diffs([_shown_file(one, change) for one, (_, change) in zip(planned, made, strict=True)]),
        },
    )


class PlannedPatch(NamedTuple):
    """The effect of a patch on one file: the old text, the new text, and the changes on the disk."""

    patch: FilePatch
    target: Target
    before: str
    after: str
    changes: list[FileChange]


def plan_patch(ctx: ToolContext, patch: str) -> list[PlannedPatch]:
    """Return the effect of `patch` on the call's targets, without writing anything.

    :raises ToolError: the patch cannot be parsed, or a part of it does not fit.
    """
    patches = parse_patch(patch)
    targets = dict(zip(paths_of(patches), ctx.call.targets, strict=True))
    _refuse_same(targets)
    return [PlannedPatch(one, targets[one.path], *_plan_file(ctx, one, targets)) for one in patches]


def _shown_file(one: PlannedPatch, made: Diff) -> ShownFile:
    into = one.changes[0].into
    name = f"{one.target.text} → {into.text}" if into is not None else one.target.text
    return ShownFile(name, {"add": "new file", "delete": "deleted"}.get(one.patch.action, ""), made)


def _title(patch: FilePatch) -> str:
    if patch.move_to:
        return f"moved {patch.path} to {patch.move_to}"
    return {"add": "added", "update": "updated", "delete": "deleted"}[patch.action] + f" {patch.path}"


def _refuse_same(targets: Mapping[str, Target]) -> None:
    """Refuse two names of the same file: the second change would overwrite the first."""
    seen: dict[str, str] = {}
    for name, target in targets.items():
        other = seen.setdefault(target.path or target.text, name)
        if other != name:
            raise ToolError(f"{other} and {name} are the same file", code="invalid_patch", next_step="name it once")


def _plan_file(ctx: ToolContext, patch: FilePatch, targets: Mapping[str, Target]) -> tuple[str, str, list[FileChange]]:
    target = targets[patch.path]
    if patch.action == "add":
        if target.identity is not None:
            raise ToolError(f"{patch.path} already exists", code="exists", next_step="update it instead")
        content = "".join(f"{line}\n" for line in patch.content)
        return "", content, [FileChange(target, None, encode_new(content, patch.path))]
    if patch.action == "update":
        return _plan_update(ctx, patch, target, targets.get(patch.move_to))
    data = ctx.files.read(target, limit=MAX_BYTES)
    return _text_or_nothing(data, patch.path), "", [FileChange(target, data, None)]


def _text_or_nothing(data: bytes, name: str) -> str:
    try:
        return decode(data, name).text
    except ToolError:
        return ""


def _plan_update(ctx: ToolContext, patch: FilePatch, target: Target, into: Target | None) -> tuple[str, str, list[FileChange]]:
    if into is not None and into.identity is not None:
        raise ToolError(f"{patch.move_to} already exists", code="exists", next_step="choose another name")
    if not patch.hunks:
        return "", "", [FileChange(target, None, None, into)]
    data = ctx.files.read(target, limit=MAX_BYTES)
    text = decode(data, patch.path)
    after = apply_hunks(text.text, patch.hunks, patch.path)
    return text.text, after, [FileChange(target, data, text.encode(after, patch.path), into)]


def apply_hunks(text: str, hunks: Sequence[Hunk], name: str) -> str:
    """Return `text` with all `hunks` applied, in order.

    :raises ToolError: ``not_found`` or ``not_unique``.
    """
    lines = [(match[1] or match[3] or "", match[2] or "") for match in _LINE.finditer(text)]
    bodies, end = [body for body, _ in lines], line_end(text, 0, len(text))
    result: list[tuple[str, str]] = []
    position = 0
    for number, hunk in enumerate(hunks, 1):
        start = _find_place(bodies, hunk, position, f"change {number} of {len(hunks)} in {name}")
        result += lines[position:start]
        position = start + len(hunk.old)
        nearest = (own for _, own in (*lines[start:position], *lines[:start][-1:]) if own)
        result += _replace(lines[start:position], hunk, next(nearest, end))
    result += lines[position:]
    if not result:
        return ""
    last_end = lines[-1][1] if lines else end
    inner = "".join(body + (own or end) for body, own in result[:-1])
    return inner + result[-1][0] + last_end


def _replace(old: Sequence[tuple[str, str]], hunk: Hunk, end: str) -> list[tuple[str, str]]:
    """Return the new lines of a place, each with its end; context lines stay as in the file."""
    result: list[tuple[str, str]] = []
    index = 0
    for sign, text in hunk.lines:
        if sign == "+":
            result.append((text, end))
            continue
        if sign == " ":
            result.append(old[index])
        index += 1
    return result


def _find_place(lines: Sequence[str], hunk: Hunk, position: int, where: str) -> int:
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
        f"{where}: these lines are not there: {old[0][:80]!r} …; nothing was changed{nearest(lines, old)}",
        code="not_found",
        next_step="copy the lines as the file has them",
    )


def _after_header(lines: Sequence[str], header: str, position: int, where: str) -> int:
    for way in (*_WAYS, str.strip):
        for index in range(position, len(lines)):
            if way(lines[index]) == way(header):
                return index + 1
    raise ToolError(
        f"{where}: there is no line {header[:80]!r}; nothing was changed", code="not_found", next_step="read the file again"
    )

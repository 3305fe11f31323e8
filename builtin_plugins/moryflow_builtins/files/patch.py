"""The patch format that GPT models write (``*** Begin Patch``), parsed; nothing is looked at or changed here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from moryflow_sdk import ToolError

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
    """Lines to find and lines to put there.

    :param headers: texts after ``@@``: lines that stand somewhere before the place.
    :param lines: ``(sign, text)`` with sign blank, ``-`` or ``+``.
    :param at_end: the place is the end of the file.
    """

    headers: list[str] = field(default_factory=list[str])
    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    at_end: bool = False

    @property
    def old(self) -> list[str]:
        """The lines that must be there."""
        return [text for sign, text in self.lines if sign != "+"]


@dataclass
class FilePatch:
    """What happens to one file."""

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
    """Yield the numbered lines between the two marks; a Markdown fence or a here-document around them is forgiven."""
    lines = patch.replace("\r\n", "\n").split("\n")
    begin = next((i for i, line in enumerate(lines) if line.strip() == BEGIN), None)
    # The last one: what comes before may be a line of a file, or the end of a first patch, and is not left out unseen.
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
    """Add one line to the file it belongs to."""
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

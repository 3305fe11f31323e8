"""``read`` and ``ls``: a page of a text file, an image with its size, the entries of a folder.

The encoding, the byte-order mark and the line ends of a file are kept when it is edited, so nothing else changes.
"""

from __future__ import annotations

import base64
import io
import os
from dataclasses import dataclass, field
from typing import BinaryIO

from moryflow_sdk import Entry, Image, Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.texts import HEAD_BYTES, image_type, looks_binary, mark_of

# Larger files are not edited, and their lines are not counted.
MAX_BYTES = 32 * 1024 * 1024

# An encoding that decodes every byte, so the unchanged parts of a file are written back as they were.
FALLBACK = "latin-1"


@dataclass(frozen=True)
class FileText:
    """The text of a file, with its encoding and byte-order mark."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    def encode(self, text: str, name: str) -> bytes:
        """Return `text` as bytes, in the encoding of this file.

        :raises ToolError: ``encoding``: the encoding has no such character; ``binary``: `text` adds a NUL to the file.
        """
        try:
            data = self.mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            character = ascii(text[error.start])
            raise ToolError(
                f"{name} is {self.encoding} text and cannot hold {character}",
                code="encoding",
                next_step="leave that character out, or convert the file to UTF-8 first",
            ) from error
        if "\0" in text and "\0" not in self.text:
            message = f"{name} would be a binary file: what is to be written holds a NUL"
            raise ToolError(message, code="binary", next_step="leave it out; write binary files with a program")
        return data


def decode(data: bytes, name: str) -> FileText:
    """Return `data` as text: by its byte-order mark, as UTF-8, or else as :data:`FALLBACK`.

    :raises ToolError: ``binary``: it is not text.
    """
    mark, encoding = mark_of(data)
    try:
        if not looks_binary(data):
            return FileText(data[len(mark) :].decode(encoding or "utf-8"), encoding or "utf-8", mark)
    except UnicodeDecodeError:
        if encoding in ("", "utf-8"):
            return FileText(data.decode(FALLBACK), FALLBACK)
    raise ToolError(f"{name} is a binary file", code="binary", next_step="change it with a program made for it")


def encode_new(text: str, name: str) -> bytes:
    return FileText("").encode(text, name)


# The size of a page. It is below the limit of truncation, so reading a stored output does not store it again.
PAGE_BYTES = 45_000

LINE_CHARACTERS = 10_000
PIECE_CHARACTERS = 1 << 18
IMAGE_BYTES = 5 * 1024 * 1024


@dataclass
class FilePage:
    """Some lines of a file, from line `first` on; `cut` is how many of them were shortened."""

    first: int
    lines: list[str] = field(default_factory=list[str])
    total: int | None = None
    more: bool = False
    cut: int = 0
    full: bool = False

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1


def read_target(ctx: ToolContext, offset: int, limit: int, encoding: str | None, line_numbers: bool) -> ToolResult:
    """Return the page of the call's target that begins at line `offset`."""
    target = ctx.call.targets[0]
    name = target.given
    with ctx.files.open(target) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
        if media_type := image_type(head):
            return _image(ctx, media_type, head + file.read(IMAGE_BYTES + 1 - len(head)), size, name)
        mark, marked = mark_of(head)
        chosen = marked or _codec_of(encoding) or "utf-8"
        if not chosen.startswith(("utf-16", "utf-32")) and looks_binary(head):
            return _binary(target, size)
        page, used = _page(file, len(mark), chosen, offset, limit, whole=size <= MAX_BYTES)
    notes = [f"not valid {chosen}, read as {used}"] if used != chosen else []
    notes += ["this is the editor's text, which is not saved"] if ctx.files.unsaved(target) else []
    return _result(target, page, used, size, line_numbers, notes)


def _codec_of(encoding: str | None) -> str | None:
    import codecs

    if encoding is None:
        return None
    try:
        info = codecs.lookup(encoding)
        "".encode(info.name)
        return info.name
    except (LookupError, ValueError) as error:
        raise ToolError(f"{encoding!r} is not a text encoding", code="invalid_args", next_step="leave encoding out") from error


def _page(file: BinaryIO, skip: int, encoding: str, offset: int, limit: int, *, whole: bool) -> tuple[FilePage, str]:
    """Read a page; if the text is not in `encoding`, read it again as :data:`FALLBACK`. Return the encoding used too."""
    try:
        return _lines(file, skip, encoding, "strict" if whole else "replace", offset, limit, whole=whole), encoding
    except UnicodeError:  # UTF-16 without a mark raises this, not UnicodeDecodeError
        return _lines(file, skip, FALLBACK, "strict", offset, limit, whole=whole), FALLBACK


def _lines(file: BinaryIO, skip: int, encoding: str, errors: str, offset: int, limit: int, *, whole: bool) -> FilePage:
    file.seek(skip)
    # A lone CR does not end a line, so line numbers are those of grep, edit and a diff.
    stream = io.TextIOWrapper(file, encoding=encoding, errors=errors, newline="\n")
    try:
        return _collect(stream, offset, limit, whole=whole)
    finally:
        stream.detach()


def _collect(stream: io.TextIOWrapper, offset: int, limit: int, *, whole: bool) -> FilePage:
    """Collect lines from `offset` up to `limit` or a full page; with `whole`, count the remaining lines too."""
    page, size, number = FilePage(offset), 0, 0
    while True:
        line, cut = _line(stream)
        if line is None:
            page.total = number
            return page
        number += 1
        if number < offset:
            continue
        size += len(line.encode("utf-8", "replace")) + 1
        page.full = page.full or size > PAGE_BYTES
        if len(page.lines) < limit and (not page.full or not page.lines):
            page.lines.append(line)
            page.cut += cut > 0
            continue
        page.more = True
        page.total = number + _count_lines(stream) if whole else None
        return page


def _count_lines(stream: io.TextIOWrapper) -> int:
    """Return how many lines are left; a last line without a line end counts."""
    count, last = 0, "\n"
    while piece := stream.read(PIECE_CHARACTERS):
        count, last = count + piece.count("\n"), piece[-1]
    return count + (last != "\n")


def _line(stream: io.TextIOWrapper) -> tuple[str | None, int]:
    """Return the next line without its end, and how many characters were left out; ``None`` at the end of the file."""
    line = stream.readline(LINE_CHARACTERS)
    if not line:
        return None, 0
    left_out = 0
    end = line
    while len(end) == LINE_CHARACTERS and not end.endswith("\n"):
        end = stream.readline(LINE_CHARACTERS)
        left_out += len(_body(end))
    if left_out:
        return f"{line}… [{left_out:,} more characters in this line]", left_out
    return _body(line), 0


def _body(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _result(target: Target, page: FilePage, encoding: str, size: int, line_numbers: bool, notes: list[str]) -> ToolResult:
    name = target.given
    if not page.lines and page.total and page.first > page.total:
        last = f"the last line is {page.total}"
        raise ToolError(f"{name} has no line {page.first}; {last}", code="out_of_range", next_step=f"offset={page.total}")
    numbered = [f"{number:>6}\t{line}" for number, line in enumerate(page.lines, page.first)]
    shown = "\n".join(numbered if line_numbers else page.lines)
    if page.more:
        total = f" of {page.total:,}" if page.total is not None else ""
        notes.append(f"lines {page.first}-{page.last}{total}; continue with offset={page.last + 1}")
    elif page.first > 1 and page.lines:
        notes.append(f"lines {page.first}-{page.last}, the end of the file")
    if not page.lines:
        notes.append("the file is empty")
    if page.cut:
        notes.append("long lines are cut; search them with grep")
    count = f"{len(page.lines)} lines" if len(page.lines) != 1 else "1 line"
    return ToolResult(
        output=shown + "".join(f"\n[{note}]" for note in notes) if shown else "".join(f"[{note}]" for note in notes),
        title=f"read {name} ({count})",
        metadata={"target": target.text, "offset": page.first, "lines": len(page.lines), "total": page.total,
                  "encoding": encoding, "bytes": size},
    )  # fmt: skip


def _binary(target: Target, size: int) -> ToolResult:
    """Return that a file is not text; its bytes would not help a model."""
    text = f"{target.given} is not text, {size:,} bytes; not shown. Look at it with a program made for it."
    title = f"read {target.given} (binary)"
    return ToolResult(output=text, title=title, truncated=True, metadata={"target": target.text, "binary": True, "bytes": size})


def _image(ctx: ToolContext, media_type: str, data: bytes, size: int, name: str) -> ToolResult:
    """Return an image for the model, if the model accepts images and the image is not too large."""
    what = f"{name}: {media_type.removeprefix('image/').upper()} image, {size:,} bytes"
    seen = ctx.model is None or ctx.model.images
    if len(data) > IMAGE_BYTES or not seen:
        why = "too large to be shown" if seen else "this model cannot look at images"
        return ToolResult(output=f"{what} [{why}]", title=f"read {name}", metadata={"image": media_type})
    image = Image(media_type=media_type, data=base64.b64encode(data).decode())
    return ToolResult(output=what, title=f"read {name}", images=(image,), metadata={"image": media_type})


MAX_ENTRIES = 1000


def list_target(ctx: ToolContext, show_all: bool) -> ToolResult:
    """List the call's target, folders first."""
    target = ctx.call.targets[0]
    entries = ctx.files.entries(target, ignore=not show_all)
    entries.sort(key=lambda entry: (entry.kind != "dir", entry.name))
    lines = [_entry_line(entry) for entry in entries[:MAX_ENTRIES]]
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


def _entry_line(entry: Entry) -> str:
    name = entry.name.replace("\n", "\\n").replace("\r", "\\r")  # a line end in a name must not look like another entry
    match entry.kind:
        case "dir":
            return f"{name}/"
        case "link":
            return f"{name} (link)"
        case "other":
            return f"{name} (not a regular file)"
        case _:
            known = entry.size or entry.modified  # neither, in a folder that can be listed but not entered
            return f"{name} ({_readable_size(entry.size)})" if known else name


def _readable_size(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1024 or unit == "GB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"

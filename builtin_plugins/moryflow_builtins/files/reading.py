"""``read``: a page of a text file, an image, or what the file is."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import stat
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO

from moryflow_sdk import Image, Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.texts import HEAD_BYTES, looks_binary, mark_of

from .describe import Picture, kind_of, picture_of
from .text import FALLBACK, MAX_BYTES

PAGE_BYTES = 45_000
"""A page stays below the limit at which outputs are cut: a stored output can be read without being stored again."""

LINE_CHARACTERS = 10_000
SMALL_BYTES = 64 * 1024
IMAGE_BYTES = 5 * 1024 * 1024


@dataclass
class Page:
    """Some lines of a file and where they stand."""

    first: int
    lines: list[str] = field(default_factory=list[str])
    total: int | None = None
    more: bool = False
    cut: int = 0
    full: bool = False

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1


async def read_soon(ctx: ToolContext, offset: int, limit: int, encoding: str | None, line_numbers: bool) -> ToolResult:
    """Read a small file here and now, as its path was resolved; what may take a while is read on a thread."""
    page = partial(read_target, ctx, offset, limit, encoding, line_numbers)
    return page() if _is_small(ctx.call.targets[0]) else await asyncio.to_thread(page)


def _is_small(target: Target) -> bool:
    try:
        status = os.lstat(target.path or "")
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= SMALL_BYTES


def read_target(ctx: ToolContext, offset: int, limit: int, encoding: str | None, line_numbers: bool) -> ToolResult:
    """Return the page of the call's target that begins at line `offset`."""
    target = ctx.call.targets[0]
    name = target.given
    with ctx.files.open(target) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
        picture = picture_of(head)
        if picture is not None:
            return _image(ctx, picture, head + file.read(IMAGE_BYTES + 1 - len(head)), size, name)
        mark, marked = mark_of(head)
        chosen = marked or _known(encoding) or "utf-8"
        if not chosen.startswith(("utf-16", "utf-32")) and looks_binary(head):
            return _binary(target, head, size)
        page, used = _page(file, len(mark), chosen, offset, limit, whole=size <= MAX_BYTES)
    note = f"not valid {chosen}, read as {used}" if used != chosen else ""
    return _result(target, page, used, size, line_numbers, note)


def _known(encoding: str | None) -> str | None:
    """Return the codec's own name of `encoding`."""
    import codecs

    if encoding is None:
        return None
    try:
        info = codecs.lookup(encoding)
        "".encode(info.name)
        return info.name
    except (LookupError, ValueError) as error:
        raise ToolError(f"{encoding!r} is not a text encoding", code="invalid_args", next_step="leave encoding out") from error


def _page(file: BinaryIO, skip: int, encoding: str, offset: int, limit: int, *, whole: bool) -> tuple[Page, str]:
    """Read a page; text that turns out not to be in `encoding` is read again as :data:`FALLBACK`."""
    try:
        return _lines(file, skip, encoding, "strict" if whole else "replace", offset, limit, whole=whole), encoding
    except UnicodeError:  # not only UnicodeDecodeError: UTF-16 without a mark is one of these
        return _lines(file, skip, FALLBACK, "strict", offset, limit, whole=whole), FALLBACK


def _lines(file: BinaryIO, skip: int, encoding: str, errors: str, offset: int, limit: int, *, whole: bool) -> Page:
    file.seek(skip)
    # A lone CR ends no line: what grep, edit and a diff call line 7 is line 7 here.
    stream = io.TextIOWrapper(file, encoding=encoding, errors=errors, newline="\n")
    try:
        return _collect(stream, offset, limit, whole=whole)
    finally:
        stream.detach()


def _collect(stream: io.TextIOWrapper, offset: int, limit: int, *, whole: bool) -> Page:
    """Take lines from `offset` until `limit` or a page is full; with `whole`, count the others too."""
    page, size, number = Page(offset), 0, 0
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
        if not whole:
            return page


def _line(stream: io.TextIOWrapper) -> tuple[str | None, int]:
    """Return the next line without its end and how many characters of it were left out; nothing at the end."""
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


def _result(target: Target, page: Page, encoding: str, size: int, line_numbers: bool, note: str) -> ToolResult:
    name = target.given
    if not page.lines and page.total and page.first > page.total:
        last = f"the last line is {page.total}"
        raise ToolError(f"{name} has no line {page.first}; {last}", code="out_of_range", next_step=f"offset={page.total}")
    numbered = [f"{number:>6}\t{line}" for number, line in enumerate(page.lines, page.first)]
    shown = "\n".join(numbered if line_numbers else page.lines)
    notes = [note] if note else []
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


def _binary(target: Target, head: bytes, size: int) -> ToolResult:
    """Say what a file is that is not text; its bytes would help nobody."""
    text = f"{target.given} is not text: {kind_of(head)}, {size:,} bytes; not shown. Look at it with a program made for it."
    title = f"read {target.given} (binary)"
    return ToolResult(output=text, title=title, truncated=True, metadata={"target": target.text, "binary": True, "bytes": size})


def _image(ctx: ToolContext, picture: Picture, data: bytes, size: int, name: str) -> ToolResult:
    """Return an image for the model to look at, where it can and the image is not too large."""
    what = f"{name}: {picture}, {size:,} bytes"
    seen = ctx.model is None or ctx.model.images
    if len(data) > IMAGE_BYTES or not seen:
        why = "too large to be shown" if seen else "this model cannot look at images"
        return ToolResult(output=f"{what} [{why}]", title=f"read {name}", metadata={"image": picture.media_type})
    image = Image(
        media_type=picture.media_type, data=base64.b64encode(data).decode(), width=picture.width, height=picture.height
    )
    return ToolResult(output=what, title=f"read {name}", images=(image,), metadata={"image": picture.media_type})

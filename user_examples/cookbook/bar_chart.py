"""A tool that returns an image, and keeps it as a file.

A model that sees images gets the picture; ``moryflow output list`` and ``output open`` find the file, which is kept for a week.

Try it: ``moryflow tool run bar_chart --values 3 --values 1 --values 4``, then ``moryflow output list``.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Annotated

from moryflow_sdk import Image, Tool, ToolContext, ToolResult, hookimpl, tool

services = ["artifacts"]
HEIGHT, BAR = 60, 12


def png(width: int, height: int, rows: bytes) -> bytes:
    """Return grey pixels, each row behind a zero byte, as a PNG file."""
    parts = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = [struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@tool(domain="read")
async def bar_chart(values: Annotated[list[float], "One bar each"], context: ToolContext) -> ToolResult:
    """Draw VALUES as bars."""
    most = max([*values, 1e-9])
    levels = [HEIGHT - round(HEIGHT * max(value, 0) / most) for value in values]
    rows = [b"\0" + b"".join((b"\x20" if y >= level else b"\xff") * BAR for level in levels) for y in range(HEIGHT)]
    picture = png(BAR * len(levels), HEIGHT, b"".join(rows))
    kept = await context.artifacts.store(picture, call_id=context.call.id, tool=context.call.tool)
    shown = Image(media_type="image/png", data=base64.b64encode(picture).decode(), width=BAR * len(levels), height=HEIGHT)
    return ToolResult(output=f"a chart of {len(values)} bars, kept as {kept.path}", images=(shown,))


@hookimpl
def tools() -> list[Tool]:
    """Offer the tool."""
    return [bar_chart]

"""Shorten a result that is too long."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from moryflow_sdk import Artifact, MoryflowError, ToolCall, ToolResult, Turn

from . import words
from .cut import Limits, Preview, count_lines, exceeds, preview
from .settings import TruncationSettings


@dataclass(frozen=True)
class Source:
    """An output: `first` and `last` hold at least what a preview may show, `content` is what is stored."""

    content: str | Path
    first: str
    last: str

    @cached_property
    def lines(self) -> int | None:
        """How many lines it has, if that is known without reading a file."""
        return count_lines(self.content) if isinstance(self.content, str) else None

    def size(self) -> int:
        """Return how many bytes of UTF-8 it has."""
        if isinstance(self.content, Path):
            return self.content.stat().st_size if self.content.exists() else 0
        return len(self.content) if self.content.isascii() else _encoded_size(self.content)

    def fits(self, limits: Limits) -> bool:
        """Whether it can be shown whole."""
        return not exceeds(self.first, limits) and (isinstance(self.content, str) or self.size() <= limits.bytes)


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of the whole: how large it is, where it is, and what the model is told about that."""

    size: int
    rest: str
    output_id: str | None = None
    path: str | None = None


async def shortened(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Return `result` within the limits of its tool, or ``None`` when it is."""
    settings: TruncationSettings = turn.config
    limits = settings.limits(call.tool)
    source = _source(result, limits)
    if source.fits(limits):
        return _inlined(result, source)
    shown = preview(source.first, source.last, limits)
    kept = await _keep(call, result, turn, source, shown)
    about = {"shown_bytes": shown.bytes, "bytes": kept.size, "lines": source.lines, "marks": words.marks(kept.output_id)}
    return result.replace(
        output=_joined(shown, words.notice(shown, kept.size, source.lines, kept.rest)),
        output_id=kept.output_id,
        path=kept.path,
        spool=None,
        truncated=True,
        metadata={**result.metadata, "truncation": about},
    )


def _source(result: ToolResult, limits: Limits) -> Source:
    """Return the output of `result`; when its spooled file is gone, what the tool said besides."""
    spooled = _spooled(Path(result.spool), limits) if result.spool else None
    return spooled or Source(result.output, result.output, result.output)


def _inlined(result: ToolResult, source: Source) -> ToolResult | None:
    """Return `result` with its whole output as text, or ``None`` when it is that already."""
    if result.spool is None:
        return None
    if isinstance(source.content, Path):
        _discard(source.content)
    return result.replace(output=source.first, spool=None)


async def _keep(call: ToolCall, result: ToolResult, turn: Turn, source: Source, shown: Preview) -> Kept:
    """Store the whole, unless it is stored already; when nothing can be written, say so."""
    settings: TruncationSettings = turn.config
    page = result.path if result.output_id else _stored_page(call, turn)
    if page is not None:
        return Kept(source.size(), words.page_rest(page), result.output_id or _id_of(page), page)
    try:
        stored = await _store(call, turn, source)
    except (OSError, MoryflowError) as error:
        reason = f"{error.strerror or error}" if isinstance(error, OSError) else error.message
        size = source.size()
        turn.emit("lost", call_id=call.id, tool=call.tool, reason=reason, bytes=size)
        if isinstance(source.content, Path):
            _discard(source.content)
        return Kept(size, words.lost_rest(reason))
    rest = words.stored_rest(stored.path, shown, stored.size, source.lines, settings.limits("read"), turn.agent)
    return Kept(stored.size, rest, stored.id, stored.path)


async def _store(call: ToolCall, turn: Turn, source: Source) -> Artifact:
    settings: TruncationSettings = turn.config
    return await turn.artifacts.store(source.content, call_id=call.id, tool=call.tool, ttl_days=settings.ttl_days)


def _joined(shown: Preview, notice: str) -> str:
    left_out = "[… left out …]"
    match bool(shown.head), bool(shown.tail):
        case True, True:
            return f"{shown.head}\n{left_out}\n{shown.tail}\n\n{notice}"
        case False, True:
            return f"{left_out}\n{shown.tail}\n\n{notice}"
        case _:
            return f"{shown.head}\n\n{notice}"


def _encoded_size(text: str, step: int = 1 << 20) -> int:
    return sum(len(text[start : start + step].encode("utf-8", "replace")) for start in range(0, len(text), step))


def _spooled(path: Path, limits: Limits) -> Source | None:
    """Look at both ends of a spooled file; what is between them is not read here. ``None`` when it is gone."""
    wanted = limits.bytes + 4  # a character that the window tears apart stays outside the limit
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(wanted)
            file.seek(max(0, size - wanted))
            last = file.read(wanted)
    except OSError:
        return None
    return Source(path, first.decode("utf-8", "replace"), last.decode("utf-8", "replace"))


def _stored_page(call: ToolCall, turn: Turn) -> str | None:
    """Return the stored output that `call` reads, if it reads one: storing a part of it again would go in a circle."""
    files = [target.path for target in call.targets if target.kind == "file"]
    if call.domain != "read" or len(files) != 1 or files[0] is None:
        return None
    folders = (turn.vault / ".agent-output", turn.home.resolve() / "agent-output")
    return files[0] if Path(files[0]).parent in folders else None


def _id_of(path: str) -> str | None:
    """Return the id in a stored output's name."""
    stem, _, output_id = Path(path).stem.rpartition("-")
    return output_id if stem and len(output_id) == 12 else None


def _discard(spool: Path) -> None:
    with suppress(OSError):
        spool.unlink()

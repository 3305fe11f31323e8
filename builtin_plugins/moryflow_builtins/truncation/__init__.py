"""Keep long outputs out of the context: the model gets a preview and a note where the whole output is stored.

This plugin is the last in ``tool_after``, for every tool. The file with the whole output is an artifact, which expires.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from moryflow_sdk import Agent, Command, Event, MoryflowError, ToolCall, ToolResult, Turn, hookimpl
from moryflow_sdk.support.settings import Meta, Settings

# The host cuts outputs over four times `maxBytes`; so an output must be stored before it gets that far.
CAP_FACTOR = 4

Direction = Literal["head", "tail", "both"]
_TAILS = ("bash",)

# A positive whole number; neither text nor a boolean.
Lines = Annotated[int, Meta(gt=0, le=10_000_000, strict=True)]

# A positive number of bytes; the host keeps no more than 32 MiB of an output in memory.
Bytes = Annotated[int, Meta(gt=0, le=32 * 1024 * 1024 // CAP_FACTOR, strict=True)]


class ToolLimits(Settings):
    """Limits for one tool, or for the tools that a glob matches.

    :ivar max_lines: how many lines the model reads, instead of the general limit.
    :ivar max_bytes: how many bytes the model reads, instead of the general limit.
    :ivar direction: which end the model reads.
    :ivar enabled: if false, the model reads the whole output.
    """

    max_lines: Lines | None = None
    max_bytes: Bytes | None = None
    direction: Direction | None = None
    enabled: bool | None = None


class TruncationSettings(Settings):
    """How much of an output a model reads, and how long the whole output is kept.

    :ivar direction: which end the model reads; by default the head, for ``bash`` the tail.
    :ivar tools: name or glob → other limits; if several match, a later one wins, and an exact name beats globs.
    :ivar max_lines: how many lines of an output the model reads.
    :ivar max_bytes: how many bytes of an output the model reads.
    :ivar ttl_days: for how many days the whole output is kept in a file.
    :ivar enabled: if false, only outputs over the host's own limit are shortened.
    """

    max_lines: Lines = 2000
    max_bytes: Bytes = 51200
    ttl_days: Annotated[float, Meta(gt=0, le=36500, strict=True, allow_inf_nan=False)] = 7
    direction: Direction | None = None
    enabled: Annotated[bool, Meta(strict=True)] = True
    tools: dict[str, ToolLimits] = {}

    def limits(self, tool: str) -> Limits:
        """Return the limits for `tool`. Even if truncation is off, outputs that the host would cut are stored."""
        direction: Direction = self.direction or ("tail" if tool in _TAILS else "head")
        lines, size, enabled = self.max_lines, self.max_bytes, self.enabled
        for entry in self._entries(tool):
            lines = entry.max_lines or lines
            size = entry.max_bytes or size
            direction = entry.direction or direction
            enabled = enabled if entry.enabled is None else entry.enabled
        ceiling = CAP_FACTOR * self.max_bytes - 1024
        if not enabled:
            return Limits(sys.maxsize, max(ceiling, self.max_bytes), direction)
        return Limits(lines, min(size, max(ceiling, self.max_bytes)), direction)

    def _entries(self, tool: str) -> list[ToolLimits]:
        globs = [entry for name, entry in self.tools.items() if fnmatchcase(tool, name)]
        return [*globs, self.tools[tool]] if tool in self.tools else globs


name = "truncation"
services = ("artifacts", "emit")
config_model = TruncationSettings
config_path = "agents.runtime.truncation"

EXPIRY_INTERVAL = 3600.0
# When this process last removed expired files, by home. It is not stored, so that every process starts with a removal.
_last_expiry: dict[Path, float] = {}


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow output``."""
    return [Command(name="output", help="List, show and open stored tool outputs.", cli=_group)]


@hookimpl(timeout=60.0)
async def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Replace an output over the limits by a preview that says where the whole output is."""
    limits: Limits = turn.config.limits(call.tool)
    source = _source(result, limits)
    if source.fits(limits):
        return _as_text(result, source)
    excerpt = preview(source.first, source.last, limits)
    kept = await _keep(call, result, turn, source, excerpt)
    about = {"shown_bytes": excerpt.bytes, "bytes": kept.size, "lines": kept.lines, "marks": marks(kept.output_id)}
    return result.replace(
        output=_with_notice(excerpt, notice(excerpt, kept.size, kept.lines, kept.rest)),
        output_id=kept.output_id,
        path=kept.path,
        spool=None,
        truncated=True,
        metadata={**result.metadata, "truncation": about},
    )


@hookimpl(timeout=30.0, events="turn.start")
async def event(event: Event, turn: Turn | None) -> None:
    """Remove expired files when a turn starts, at most hourly."""
    if event.type != "turn.start" or turn is None:
        return
    now = time.monotonic()
    last = _last_expiry.get(turn.home)
    if last is None or now - last >= EXPIRY_INTERVAL:
        _last_expiry[turn.home] = now
        await turn.artifacts.expire()


def _group() -> object:
    from .cli import output

    return output


ASK_FOR_LESS = "ask for less: a narrower question, a filter, a smaller range"
# Bytes that a reading tool may add to each line; the page that it returns should stay within its limit too.
LINE_NUMBER_BYTES = 10


def notice(excerpt: Preview, size: int, lines: int | None, rest: str) -> str:
    """Return the text below a preview: how much of `size` bytes and `lines` is shown, then `rest`."""
    end = "first" if not excerpt.tail else "last" if not excerpt.head else "first and last"
    total = "" if lines is None else f" of {lines:,}"
    return f"[Output truncated: the {end} {excerpt.lines:,}{total} lines, {human(excerpt.bytes)} of {human(size)}.\n{rest}]"


def stored_rest(path: str, excerpt: Preview, size: int, lines: int | None, reading: Limits, agent: Agent) -> str:
    """Return where the whole output is and how this agent can read more; it names only tools that the agent may use."""
    ways: list[str] = []
    page = _page(size, lines, excerpt, reading)
    if agent.may_use("read") and page:
        start = excerpt.head.count("\n") + 1 if excerpt.head else 1
        ways.append(f"`read` it with offset {start} and limit {page}")
    if agent.may_use("grep"):
        ways.append("search it with `grep`")
    return f"Full output: {path}\nNext: {', or '.join(ways) or ASK_FOR_LESS}."


def marks(output_id: str | None) -> dict[str, str]:
    """Return the mark that people see, by interface language."""
    if output_id is None:
        return {"en": "truncated; the rest is lost", "zh": "已截断；其余内容已丢失"}
    see = f"moryflow output show {output_id}"
    return {"en": f"truncated; full output: {see}", "zh": f"已截断；查看完整输出：{see}"}


def human(size: int) -> str:
    """Return a size in the form ``12.3 KB``."""
    if size < 1024:
        return f"{size} bytes"
    value = size / 1024
    for unit in ("KB", "MB"):
        if value < 1024:
            return f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} GB"


def _page(size: int, lines: int | None, excerpt: Preview, reading: Limits) -> int:
    """Return how many lines of this output fit into one call of ``read``, with room for a heading; 0 if not even one fits."""
    average = size / lines if lines else excerpt.bytes / max(excerpt.lines, 1)
    return min(max(reading.lines * 9 // 10, 1), int(reading.bytes * 0.8 / (average + LINE_NUMBER_BYTES)))


# With this error handler, a lone surrogate counts as three bytes instead of raising.
_CODEC = ("utf-8", "surrogatepass")


class Limits(NamedTuple):
    """How many lines and bytes of UTF-8 the model reads, and from which end."""

    lines: int
    bytes: int
    direction: Direction = "head"


class Preview(NamedTuple):
    """The part that the model reads: the beginning, the end, or both, each unchanged."""

    head: str
    tail: str

    @property
    def lines(self) -> int:
        return count_lines(self.head) + count_lines(self.tail)

    @property
    def bytes(self) -> int:
        return len(_encode(self.head)) + len(_encode(self.tail))


def exceeds(text: str, limits: Limits) -> bool:
    if len(text) > limits.bytes or (not text.isascii() and len(_encode(text)) > limits.bytes):
        return True
    return len(text) > limits.lines and count_lines(text) > limits.lines


def count_lines(text: str) -> int:
    """Return the number of lines; a last line without a line end counts too."""
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def preview(first: str, last: str, limits: Limits) -> Preview:
    """Return the preview of a text that begins with `first` and ends with `last`; each may be the whole text."""
    match limits.direction:
        case "head":
            return Preview(head(first, limits.lines, limits.bytes), "")
        case "tail":
            return Preview("", tail(last, limits.lines, limits.bytes))
        case "both":
            beginning = head(first, -(-limits.lines // 2), -(-limits.bytes // 2))
            lines, size = limits.lines // 2, limits.bytes // 2
            end = tail(last, lines, size) if lines and size else ""
            return Preview(beginning, end if len(_encode(end)) <= size else "")


def head(text: str, lines: int, size: int) -> str:
    """Return the longest beginning of `text` within both limits. It ends with a whole line, unless that loses over half."""
    window = _first_lines(text[:size], lines)
    kept = _first_bytes(window, size) or text[:1]
    if kept.endswith("\n") or len(kept) == len(text) or text[len(kept)] == "\n":
        return kept
    end = kept.rfind("\n") + 1
    return kept[:end] if end * 2 >= len(kept) else kept


def tail(text: str, lines: int, size: int) -> str:
    """Return the longest end of `text` within both limits. It begins with a whole line, unless that loses over half."""
    window = _last_lines(text[-size:], lines) if size else ""
    kept = _last_bytes(window, size) or text[-1:]
    start = len(text) - len(kept)
    if start == 0 or text[start - 1] == "\n":
        return kept
    cut = kept.find("\n") + 1
    return kept[cut:] if 0 < cut < len(kept) and (len(kept) - cut) * 2 >= len(kept) else kept


def _first_lines(text: str, lines: int) -> str:
    end = 0
    for _ in range(lines):
        found = text.find("\n", end)
        if found < 0:
            return text
        end = found + 1
    return text[:end]


def _last_lines(text: str, lines: int) -> str:
    start = len(text) - text.endswith("\n")
    for _ in range(lines):
        found = text.rfind("\n", 0, start)
        if found < 0:
            return text
        start = found
    return text[start + 1 :]


def _first_bytes(text: str, size: int) -> str:
    """Return the longest beginning of at most `size` bytes that does not split a character."""
    data = _encode(text)
    if len(data) <= size:
        return text
    while size and data[size] & 0xC0 == 0x80:
        size -= 1
    return data[:size].decode(*_CODEC)


def _last_bytes(text: str, size: int) -> str:
    data = _encode(text)
    start = len(data) - size
    if start <= 0:
        return text
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:].decode(*_CODEC)


def _encode(text: str) -> bytes:
    return text.encode(*_CODEC)


class WholeOutput:
    """A whole output: `content` is stored; `first` and `last` are its ends, at least as long as a preview may be."""

    def __init__(self, content: str | Path, first: str, last: str) -> None:
        self.content = content
        self.first = first
        self.last = last

    def lines(self) -> int | None:
        """Return the number of lines, or ``None`` if it is unknown without reading a file."""
        return count_lines(self.content) if isinstance(self.content, str) else None

    def size(self) -> int:
        """Return the size in bytes of UTF-8."""
        if isinstance(self.content, Path):
            return self.content.stat().st_size if self.content.exists() else 0
        return len(self.content) if self.content.isascii() else _encoded_size(self.content)

    def fits(self, limits: Limits) -> bool:
        """Whether the whole output is within the limits."""
        return not exceeds(self.first, limits) and (isinstance(self.content, str) or self.size() <= limits.bytes)


class Kept(NamedTuple):
    """The result of storing a whole output: its bytes and lines, the text for the model (`rest`), and where it is."""

    size: int
    lines: int | None
    rest: str
    output_id: str | None = None
    path: str | None = None


def _source(result: ToolResult, limits: Limits) -> WholeOutput:
    spooled = _spool_ends(Path(result.spool), limits) if result.spool else None
    return spooled or WholeOutput(result.output, result.output, result.output)


def _as_text(result: ToolResult, source: WholeOutput) -> ToolResult | None:
    if result.spool is None:
        return None
    if isinstance(source.content, Path):
        _discard(source.content)
    return result.replace(output=source.first, spool=None)


async def _keep(call: ToolCall, result: ToolResult, turn: Turn, source: WholeOutput, excerpt: Preview) -> Kept:
    """Store the whole output, unless it is stored already; if it cannot be written, the result says so."""
    page = result.path if result.output_id else _stored_page(call, turn)
    if page is not None:
        rest = f"This is part of a stored output: {page}\nNext: ask for a smaller part: a smaller limit or a narrower pattern."
        return Kept(source.size(), source.lines(), rest, result.output_id or _id_of(page), page)
    try:
        stored = await turn.artifacts.store(source.content, call_id=call.id, tool=call.tool, ttl_days=turn.config.ttl_days)
    except (OSError, MoryflowError) as error:
        reason = f"{error.strerror or error}" if isinstance(error, OSError) else error.message
        size, lines = source.size(), source.lines()
        turn.emit("lost", call_id=call.id, tool=call.tool, reason=reason, bytes=size)
        if isinstance(source.content, Path):
            _discard(source.content)
        return Kept(size, lines, f"The rest could not be stored and is lost: {reason}.\nNext: {ASK_FOR_LESS}.")
    rest = stored_rest(stored.path, excerpt, stored.size, stored.lines, turn.config.limits("read"), turn.agent)
    return Kept(stored.size, stored.lines, rest, stored.id, stored.path)


def _with_notice(excerpt: Preview, notice: str) -> str:
    left_out = "[… left out …]"
    match bool(excerpt.head), bool(excerpt.tail):
        case True, True:
            return f"{excerpt.head}\n{left_out}\n{excerpt.tail}\n\n{notice}"
        case False, True:
            return f"{left_out}\n{excerpt.tail}\n\n{notice}"
        case _:
            return f"{excerpt.head}\n\n{notice}"


def _encoded_size(text: str, step: int = 1 << 20) -> int:
    return sum(len(text[start : start + step].encode("utf-8", "replace")) for start in range(0, len(text), step))


def _spool_ends(path: Path, limits: Limits) -> WholeOutput | None:
    """Return an output with the two ends of a spooled file, without reading the middle; ``None`` if the file is gone."""
    wanted = limits.bytes + 4  # so that a character that is split at the end of the window is beyond the limit
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(wanted)
            file.seek(max(0, size - wanted))
            last = file.read(wanted)
    except OSError:
        return None
    return WholeOutput(path, first.decode("utf-8", "replace"), last.decode("utf-8", "replace"))


def _stored_page(call: ToolCall, turn: Turn) -> str | None:
    """Return the path of the stored output that `call` reads, if any: a part of it must not be stored again, endlessly."""
    files = [target.path for target in call.targets if target.kind == "file"]
    if call.domain != "read" or len(files) != 1 or files[0] is None:
        return None
    folders = (turn.vault / ".agent-output", turn.home.resolve() / "agent-output")
    return files[0] if Path(files[0]).parent in folders else None


def _id_of(path: str) -> str | None:
    stem, _, output_id = Path(path).stem.rpartition("-")
    return output_id if stem and len(output_id) == 12 else None


def _discard(spool: Path) -> None:
    with suppress(OSError):
        spool.unlink()

"""A span of a conversation as text for the summarizer: bounded, with tool output shortened."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moryflow_sdk import Message

MOST_CHUNKS = 16
"""More model calls than this are not spent on one compaction; the entries are shortened instead."""
OUTPUT, ARGUMENTS = 2000, 600
_OUTPUTS = (10**9, 16_000, 4000, 1000, 300)
_SHORTER = (2000, 800, 300, 120)

Size = Callable[[str], float]


def whole_or_chunks(write: Callable[[int], Sequence[str]], size: Size, room: float) -> list[str]:
    """Return a conversation in one piece, its outputs as long as fits; in several where even short ones do not.

    :param write: returns the entries with outputs of at most so many characters.
    """
    for width in _OUTPUTS:
        pieces = _packed(write(width), size, room)
        if len(pieces) <= 1:
            return pieces
    return chunks(write(OUTPUT), size, room)


def entries(messages: Sequence[Message], output: int = OUTPUT) -> list[str]:
    """Return one text per message, in order; outputs of tools with at most `output` characters."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    found: list[str] = []
    for message in messages:
        text = _escaped(message.text)
        if message.role == "tool":
            found.append(f"[result of {names.get(message.call_id, 'a tool')}]\n{shortened(text, output)}")
            continue
        who = {"user": "person", "assistant": "agent", "system": "earlier"}[message.role]
        calls = [f"[agent calls {c.name}] {shortened(_escaped(c.arguments), ARGUMENTS)}" for c in message.tool_calls]
        images = [f"[{len(message.images)} images]"] if message.images else []
        found.append("\n".join([*([f"[{who}]\n{text}"] if text else []), *images, *calls]))
    return [entry for entry in found if entry]


def chunks(texts: Sequence[str], size: Size, room: float, most: int = MOST_CHUNKS) -> list[str]:
    """Return `texts` joined into at most `most` pieces of at most `room` tokens each.

    Entries become shorter where they are too many; what still does not fit is left out in the middle, with a line that
    says so.
    """
    pieces = _packed(texts, size, room)
    for width in _SHORTER:
        if len(pieces) <= most:
            return pieces
        pieces = _packed([shortened(text, width) for text in texts], size, room)
    if len(pieces) <= most:
        return pieces
    half = most // 2
    left_out = f"[{len(pieces) - 2 * half + 1} parts of the conversation are left out here]"
    return [*pieces[: half - 1], f"{pieces[half - 1]}\n\n{left_out}", *pieces[-half:]]


def shortened(text: str, width: int) -> str:
    """Return `text` with its middle left out when it is longer than `width` characters."""
    if len(text) <= width:
        return text
    head = width * 2 // 3
    return f"{text[:head]}\n[… {len(text) - width} characters …]\n{text[-(width - head) :]}"


def _packed(texts: Sequence[str], size: Size, room: float) -> list[str]:
    pieces: list[str] = []
    current: list[str] = []
    filled = 0.0
    for text in (part for entry in texts for part in _split(entry, size, room)):
        need = size(text) + 1
        if current and filled + need > room:
            pieces.append("\n\n".join(current))
            current, filled = [], 0.0
        current.append(text)
        filled += need
    return [*pieces, "\n\n".join(current)] if current else pieces


def _split(text: str, size: Size, room: float) -> list[str]:
    """Cut a text that is larger than a whole piece."""
    tokens = size(text)
    if tokens <= room:
        return [text]
    width = max(1, int(len(text) * room / tokens * 0.9))
    return [part for start in range(0, len(text), width) for part in _split(text[start : start + width], size, room)]


def _escaped(text: str) -> str:
    """Keep the conversation from ending its own fence."""
    for tag in ("conversation", "previous-summary", "context"):
        text = text.replace(f"</{tag}>", f"<\\/{tag}>")
    return text

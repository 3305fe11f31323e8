"""The fields of an answer that the protocol does not have: kept as they came, to go back to the service that sent them.

Services put there what they want back: DeepSeek and Kimi ``reasoning_content``, OpenRouter ``reasoning_details``, Gemini a
``thought_signature``, litellm Anthropic's ``thinking_blocks``. In a stream they come in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, cast

from .failures import whole

THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoning_text")
"""The keys in which servers send reasoning as text; some send the same text under two of them."""

OF_MESSAGE = frozenset(
    {"role", "content", "tool_calls", "function_call", "refusal", "error", "name", "tool_call_id", "tool_name"}
)
OF_CALL = frozenset({"index", "id", "type", "function"})
OF_FUNCTION = frozenset({"name", "arguments"})
"""The fields that the protocol has, and that no kept field may therefore overwrite."""

_NAMES = frozenset({"id", "type", "format", "role", "name", "object", "model", "status", "mime_type"})
"""Keys whose text is said again with each piece, and never continued."""
_PROSE = frozenset({"text", "summary", "content", *THOUGHTS})
"""Keys whose text is continued by each piece, also by an equal one."""
_PLAIN_PARTS = frozenset({"text", "output_text", "refusal"})


class KeptFields:
    """Collects the unknown fields of one message from its deltas."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._content: list[Any] = []

    def add(self, delta: Mapping[str, Any]) -> int:
        """Add the unknown fields of a delta, or of a whole message; return about how many characters they have."""
        found = unknown(delta, OF_MESSAGE)
        self._fields = merged(self._fields, found)
        content: Any = delta.get("content")
        if isinstance(content, list) or (self._content and isinstance(content, str) and content):
            items = cast("list[Any]", content if isinstance(content, list) else [content])
            parts = [{"type": "text", "text": item} if isinstance(item, str) else item for item in items]
            self._content = _merged_lists(self._content, parts)
        return sum(len(str(value)) for key, value in found.items() if key not in THOUGHTS)

    def fields(self) -> dict[str, Any]:
        """Return the fields; ``content`` is among them if it has parts that are not text, such as Mistral's ``thinking``."""
        parts = [cast("dict[str, Any]", part) for part in self._content if isinstance(part, dict)]
        rich = any(part.get("type") not in _PLAIN_PARTS for part in parts)
        return joined({**self._fields, **({"content": self._content} if rich else {})})


def kept_of_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unknown fields of a call; those within ``function`` are under that name."""
    found = unknown(item, OF_CALL)
    function: Any = item.get("function")
    within = unknown(cast("dict[str, Any]", function), OF_FUNCTION) if isinstance(function, dict) else {}
    return {**found, **({"function": within} if within else {})}


def unknown(fields: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Return the fields with a value whose names are not among `known`."""
    return {key: value for key, value in fields.items() if key not in known and value not in (None, "", [], {})}


def merged(before: dict[str, Any], piece: Mapping[str, Any]) -> dict[str, Any]:
    """Return `before` with a piece of a stream added."""
    if not piece:
        return before
    made = dict(before)
    for key, value in piece.items():
        made[key] = _merged(key, made[key], value) if made.get(key) is not None and value is not None else value
    return made


def _merged(key: str, before: Any, piece: Any) -> Any:
    match before, piece:
        case _Pieces(), str():
            before.append(piece)
            return before
        case str(), str():
            if key in _PROSE:
                return _Pieces([before, piece])
            if key in _NAMES or piece.startswith(before):  # a signature or an encrypted text, said again or grown
                return piece or before
            return before + piece
        case dict(), dict():
            return merged(cast("dict[str, Any]", before), cast("dict[str, Any]", piece))
        case list(), list():
            return _merged_lists(cast("list[Any]", before), cast("list[Any]", piece))
        case _:
            return piece


class _Pieces(list[str]):
    """A text that grows: adding each piece to a string would copy a long reasoning once for every token."""


def joined(value: Any, levels: int = 50) -> Any:
    """Return `value` as JSON that can be stored and sent; what is nested too deeply or is no number becomes ``None``."""
    match value:
        case _Pieces():
            return whole("".join(value))
        case list() | dict() if not levels:
            return None
        case str():
            return whole(value)
        case float() if not isfinite(value):
            return None
        case dict():
            return {whole(key): joined(item, levels - 1) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [joined(item, levels - 1) for item in cast("list[Any]", value)]
        case _:
            return value


def _merged_lists(before: list[Any], pieces: list[Any]) -> list[Any]:
    """Return a list with the pieces of a stream added. Pieces that came together never continue each other."""
    made, known = list(before), len(before)
    for piece in pieces:
        place = _continued(made[:known], cast("dict[str, Any]", piece)) if isinstance(piece, dict) else None
        if place is not None:
            made[place] = merged(made[place], cast("dict[str, Any]", piece))
        elif not (_is_sealed(piece) and piece in made):
            made.append(piece)
    return made


def _continued(items: list[Any], piece: dict[str, Any]) -> int | None:
    """Return the place of the item that `piece` continues, or ``None`` if it begins another.

    That is the item with its index, or without one the last item. Gemini gives index 0 to its summary and to the encrypted
    block of each call, so that type and id must agree too.
    """
    index = piece.get("index")
    for place in reversed(range(len(items))):
        item: Any = items[place]
        if isinstance(item, dict):
            found = cast("dict[str, Any]", item)
            agree = all(found.get(key) == piece.get(key) or not (found.get(key) and piece.get(key)) for key in ("id", "type"))
            if agree and found.get("index") == index and not _is_sealed(found) and _goes_on(found, piece):
                return place
        if index is None:
            return None
    return None


def _is_sealed(item: Any) -> bool:
    kind = str(cast("dict[str, Any]", item).get("type")) if isinstance(item, dict) else ""
    return "encrypted" in kind or "redacted" in kind


def _goes_on(item: Mapping[str, Any], piece: Mapping[str, Any]) -> bool:
    """Whether `piece` has text for `item`, which no signature has closed yet, or its signature."""
    prose = any(piece.get(key) for key in _PROSE)
    return (
        (prose and not item.get("signature"))
        or (bool(piece.get("signature")) and not prose)
        or ("index" in piece and not prose)
    )


def text_of(content: Any) -> tuple[str, str]:
    """Return ``(text, reasoning)`` of a message's content: a string, or a list of typed parts."""
    if isinstance(content, str):
        return content, ""
    text, reasoning = "", ""
    for part in cast("list[Any]", content if isinstance(content, list) else []):
        if isinstance(part, str):
            text += part
        elif isinstance(part, dict):
            found = cast("dict[str, Any]", part)
            value: Any = found.get("thinking") or found.get("text") or found.get("refusal") or ""
            said = value if isinstance(value, str) else "".join(text_of(value))
            if found.get("type") in ("thinking", "reasoning"):
                reasoning += said
            else:
                text += said
    return text, reasoning


def has_text(content: Any, text: str) -> bool:
    """Whether a kept ``content`` still says `text`: the host or a plugin may have changed the text since."""
    return isinstance(content, tuple) and text_of(list(cast("tuple[Any, ...]", content)))[0] == text

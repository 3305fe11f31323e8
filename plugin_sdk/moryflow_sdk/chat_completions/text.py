"""Text as it may be stored and shown: no half characters."""

from __future__ import annotations

from typing import Any, cast


def whole(text: str) -> str:
    """Return `text` with surrogate pairs joined and lone surrogates replaced; a lone one cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class TextJoiner:
    """Joins surrogate pairs that a server split over two pieces of text."""

    def __init__(self) -> None:
        self._high = ""

    def add(self, text: str) -> str:
        """Return what can be shown by now."""
        text, self._high = self._high + text, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._high = text[:-1], text[-1]
        return whole(text)

    def end(self) -> str:
        """Return what is left."""
        rest, self._high = self._high, ""
        return whole(rest)


def text_of(content: Any) -> tuple[str, str]:
    """Return ``(text, reasoning)`` of a message's content: a string, or a list of typed parts."""
    if isinstance(content, str):
        return content, ""
    parts = cast("list[Any]", content if isinstance(content, list) else [content])
    pairs = [_part(part) for part in parts]
    return "".join(text for text, _ in pairs), "".join(thought for _, thought in pairs)


def _part(part: Any) -> tuple[str, str]:
    if isinstance(part, str):
        return part, ""
    if not isinstance(part, dict):
        return "", ""
    found = cast("dict[str, Any]", part)
    if found.get("type") in ("thinking", "reasoning"):
        thought = found.get("thinking") or found.get("text") or found.get("reasoning") or ""
        return "", thought if isinstance(thought, str) else "".join(text_of(thought))
    value: Any = found.get("text") or found.get("refusal") or ""
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("value")
    return (value if isinstance(value, str) else ""), ""

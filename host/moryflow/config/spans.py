"""Insert, replace and remove values in a text by their spans; every other character stays."""

from __future__ import annotations

import json
import re
from typing import Any

from .jsonc import Node

_INDENT = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_REST_OF_LINE = re.compile(r"(?:[ \t]|/\*[^\n\r]*?\*/)*(?://[^\n\r]*)?")
_SPACE = " \t"


def insert(text: str, container: Node | None, value: Any, *, key: str | None = None) -> str:
    """Return `text` with `value` as the last entry of `container` (of the document itself when that is ``None``)."""
    end = _line_end(text)
    if container is None:
        body = _entry({key: value} if key is not None else value, None, _unit(text), "", end)
        gap = end if text and not text.endswith(("\n", "\r")) else ""
        return f"{text}{gap}{body}{end}"
    if container.last is None:
        return _insert_first(text, container, value, key)
    return _insert_after(text, container, container.last, value, key)


def _insert_first(text: str, container: Node, value: Any, key: str | None) -> str:
    end, unit, base = _line_end(text), _unit(text), _indent_at(text, container.start)
    entry = _entry(value, key, unit, base + unit, end)
    rest = text[container.start + 1 : container.end - 1]
    # What stands between the brackets is a comment at most; it follows the entry on its own line.
    after = "" if rest.lstrip(_SPACE).startswith(("\n", "\r")) else end + base
    if rest.strip():
        after = end + base + unit if after else ""
    return f"{text[: container.start + 1]}{end}{base}{unit}{entry}{after}{text[container.start + 1 :]}"


def _insert_after(text: str, container: Node, last: Node, value: Any, key: str | None) -> str:
    end, unit = _line_end(text), _unit(text)
    many_lines = "\n" in text[container.start : last.begin]
    indent = _indent_at(text, last.begin) if many_lines else _indent_at(text, container.start)
    entry = _entry(value, key, unit, indent, end) + ("," if last.comma is not None else "")
    start = last.end if last.comma is None else last.comma + 1
    comma = "," if last.comma is None else ""
    if not many_lines:
        return f"{text[:start]}{comma} {entry}{text[start:]}"
    place = _after_remark(text, start, container.end - 1)
    return f"{text[:start]}{comma}{text[start:place]}{end}{indent}{entry}{text[place:]}"


def _after_remark(text: str, start: int, stop: int) -> int:
    """Return where the line's own comment ends, which belongs to the entry before; `start` when there is none."""
    match = _REST_OF_LINE.match(text, start, stop)
    place = match.end() if match else start
    while place > start and text[place - 1] in _SPACE:
        place -= 1
    return place


def put(text: str, node: Node, value: Any) -> str:
    """Return `text` with `value` in place of what stands at `node`."""
    indent = _indent_at(text, node.begin)
    return text[: node.start] + _dump(value, _unit(text), indent, _line_end(text)) + text[node.end :]


def remove(text: str, container: Node, key: str) -> str:
    """Return `text` without the member `key`; comments stay, a line that would be left empty goes."""
    node = container.child(key)
    if node is None:
        return text
    begin, end = node.begin, node.end
    if node.comma is not None:
        text = text[: node.comma] + text[node.comma + 1 :]
    elif (before := _before(container, node)) is not None and before.comma is not None:
        text = text[: before.comma] + text[before.comma + 1 :]
        begin, end = begin - 1, end - 1
    return _cut(text, begin, end)


def _before(container: Node, node: Node) -> Node | None:
    siblings = container.children
    place = siblings.index(node)
    return siblings[place - 1] if place else None


def _cut(text: str, begin: int, end: int) -> str:
    line = begin
    while line > 0 and text[line - 1] in _SPACE:
        line -= 1
    after = end
    while after < len(text) and text[after] in _SPACE:
        after += 1
    at_start = line == 0 or text[line - 1] in "\n\r"
    if at_start and text.startswith(("\r\n", "\n"), after):
        return text[:line] + text[after + (2 if text[after] == "\r" else 1) :]
    return text[:begin] + text[after if not at_start else end :]


def _entry(value: Any, key: str | None, unit: str, indent: str, end: str) -> str:
    name = "" if key is None else json.dumps(key, ensure_ascii=False) + ": "
    return name + _dump(value, unit, indent, end)


def _dump(value: Any, unit: str, indent: str, end: str) -> str:
    """Write `value` as a person would: an object of plain values on one line, anything else one entry a line."""
    if isinstance(value, dict) and len(value) > 1 and not any(isinstance(item, dict | list) for item in value.values()):
        return "{ " + json.dumps(value, ensure_ascii=False)[1:-1] + " }"
    if isinstance(value, dict) and value:
        entries = [_entry(item, name, unit, indent + unit, end) for name, item in value.items()]
        return _block("{", entries, "}", unit, indent, end)
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return _block("[", [_dump(item, unit, indent + unit, end) for item in value], "]", unit, indent, end)
    return json.dumps(value, ensure_ascii=False)


def _block(opening: str, entries: list[str], closing: str, unit: str, indent: str, end: str) -> str:
    inner = f",{end}{indent}{unit}".join(entries)
    return f"{opening}{end}{indent}{unit}{inner}{end}{indent}{closing}"


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _unit(text: str) -> str:
    """Return one level of indentation: that of the first line that has any."""
    match = _INDENT.search(text)
    return match.group(1) if match else "  "


def _indent_at(text: str, offset: int) -> str:
    line = text.rfind("\n", 0, offset) + 1
    indent = line
    while indent < len(text) and text[indent] in _SPACE:
        indent += 1
    return text[line:indent]

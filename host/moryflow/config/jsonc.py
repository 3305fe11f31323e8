"""JSON with comments and trailing commas: parse it into values, and into a tree of spans for line numbers and edits.

Comments are replaced by spaces, so that every position the standard library reports is the position in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# The deepest nesting: more than any configuration needs, and far from the interpreter's own limit.
MAX_DEPTH = 64

_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|//[^\n\r]*|/\*.*?\*/|[{}\[\]:,]|[^\s{}\[\]:,"/]+|\S', re.DOTALL)
_NOT_A_LINE_END = re.compile(r"[^\n\r]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class JsoncError(ValueError):
    """A text is not JSON with comments. `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


class JsoncNode:
    """The span of one value, ``text[start:end]``; `key` and `comma` are the offsets of its name and of the comma after it."""

    __slots__ = ("comma", "end", "items", "key", "last", "members", "start")

    def __init__(self, start: int, key: int | None = None) -> None:
        self.start, self.end, self.key = start, start, key
        self.comma: int | None = None
        self.members: dict[str, JsoncNode] | None = None
        self.items: list[JsoncNode] | None = None
        self.last: JsoncNode | None = None

    @property
    def begin(self) -> int:
        """The offset at which the entry begins: at its key, if it has one."""
        return self.start if self.key is None else self.key

    @property
    def children(self) -> list[JsoncNode]:
        """The members or items, in the order they are written."""
        return list(self.members.values()) if self.members is not None else self.items or []

    def child(self, name: str | int) -> JsoncNode | None:
        """Return the member or item called `name`."""
        if isinstance(name, int):
            return self.items[name] if self.items is not None and 0 <= name < len(self.items) else None
        return self.members.get(name) if self.members is not None else None


def position(text: str, offset: int) -> tuple[int, int]:
    """Return the line and column of `offset`, both from 1."""
    line = text.count("\n", 0, offset) + 1
    return line, offset - (text.rfind("\n", 0, offset) + 1) + 1


def _tokens(text: str) -> Iterator[tuple[int, str]]:
    for match in _TOKEN.finditer(text):
        yield match.start(), match.group()


def _is_comment(token: str) -> bool:
    return token.startswith(("//", "/*"))


def blank(text: str) -> str:
    """Return `text` with spaces instead of comments and trailing commas; every other character keeps its position.

    :raises JsoncError: it is nested too deeply, or a comment is not closed.
    """
    spans: list[tuple[int, int]] = []
    depth, comma, before = 0, -1, ""
    for start, token in _tokens(text):
        if _is_comment(token):
            spans.append((start, start + len(token)))
            continue
        if token == "/":
            raise JsoncError("a comment is not closed, or this is not a comment", *position(text, start))
        if token in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise JsoncError(f"nested deeper than {MAX_DEPTH} levels", *position(text, start))
        elif token in "}]":
            depth -= 1
            if comma >= 0:
                spans.append((comma, comma + 1))
        comma = start if token == "," and before not in ("", "{", "[", ",", ":") else -1
        before = token
    parts, end = list[str](), 0
    for begin, after in sorted(spans):
        parts += text[end:begin], _NOT_A_LINE_END.sub(" ", text[begin:after])
        end = after
    return "".join([*parts, text[end:]])


def is_blank(text: str) -> bool:
    """Whether `text` holds only comments and blanks."""
    return all(_is_comment(token) for _, token in _tokens(text))


def parse(text: str) -> Any:
    """Return the value of `text`; an empty text is an empty object.

    :raises JsoncError: it is not JSON with comments, an object has a key twice, or a number or character is invalid.
    """
    plain = blank(text)
    if not plain.strip():
        return {}
    repeated: list[str] = []

    def pairs(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(entries)
        if len(value) != len(entries):
            names = [name for name, _ in entries]
            repeated.append(next(name for name in names if names.count(name) > 1))
        return value

    def constant(name: str) -> Any:
        place = next((start for start, token in _tokens(plain) if token == name), 0)
        raise JsoncError(f"{name} is not a number that JSON knows", *position(text, place))

    try:
        value = json.loads(plain, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise JsoncError(_readable(error, plain), error.lineno, error.colno) from error
    except JsoncError:
        raise
    except (ValueError, RecursionError) as error:
        raise JsoncError(f"a value is too large: {error}", 1, 1) from error
    if repeated:
        key = repeated[0]
        raise JsoncError(f'the key "{key}" stands twice in one object', *position(text, _second_offset(text, key)))
    _refuse_half_characters(text, value)
    return value


def _readable(error: json.JSONDecodeError, plain: str) -> str:
    found = repr(plain[error.pos]) if error.pos < len(plain) else "the end of the file"
    if error.msg.startswith("Unterminated string"):
        return "a text begins here that is not closed"
    if error.msg.startswith("Invalid control character"):
        return f"a text holds {found}, or is not closed; write \\n for a line end in it"
    return f"{error.msg[0].lower()}{error.msg[1:]}, found {found}"


def _second_offset(text: str, key: str) -> int:
    seen: list[set[str]] = []
    previous = (0, "")
    for start, token in _tokens(text):
        if _is_comment(token):
            continue
        if token in "{[":
            seen.append(set())
        elif token in "}]":
            seen.pop()
        elif token == ":" and seen and previous[1].startswith('"'):
            name = json.loads(previous[1])
            if name == key and name in seen[-1]:
                return previous[0]
            seen[-1].add(name)
        previous = (start, token)
    return 0


def _refuse_half_characters(text: str, value: Any) -> None:
    if not (match := _SURROGATE_ESCAPE.search(text)):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise JsoncError("half of a surrogate pair is not a character", *position(text, match.start())) from error


def tree(text: str) -> JsoncNode | None:
    """Return the spans of a text that :func:`parse` accepts; ``None`` if it has no value."""
    root: JsoncNode | None = None
    open_nodes: list[JsoncNode] = []
    key: tuple[int, str] | None = None
    last: tuple[int, str] = (0, "")
    for start, token in _tokens(text):
        if _is_comment(token):
            continue
        if token == ":":
            key = last
        elif token == ",":
            if open_nodes[-1].last:
                open_nodes[-1].last.comma = start
        elif token in "}]":
            open_nodes.pop().end = start + 1
        elif not (token.startswith('"') and open_nodes and open_nodes[-1].members is not None and key is None):
            node = JsoncNode(start, key[0] if key else None)
            node.end = start + len(token)
            _attach(open_nodes, node, key)
            root, key = root or node, None
            if token in "{[":
                node.members, node.items = ({}, None) if token == "{" else (None, [])
                open_nodes.append(node)
        last = (start, token)
    return root


def _attach(open_nodes: list[JsoncNode], node: JsoncNode, key: tuple[int, str] | None) -> None:
    if not open_nodes:
        return
    parent = open_nodes[-1]
    parent.last = node
    if parent.items is not None:
        parent.items.append(node)
    elif parent.members is not None and key is not None:
        parent.members[json.loads(key[1]) if "\\" in key[1] else key[1][1:-1]] = node

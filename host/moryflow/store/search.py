"""How a search reads a query, and shows what it found; each database has an index of its own."""

from __future__ import annotations

import re

from .queries import nodes_where
from .records import Hit, Node
from .tables import SqlConnection, encode, text_of

# The kinds of nodes that are searched.
SEARCHED = ("user", "assistant", "tool")
_AROUND = 60
_LIKE_SIGNS = re.compile(r"[%_\\]")
_ESCAPED = r"\\\g<0>"
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
_WORD = re.compile("[\\w\u0300-\u036f]+")  # combining accents do not separate words, neither here nor in the index


def words_of(query: str) -> list[str]:
    """Return the words of a query, or none if the index cannot answer it."""
    return [] if _UNSPACED.search(query) else [word for word in _WORD.findall(query) if re.search(r"[^\W_]", word)]


def scan(connection: SqlConnection, words: list[str], limit: int) -> list[Hit]:
    """Return the nodes that contain all `words` literally, newest first, without the index."""
    likes = " AND ".join("n.payload LIKE ? ESCAPE '\\'" for _ in words)
    condition = f"WHERE n.kind IN {SEARCHED!r} AND {likes} ORDER BY n.number DESC"
    patterns = [f"%{_LIKE_SIGNS.sub(_ESCAPED, encode(word)[1:-1])}%" for word in words]
    hits: list[Hit] = []
    for _, node in nodes_where(connection, condition, patterns, skip_damaged=True):
        text = text_of(node.payload).casefold()
        if all(word.casefold() in text for word in words):
            hits.append(hit(node, words))
        if len(hits) >= limit:
            break
    return hits


def hit(node: Node, words: list[str]) -> Hit:
    return Hit(node.session, node.id, node.kind, snippet(text_of(node.payload), words))


def snippet(text: str, words: list[str]) -> str:
    """Return one line of `text` around the first of `words`."""
    found = re.search("|".join(re.escape(word) for word in words), text, re.IGNORECASE)
    at = found.start() if found else 0
    start, end = max(0, at - _AROUND), at + _AROUND * 2
    line = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"

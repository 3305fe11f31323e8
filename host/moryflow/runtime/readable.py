"""A conversation as a file for people: Markdown, or one page of HTML that needs nothing else and runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from .documents import first_line

if TYPE_CHECKING:
    from moryflow.store import Node

ENDINGS = (".md", ".html", ".htm")
_PAGE = """<!doctype html>
<html><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 1rem/1.5 sans-serif; max-width: 48rem; margin: 2rem auto; padding: 0 1rem }}
pre {{ overflow-x: auto }}
</style>
</head><body>
{body}</body></html>
"""


def readable(ending: str, title: str, path: Sequence[Node]) -> str:
    """Return a conversation in the form of a file with this ending, one of :data:`ENDINGS`."""
    text = f"# {title}\n\n" + "\n".join(_markdown(path))
    if ending == ".md":
        return text
    from markdown_it import MarkdownIt

    shown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    return _PAGE.format(title=escape(title), body=shown.render(text))


def _markdown(path: Sequence[Node]) -> Iterator[str]:
    for node in path:
        text = str(node.payload.get("text") or "").strip()
        if node.kind == "user":
            yield f"## You\n\n{text}\n"
        elif node.kind == "assistant":
            calls = "".join(
                f"- `{call.get('name')}` {first_line(str(call.get('arguments', '')), 200)}\n"
                for call in node.payload.get("calls", ())
            )
            yield "\n".join(part for part in (f"## Agent\n\n{text}\n" if text else "", calls) if part)
        elif node.kind in ("compaction", "prune") and node.payload.get("summary"):
            yield f"## Summary of what was before\n\n{node.payload['summary']}\n"

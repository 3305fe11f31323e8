"""The page ``docs/reference/http.md``: every operation of the server's table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moryflow.server.app import OPERATIONS
from moryflow.server.operations import ERRORS, Operation

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "http.md"
BLOCK = re.compile(r"(<!-- begin: operations -->\n).*?(<!-- end -->)", re.DOTALL)
SECTIONS = {
    "Sessions": ("/sessions", "/search", "/import"),
    "Events": ("/event", "/global/event"),
    "Questions and outputs": ("/approvals", "/outputs", "/artifacts"),
    "What there is": ("/agents", "/tools", "/models", "/plugins", "/commands", "/files", "/stats", "/config", "/permissions",
                      "/settings"),
    "The server": ("/",),
}  # fmt: skip


def page() -> str:
    """Return the page with its operations written anew."""
    parts: list[str] = []
    left = list(OPERATIONS)
    for title, prefixes in SECTIONS.items():
        own = [one for one in left if one.path.startswith(prefixes)]
        left = [one for one in left if one not in own]
        parts.append("\n\n".join([f"## {title}", *(_operation(one) for one in own)]))
    errors = "\n".join(["| status | when |", "|---|---|", *(f"| {status} | {text} |" for status, text in ERRORS.items())])
    text = "\n\n".join([*parts, f"## Errors\n\n{errors}"])
    return BLOCK.sub(lambda ends: f"{ends[1]}\n{text}\n\n{ends[2]}", PAGE.read_text(encoding="utf-8"))


def _operation(one: Operation) -> str:
    also = f" Also at {', '.join(f'`{alias}`' for alias in one.aliases)}." if one.aliases else ""
    head = f"### `{one.method} {one.path}`\n\n{one.summary}{also} Answers {one.status}: {one.answer}."
    schema = one.arguments.schema
    rows = [
        f"| `{name}` | {_type(found)} | {'' if name in schema.get('required', ()) else _default(found)} | "
        f"{found.get('description', '')} |"
        for name, found in schema.get("properties", {}).items()
        if name not in one.in_path
    ]
    table = "\n".join([f"| {_place(one)} | type | default | is |", "|---|---|---|---|", *rows])
    return f"{head}\n\n{table}" if rows else head


def _place(one: Operation) -> str:
    return "query" if one.method in ("GET", "DELETE") else "body"


def _default(found: Mapping[str, Any]) -> str:
    value = found.get("default")
    return "" if value in (None, "", []) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(found: Mapping[str, Any]) -> str:
    kinds = [part for part in found.get("anyOf", (found,)) if part.get("type") != "null"]
    words = [" or ".join(f"`{value}`" for value in kind["enum"]) if "enum" in kind else str(kind.get("type")) for kind in kinds]
    return " or ".join(words)

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
    said: set[str] = set()
    left = list(OPERATIONS)
    for title, prefixes in SECTIONS.items():
        own = [one for one in left if one.path.startswith(prefixes)]
        left = [one for one in left if one not in own]
        parts.append("\n".join([f"## {title}\n", *(_operation(one, said) for one in own)]))
    errors = "\n".join(f"- {status}: {text}" for status, text in ERRORS.items())
    text = "\n\n".join([*parts, f"## Errors\n\n{errors}"])
    return BLOCK.sub(lambda ends: f"{ends[1]}\n{text}\n\n{ends[2]}", PAGE.read_text(encoding="utf-8"))


def _operation(one: Operation, said: set[str]) -> str:
    """Return the entry of an operation: what it does and answers, then those arguments that are not `said` yet."""
    also = f" Also at {', '.join(f'`{alias}`' for alias in one.aliases)}." if one.aliases else ""
    status = "" if one.status == 200 else f" {one.status}:"
    schema = one.arguments.schema
    names = [name for name in schema.get("properties", {}) if name not in one.in_path]
    required = schema.get("required", ())
    every = {name: _argument(name, schema["properties"][name], name in required) for name in names}
    again = [f"`{name}`" for name, text in every.items() if text in said]
    new = [text for text in every.values() if text not in said]
    said.update(new)
    more = f" Also {', '.join(again)}." if again else ""
    text = f"- `{one.method} {one.path}`: {one.summary}{also} →{status} {one.answer}.{more}".replace("\n", " ")
    bare = [item for item in new if ": " not in item]
    rows = [*(item for item in new if item not in bare), *([", ".join(bare)] if bare else [])]
    return "\n".join([text, *(f"    - {row}" for row in rows)])


def _argument(name: str, found: Mapping[str, Any], required: bool) -> str:
    kind = "; ".join(filter(None, [_type(found), "required" if required else _default(found)]))
    described = found.get("description", "")
    return f"`{name}`{f' ({kind})' if kind else ''}{f': {described}' if described else ''}"


def _default(found: Mapping[str, Any]) -> str:
    value = found.get("default")
    return "" if value in (None, "", []) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(found: Mapping[str, Any]) -> str:
    """Return the type of an argument; nothing for a text, which most are."""
    kinds = [part for part in found.get("anyOf", (found,)) if part.get("type") != "null"]
    words = [", ".join(f"`{value}`" for value in kind["enum"]) if "enum" in kind else str(kind.get("type")) for kind in kinds]
    return "" if words == ["string"] else " or ".join(words)

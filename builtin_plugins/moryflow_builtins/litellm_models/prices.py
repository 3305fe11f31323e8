"""Windows and prices from the table that litellm ships, read without importing litellm."""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_FILE = "model_prices_and_context_window_backup.json"


@cache
def table() -> dict[str, dict[str, Any]]:
    """Return litellm's table, about 4,000 models; empty when this litellm has none where it is looked for."""
    spec = find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        try:
            found = json.loads((Path(folder) / _FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def entry(prefix: str, name: str) -> dict[str, Any]:
    """Return what the table says about a model; an empty mapping when it does not know it."""
    rows = table()
    row = rows.get(f"{prefix}/{name}") or rows.get(name) or {}
    return row if row.get("mode", "chat") in ("chat", "responses") else {}


def facts(prefix: str, name: str) -> dict[str, Any]:
    """Return the fields of a ``ModelInfo`` that the table knows. It counts the window as input alone, so does this."""
    row = entry(prefix, name)
    if not row:
        return {}
    found = {
        "context_window": _whole(row.get("max_input_tokens") or row.get("max_tokens")),
        "max_output": _whole(row.get("max_output_tokens")),
        "input_price": _per_million(row.get("input_cost_per_token")),
        "output_price": _per_million(row.get("output_cost_per_token")),
        "cached_price": _per_million(row.get("cache_read_input_token_cost")),
        "images": bool(row.get("supports_vision")),
        "tools": row.get("supports_function_calling", True) is not False,
    }
    return {field: value for field, value in found.items() if value is not None}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _per_million(value: Any) -> float | None:
    return round(value * 1_000_000, 6) if isinstance(value, int | float) else None

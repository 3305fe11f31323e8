"""Correct slips that would otherwise loosen something, and report them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .layers import MISSING, Layer, Place, dotted, merged, nested
from .problems import Problem
from .rules import RULES

_MODE = ("agents", "runtime", "mode", "default")
_YES = ("1", "true", "yes", "on")


def as_meant(layer: Layer) -> tuple[Layer, list[Problem]]:
    """Return `layer` with slips put right, and what they are."""
    if layer.find(_MODE) == "ask":  # the older name of the mode `agent`
        layer = replace(layer, value=merged(layer.value, nested(_MODE, "agent")))
    problems: list[Problem] = []
    for path, meant in list(_slips(layer)):
        text = f"{dotted(path)}: {_short(layer.find(path))} is read as {_short(meant)}"
        problems.append(layer.problem(path, text, f"write {_short(meant)}", code="config_value", fatal=True))
        layer = replace(layer, value=merged(layer.value, nested([str(name) for name in path], meant)))
    return layer, problems


def _slips(layer: Layer) -> Iterator[tuple[Place, Any]]:
    """Yield where something that tightens is written oddly, and what was meant."""
    for name in ("disabledPlugins", "onlyPlugins"):
        value = layer.find((name,))
        if isinstance(value, str):
            yield (name,), [part.strip() for part in value.split(",") if part.strip()]
    for name in ("safeMode", "strict"):
        value = layer.find((name,))
        if not isinstance(value, bool) and value is not MISSING and str(value).strip().casefold() in _YES:
            yield (name,), True
    profile = layer.find(("profile",))
    if isinstance(profile, str) and profile != "remote" and profile.strip().casefold() == "remote":
        yield ("profile",), "remote"
    rules = layer.find(RULES)
    if isinstance(rules, dict) and "decision" in rules:
        yield RULES, [rules]


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:60]

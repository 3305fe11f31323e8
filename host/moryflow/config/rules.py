"""Permission rules in a configuration: mistakes are reported, and make their domain ask."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from moryflow_sdk import Rule
from moryflow_sdk.support.rule_entries import ANY_DOMAIN, may_deny, not_understood, read_entries

from .layers import MOST, Layer, Problem, dotted

RULES = ("agents", "runtime", "permission", "rules")
"""Where the rules stand."""

UNUSABLE = "rule_unusable"
"""The code of a deny rule that was read but whose pattern no engine takes."""

_OF_OTHERS = ("plugins", "models", "mcp")
"""Sections in which a name like ``rules`` is somebody else's."""

_NAMES = ("permission", "permissions", "rules")


def read_rules(layer: Layer) -> tuple[list[Rule], list[Problem]]:
    """Return the rules of `layer` in order, one for what could not be read among them, and what is wrong."""
    entries = layer.find(RULES)
    rules, faults = read_entries(
        entries if isinstance(entries, list) else [],
        _source(layer),
        layer.file if layer.is_file else None,
        line=lambda index: layer.position((*RULES, index))[0],
    )
    problems: list[Problem] = []
    for fault in faults[:MOST]:
        place = (*RULES, fault.index, fault.key) if fault.key else (*RULES, fault.index)
        problems.append(layer.problem(place, fault.message, fault.hint, code=fault.code, fatal=not fault.harmless))
    if rest := faults[MOST:]:
        fatal = not all(fault.harmless for fault in rest)
        problems.append(layer.problem(RULES, f"{len(rest)} more rules are wrong", code="rule_invalid", fatal=fatal))
    return rules, problems


def lost_rules(layer: Layer) -> list[Rule]:
    """Return what stands for rules of `layer` that nobody reads, because they stand under another name or in another shape.

    What is wrong there is reported where unknown keys and wrong types are.
    """
    fields = {"source": _source(layer), "file": layer.file if layer.is_file else None}
    if layer.lost:
        return [not_understood(ANY_DOMAIN, layer.lost, **fields)]
    for place, item in _unread(layer.value, ()):
        value = {place[-1]: item}
        if holds_deny(value) or _holds_ask(value):
            problem = f"rules are not read at {dotted(place)}"
            decision = "deny" if holds_deny(value) else "ask"
            return [not_understood(ANY_DOMAIN, problem, **fields, line=layer.position(place)[0], decision=decision)]
    return []


def _unread(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what stands where rules were probably meant to be and are not."""
    for key, item in value.items():
        place = (*path, key)
        if place == RULES and isinstance(item, list):
            continue
        on_the_way = place == RULES[: len(place)]
        is_like = path == RULES[:-1] or _named_like_rules(key)
        if (on_the_way or not is_like) and isinstance(item, Mapping) and place != RULES:
            if place[0] not in _OF_OTHERS:
                yield from _unread(item, place)
        elif on_the_way or is_like:
            yield place, item


def _named_like_rules(key: str) -> bool:
    return bool(difflib.get_close_matches(key.casefold(), _NAMES, n=1, cutoff=0.8))


def _source(layer: Layer) -> Literal["inline", "user"]:
    return "user" if layer.source == "user" else "inline"


def holds_deny(value: Any) -> bool:
    """Whether `value`, which stands where nothing is read, holds what may have been meant as a deny."""
    if isinstance(value, Mapping):
        is_entry = "decision" in value and may_deny(value)
        return is_entry or any(map(holds_deny, (*value, *value.values())))  # {"deny": [...]} is how others write it
    if isinstance(value, list):
        return any(map(holds_deny, value))
    return isinstance(value, str) and value.strip().casefold() == "deny"


def _holds_ask(value: Any) -> bool:
    if isinstance(value, Mapping | list):
        return any(map(_holds_ask, (*value, *value.values()) if isinstance(value, Mapping) else value))
    return isinstance(value, str) and value.strip().casefold() == "ask"

"""What can be used of a file that is not trusted or does not parse: settings that loosen nothing, and readable denies."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from moryflow_sdk import DOMAINS

from .jsonc import JsoncError, blank, position
from .layers import MISSING, RULES, Layer, lost_rules, merged, nested

Lines = dict[tuple[str | int, ...], int]
Fits = Callable[[Any], bool]

HARMLESS: Mapping[str, Fits] = {
    "$schema": lambda value: isinstance(value, str),
    "language": lambda value: isinstance(value, str),
    "model": lambda value: isinstance(value, str),
    "limits": lambda value: isinstance(value, dict),
    "agents.runtime.agent": lambda value: isinstance(value, dict),
    "agents.runtime.truncation": lambda value: isinstance(value, dict),
    "onlyPlugins": lambda value: isinstance(value, list),
    "safeMode": lambda value: value is True,
    "strict": lambda value: value is True,
    "profile": lambda value: value == "remote",
}
"""What a file that others can write to, or that is not plain JSONC, may still set; none of it loosens anything."""

_JSON5_BYTES = 64 * 1024
"""json5 needs about 15 ms a kilobyte; a larger file is not tried."""
_FLAT_OBJECT = re.compile(r'\{(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+\}', re.DOTALL)
_SPEAKS_OF_RULES = re.compile(r"permission|decision|deny", re.IGNORECASE)
_SWITCH = re.compile(r'"(disabledPlugins|onlyPlugins|safeMode|profile)"\s*:\s*(\[[^\[\]{}]*+\]|true|"remote")')


def salvage_layer(layer: Layer) -> tuple[Layer, bool]:
    """Return what holds of a text that is not JSONC, and whether it is JSON5."""
    value = _as_json5(layer.text)
    if value is not None:
        kept = without_allows(Layer(layer.source, value, layer.file, is_file=True))
        disabled = value.get("disabledPlugins")
        own = {"disabledPlugins": disabled} if isinstance(disabled, list) else {}
        return replace(kept, value=merged(kept.value, own)), True
    rules = list(salvage_denies(layer.text))
    lines: Lines = {(*RULES, index): line for index, (_, line) in enumerate(rules)}
    value = merged(dict(_switches(layer.text)), nested(RULES, [rule for rule, _ in rules]) if rules else {})
    lost = "the file cannot be read, and rules in it may be lost" if _SPEAKS_OF_RULES.search(layer.text) else ""
    return Layer(layer.source, value, layer.file, is_file=True, lines=lines, lost=lost), False


def without_allows(layer: Layer) -> Layer:
    """Return of `layer` what loosens nothing, and of its rules all that are not plainly an allow."""
    lost = next((rule.problem for rule in lost_rules(layer)), "")
    value: dict[str, Any] = {}
    for name, fits in HARMLESS.items():
        found = layer.find(name.split("."))
        if found is not MISSING and fits(found):
            value = merged(value, nested(name.split("."), found))
    rules = layer.find(RULES)
    if not isinstance(rules, list):
        return Layer(layer.source, value, layer.file, is_file=True, lost=lost)
    kept = [(index, rule) for index, rule in enumerate(rules) if not _plainly(rule, "allow")]
    value = merged(value, nested(RULES, [rule for _, rule in kept]))
    lines: Lines = {}
    for place, (index, _) in enumerate(kept):
        if line := layer.position((*RULES, index))[0]:
            lines[(*RULES, place)] = line
    return Layer(layer.source, value, layer.file, is_file=True, lines=lines, lost=lost)


def denies_of(layer: Layer) -> Layer:
    """Return the denies of a salvaged layer alone, and what may be one: what was written last is added to what held before."""
    rules = layer.find(RULES)
    kept = [rule for rule in rules if not _plainly(rule, "ask")] if isinstance(rules, list) else []
    return Layer(layer.source, nested(RULES, kept) if kept else {}, layer.file, is_file=True, lines=layer.lines)


def _as_json5(text: str) -> dict[str, Any] | None:
    if len(text) > _JSON5_BYTES:
        return None
    import json5

    try:
        value = json5.loads(text, allow_duplicate_keys=False)
        json.dumps(value, ensure_ascii=False).encode()  # half a character could not be printed later
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _plainly(rule: Any, decision: str) -> bool:
    """Whether `rule` is one that says `decision`, without a word that nobody knows."""
    return isinstance(rule, Mapping) and rule.keys() == {"domain", "pattern", "decision"} and rule["decision"] == decision


def _blanked(text: str) -> str:
    with contextlib.suppress(JsoncError):
        return blank(text)
    return text


def _switches(text: str) -> Iterator[tuple[str, Any]]:
    """Yield which plugins a person does not want, as far as that can still be read."""
    for match in _SWITCH.finditer(_blanked(text)):
        with contextlib.suppress(ValueError):
            value = json.loads(match[2])
            if isinstance(value, {"safeMode": bool, "profile": str}.get(match[1], list)):
                yield match[1], value


def salvage_denies(text: str) -> Iterator[tuple[dict[str, str], int]]:
    """Yield what can still be read as a deny rule in a text that does not parse, with its line."""
    text = _blanked(text)
    for match in _FLAT_OBJECT.finditer(text):
        try:
            pairs = json.loads(match.group(), object_pairs_hook=list)
        except (ValueError, RecursionError):
            continue
        rule = {key: value for key, value in pairs if isinstance(value, str)}
        decisions = [value for key, value in pairs if key == "decision"]
        if "deny" in decisions and rule.get("domain") in DOMAINS and "pattern" in rule:
            yield {**{key: rule[key] for key in ("domain", "pattern")}, "decision": "deny"}, position(text, match.start())[0]

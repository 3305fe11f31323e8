"""Build the layers: user file, environment, inline, flags. Nothing in a file can stop the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moryflow_sdk import ConfigError

from .files import Unreadable, read_source
from .jsonc import JsoncError, parse
from .layers import Layer, dotted, merged, nested
from .problems import Problem, SourceName
from .rules import RULES, salvage_denies

HARMLESS = ("$schema", "language", "model", "limits", "agents.runtime.agent", "agents.runtime.truncation")
"""What a file that others can write to, or that is not plain JSONC, may still set; none of it loosens anything (R17)."""

Lines = dict[tuple[str | int, ...], int]

_JSON5_BYTES = 64 * 1024
"""json5 needs about 15 ms a kilobyte; a larger file is not tried."""


def user_layer(path: Path, problems: list[Problem], *, asked_for: bool = False) -> Layer:
    """Read the user's file; one that is missing means defaults."""
    try:
        return _file_layer(path, "user", problems)
    except FileNotFoundError:
        if asked_for:
            hint = "MORYFLOW_CONFIG names it"
            problems.append(Problem(str(path), None, None, "there is no such file", hint, code="config_missing"))
        return Layer("user", {}, str(path), is_file=True)
    except Unreadable as error:
        problems.append(Problem(str(path), None, None, error.message, error.hint, fatal=True, code=error.code))
        return Layer("user", {}, str(path), is_file=True)


def _file_layer(path: Path, source: SourceName, problems: list[Problem]) -> Layer:
    found = read_source(path)
    layer = Layer(source, {}, str(path), found.text, is_file=True)
    try:
        value = _parsed(found.text)
    except JsoncError as error:
        return _salvaged(layer, error, problems)
    layer = _finite(Layer(source, value, str(path), found.text, is_file=True), problems)
    if not found.distrust:
        return layer
    message = f"this file gives no allow rules and loosens nothing, because {found.distrust}"
    hint = f"chmod go-w {path}" if "write" in found.distrust else f"chown it to yourself: {path}"
    problems.append(Problem(str(path), None, None, message, hint, code="config_permissions"))
    return _restricted(layer, ("ask", "deny"))


def _parsed(text: str) -> dict[str, Any]:
    value = parse(text)
    if not isinstance(value, dict):
        raise JsoncError("a configuration is an object: { … }", 1, 1)
    return value


def _salvaged(layer: Layer, error: JsoncError, problems: list[Problem]) -> Layer:
    """Keep of a text that is not JSONC what cannot loosen anything: harmless settings and readable denies."""
    value = _as_json5(layer.text)
    if value is not None:
        hint = "only JSON5 reads this; write it as JSON with comments (names and texts in double quotes)"
        kept = _restricted(Layer(layer.source, value, layer.file, is_file=True), ("deny",))
    else:
        hint = "defaults and the deny rules that can still be read hold until it is mended"
        rules = list(salvage_denies(layer.text))
        lines: Lines = {(*RULES, index): line for index, (_, line) in enumerate(rules)}
        value = nested(RULES, [rule for rule, _ in rules]) if rules else {}
        kept = Layer(layer.source, value, layer.file, is_file=True, lines=lines)
    message = f"this is not JSON with comments: {error.message}"
    problems.append(Problem(layer.file, error.line, error.column, message, hint, fatal=True, code="config_syntax"))
    return kept


def _as_json5(text: str) -> dict[str, Any] | None:
    if len(text) > _JSON5_BYTES:
        return None
    import json5

    try:
        value = json5.loads(text, allow_duplicate_keys=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _restricted(layer: Layer, decisions: tuple[str, ...]) -> Layer:
    value: dict[str, Any] = {}
    for path in (("$schema",), *(tuple(name.split(".")) for name in HARMLESS[1:])):
        found = layer.find(path)
        if found is not None and _plain(found):
            value = merged(value, nested(path, found))
    rules = layer.find(RULES)
    if isinstance(rules, list):
        kept = [(index, rule) for index, rule in enumerate(rules) if _decides(rule, decisions)]
        value = merged(value, nested(RULES, [rule for _, rule in kept]))
        lines: Lines = {}
        for place, (index, _) in enumerate(kept):
            if line := layer.position((*RULES, index))[0]:
                lines[(*RULES, place)] = line
        return Layer(layer.source, value, layer.file, is_file=True, lines=lines)
    return Layer(layer.source, value, layer.file, is_file=True)


def _plain(value: Any) -> bool:
    return isinstance(value, str | dict)


def _decides(rule: Any, decisions: tuple[str, ...]) -> bool:
    return isinstance(rule, Mapping) and isinstance(rule.get("decision"), str) and rule["decision"] in decisions


def _finite(layer: Layer, problems: list[Problem]) -> Layer:
    """Drop numbers that became infinite, for example 1e400."""
    places: list[tuple[str | int, ...]] = []
    _walk(layer.value, (), places.append)
    message = "the number is too large; the default holds"
    problems.extend(layer.problem(place, f"{dotted(place)}: {message}", code="config_value") for place in places)
    for place in reversed(places):
        layer = layer.without(place)
    return layer


def _walk(value: Any, path: tuple[str | int, ...], report: Callable[[tuple[str | int, ...]], None]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        report(path)
    elif isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            _walk(item, (*path, name), report)


def inline_layer(inline: str, problems: list[Problem]) -> Layer:
    """Read ``--config``: JSON text, or the path of a file.

    :raises ConfigError: it cannot be read or parsed; a wrong flag ends the command.
    """
    if not inline.lstrip().startswith(("{", "[")):
        return _inline_file(Path(inline).expanduser(), problems)
    try:
        value = _parsed(inline)
    except JsoncError as error:
        where = f"--config:{error.line}:{error.column}"
        raise ConfigError(f"the inline configuration is not JSON: {error.message}", where=where) from error
    return _finite(Layer("inline", value, "--config", inline), problems)


def _inline_file(path: Path, problems: list[Problem]) -> Layer:
    found: list[Problem] = []
    try:
        layer = _file_layer(path, "inline", found)
    except FileNotFoundError as error:
        raise ConfigError("there is no such file", where=str(path), next_step="pass JSON text or the path of a file") from error
    except Unreadable as error:
        raise ConfigError(error.message, where=str(path), next_step=error.hint) from error
    for problem in found:
        if problem.code == "config_syntax":
            raise ConfigError(problem.message, where=problem.where, next_step=problem.hint)
    problems.extend(found)
    return layer


def _switch(text: str) -> bool:
    return text.strip().casefold() not in ("", "0", "false", "no", "off")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


ENVIRONMENT: Mapping[str, tuple[str, Callable[[str], Any], bool]] = {
    "MORYFLOW_MODEL": ("model", str.strip, False),
    "MORYFLOW_PLUGINS": ("onlyPlugins", _names, True),
    "MORYFLOW_SAFE_MODE": ("safeMode", _switch, False),
    "MORYFLOW_STRICT": ("strict", _switch, False),
    "MORYFLOW_TRACE": ("trace", _switch, False),
    "MEMORY_BANK_GUARD_MODE": ("agents.runtime.memoryBank.guardMode", lambda text: text.strip().casefold(), False),
}
"""Variable → its dotted key, how it is read, and whether it counts when it is empty."""


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Return what the environment sets."""
    value: dict[str, Any] = {}
    names: dict[str, str] = {}
    for variable, (key, read, even_empty) in ENVIRONMENT.items():
        if variable in environ and (environ[variable].strip() or even_empty):
            value = merged(value, nested(key.split("."), read(environ[variable])))
            names[key.partition(".")[0]] = variable
    return Layer("environment", value, "environment", names=names)


def flag_layer(flags: Mapping[str, Any]) -> Layer:
    """Return what the command line's flags set; ``None`` is a flag that was not given."""
    value: dict[str, Any] = {}
    for key, setting in flags.items():
        if setting is not None:
            value = merged(value, nested(key.split("."), setting))
    return Layer("flag", value, "flag")

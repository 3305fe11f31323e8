"""Settings by their dotted keys: the effective value, what of it may be shown, and whether a new value is valid."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moryflow_sdk import ConfigError
from moryflow_sdk.support.secrets import masked

from moryflow.config import Config

from .checks import drop_bad_values, unknown_keys
from .layers import MISSING, RULES, Layer, merged, nested, read_rules, value_at
from .schema import Known, defaults, host_models


def effective(config: Config, known: Sequence[Known]) -> dict[str, Any]:
    """Return the settings that hold: those of the layers, over the defaults of `known`."""
    return merged(defaults(known), config.get(""))


def leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting with its dotted key; lists are one value."""
    for key, item in value.items():
        dotted = f"{path}.{key}" if path else key
        if isinstance(item, Mapping) and item:
            yield from leaves(item, dotted)
        else:
            yield dotted, item


def without_secrets(tree: Mapping[str, Any], known: Sequence[Known]) -> dict[str, Any]:
    """Return settings with ``[redacted]`` in the place of every secret: by its name, or by its type in a model of `known`."""
    shown = masked(tree)
    for path, model in known:
        place = path.split(".") if path else ()
        section = value_at(shown, place)
        if section is not MISSING:
            shown = merged(shown, nested(place, masked(section, [model])))
    return shown


def shown_at(key: str, value: object, known: Sequence[Known]) -> Any:
    """Return what is shown of the value of `key`."""
    path = key.split(".")
    return value_at(without_secrets(nested(path, value), known), path)


def default_of(known: Sequence[Known], key: str) -> Any:
    """Return the default of `key`, ``None`` where it has none."""
    found = value_at(defaults(known), key.split("."))
    return None if found is MISSING else found


def check_value(known: Sequence[Known], key: str, text: str) -> Any:
    """Return `text` as the value of `key`: as JSON where that is valid, else as plain text.

    :raises ConfigError: the key is not known, or the value is not valid for it.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    problems = _problems(known, key, value)
    if problems and isinstance(value, int | float | None) and not _problems(known, key, text):
        return text
    if problems:
        first = problems[0]
        hint = first.hint or f"moryflow config explain {key}"
        said = first.message
        for end in ("; the default is used", "; the entry is left out", "; it is ignored"):
            said = said.removesuffix(end)
        raise ConfigError(said, where="" if key in said else key, next_step=hint)
    return value


def refuse_unknown(known: Sequence[Known], key: str) -> None:
    """Say so when no setting is called `key`.

    :raises ConfigError: likewise.
    """
    for problem in unknown_keys(Layer("user", nested(key.split("."), None), key), known):
        where = "" if key in problem.message else key
        raise ConfigError(problem.message, where=where, next_step=problem.hint or "moryflow config show --all")


def _problems(known: Sequence[Known], key: str, value: object) -> list[Any]:
    layer = Layer("user", nested(key.split("."), value), key)
    host = len(host_models())
    _, of_host = drop_bad_values(layer, known[:host], strict=True)
    _, of_others = drop_bad_values(layer, known[host:])
    wrong_rules = _wrong_rules(layer) if key == ".".join(RULES) else []
    return [*unknown_keys(layer, known), *of_host, *of_others, *wrong_rules]


def _wrong_rules(layer: Layer) -> list[Any]:
    if not isinstance(layer.find(RULES), list):
        return [layer.problem(RULES, "the rules must be a list", code="rule_invalid")]
    return read_rules(layer)[1]

"""Report keys that no setting has, with what was probably meant."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, Union, get_args, get_origin

from moryflow_sdk.support.texts import nearest

from .checks import TIGHTENING
from .layers import MOST, Layer, Problem, dotted, holds_deny, merged, nested
from .schema import RULES_PATH, Known

ELSEWHERE = {
    "modelsettings": "agents.runtime.prompt.params",
    "mcpservers": "mcp.servers",
    "permissions": "agents.runtime.permission.rules",
    "systemprompt": "agents.runtime.prompt.text",
    "tools": "agents.runtime.tools",
    "plugin": "plugins",
}
"""Names that other systems, and agent files, have for settings; in small letters."""

_VARIABLE = re.compile(r"\$\{[^}]*\}|\$[A-Za-z_]\w*|\{env:[^}]*\}|%[A-Za-z_]\w*%")

_ALL: Any = object()
"""In the place of a value: every section is wanted."""

FEW = 6
"""As many names are listed where none is near."""


def unknown_keys(layer: Layer, known: Iterable[Known]) -> list[Problem]:
    """Report every key that no model declares, with the name that was probably meant."""
    known = list(known)
    shape = _shape_below(known, layer.value)
    found = list(_Search(layer, shape).compare((), layer.value, shape))
    if found:  # what was meant may stand in any section
        shape = _shape_below(known, _ALL)
        found = list(_Search(layer, shape).compare((), layer.value, shape))
    return [*found, *_unfilled(layer, (), layer.value)]


def _shape_below(known: Iterable[Known], value: Any) -> dict[str, Any]:
    """Return the names of all settings; those of a section only where `value` has it: to read types takes time at a start."""
    shape: dict[str, Any] = nested(RULES_PATH.split("."), None)
    for path, model in reversed(list(known)):
        names = path.split(".") if path else []
        shape = merged(shape, nested(names, _shape(model, reduce(_below, names, value))))
    return shape


def _unfilled(layer: Layer, path: tuple[str | int, ...], value: Any) -> Iterator[Problem]:
    """Report texts that look as if a variable were filled in, which nothing does."""
    if isinstance(value, Mapping | list) and ".".join(map(str, path)) != RULES_PATH:
        for name, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _unfilled(layer, (*path, name), item)
    elif isinstance(value, str) and len(value) < 80 and _VARIABLE.fullmatch(value):
        text = f"{dotted(path)}: {value!r} is taken as it stands: variables are not filled in"
        yield layer.problem(path, text, "write the value itself", code="config_value")


@dataclass(frozen=True, slots=True)
class Entries:
    """A list, and the shape of each of its entries."""

    shape: Any


class _Search:
    """One comparison of a layer with the settings there are; it ends with the fiftieth report."""

    def __init__(self, layer: Layer, shape: Mapping[str, Any]) -> None:
        self._layer, self._whole = layer, shape
        self._reports = 0

    def compare(self, path: tuple[str | int, ...], value: Any, shape: Any) -> Iterator[Problem]:
        """Yield a report for each key of `value`, which stands at `path`, that is not in `shape`."""
        if isinstance(value, list) and isinstance(shape, Entries):
            for index, item in enumerate(value):
                yield from self.compare((*path, index), item, shape.shape)
        if not isinstance(value, Mapping) or not isinstance(shape, Mapping):
            return
        for key, item in value.items():
            if self._reports >= MOST:
                return  # looking for what was meant takes time, and nobody reads on
            place, inner = (*path, key), shape.get(key, shape.get("*"))
            if key in shape or inner is not None:
                yield from self.compare(place, item, inner)
                continue
            self._reports += 1
            text = f'unknown key "{dotted(place)}"'
            meant, hint = self._meant(path, str(key), shape)
            lost = (meant or place)[:1] in TIGHTENING or holds_deny({key: item})
            yield self._layer.problem(place, text, hint, code="config_unknown_key", fatal=lost)

    def _meant(self, path: tuple[str | int, ...], key: str, shape: Mapping[str, Any]) -> tuple[tuple[str | int, ...], str]:
        """Return where `key` probably belongs, if that can be said: in the same section or elsewhere; and a hint."""
        names = [name for name in shape if name != "*"]
        folded = {name.casefold().replace("_", "").replace("-", ""): name for name in names}
        plain = key.casefold().replace("_", "").replace("-", "")
        if near := nearest(plain, folded):
            return (*path, folded[near]), f'did you mean "{folded[near]}"?'
        other = ELSEWHERE.get(plain) or next((place for place in _places(self._whole) if place.endswith(f".{key}")), "")
        if other and other != dotted((*path, key)):
            return tuple(other.split(".")), f'did you mean "{other}"?'
        if path and len(names) <= FEW:
            return (), f"it has {', '.join(names)}"
        return (), "moryflow config show --all"


def _places(shape: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, inner in shape.items():
        if name == "*":
            continue
        place = f"{path}.{name}".removeprefix(".")
        yield place
        if isinstance(inner, Mapping):
            yield from _places(inner, place)


def _below(value: Any, key: str) -> Any:
    """Return what `value` has in a section, nothing where it has none."""
    return value if value is _ALL else value.get(key) if isinstance(value, Mapping) else None


def _shape(model: Any, value: Any) -> dict[str, Any]:
    names = {field.alias or name: field for name, field in model.model_fields.items()}
    wanted = names if value is _ALL else value if isinstance(value, Mapping) else ()
    shape = {name: _inner(field.annotation, _below(value, name)) if name in wanted else None for name, field in names.items()}
    if getattr(model, "model_config", {}).get("extra") == "allow":
        shape["*"] = True
    return shape


def _inner(annotation: Any, value: Any) -> Any:
    """Return the shape below a field: of a model, ``{"*": …}`` for a mapping, else nothing."""
    if hasattr(annotation, "model_fields"):
        return _shape(annotation, value)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _inner(inner[0], value)
    if origin in (Union, types.UnionType):
        return next((found for found in (_inner(each, value) for each in inner) if found), None)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"*": _inner(inner[1], _ALL) or True}
    if origin in (tuple, list):
        shape = _inner(inner[0], _ALL)
        return Entries(shape) if shape else None
    return None

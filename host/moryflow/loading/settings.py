"""A plugin's own settings, checked against its ``config_model``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from moryflow_sdk import freeze, thaw
from pydantic import BaseModel, ValidationError

from moryflow.kernel.records import ConfigReader, LoadFailure

from .manifest import Manifest


def settings_of(name: str, tier: str, manifest: Manifest, config: ConfigReader) -> tuple[Any, LoadFailure | None]:
    """Return a plugin's settings, and what is wrong with them though the plugin can go on.

    A built-in goes on with its defaults in place of the wrong keys, for without it the host would be less safe; any other
    plugin fails.

    :raises LoadFailure: a value is wrong, with the file and line that hold it.
    """
    path = manifest.config_path or f"plugins.{name}"
    given: Any = config.section(path) or {}
    if not isinstance(given, Mapping):
        failure = _failure(path, (), f"must be an object, not {given!r}", config)
        if tier != "builtin":
            raise failure
        return _valid(name, manifest, {}), failure
    values = cast("Mapping[str, Any]", given)
    try:
        return _valid(name, manifest, values), None
    except ValidationError as error:
        failure = _failure(path, error.errors()[0]["loc"], _said(error), config)
        if tier != "builtin":
            raise failure from error
        return _without(name, manifest, values, error), failure


def _valid(name: str, manifest: Manifest, values: Mapping[str, Any]) -> Any:
    model = manifest.config_model
    if model is None:
        return freeze(values)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise LoadFailure("config", f"config_model of {name!r} is not a pydantic model")
    try:
        return model.model_validate(values)
    except ValidationError:
        raise
    except Exception as error:  # a validator of the plugin's own may raise anything
        raise LoadFailure("config", f"config_model failed: {type(error).__name__}: {error}") from error


def _without(name: str, manifest: Manifest, values: Mapping[str, Any], error: ValidationError) -> Any:
    """Return the settings with defaults in place of the wrong ones, or all defaults if that is not enough."""
    left = thaw(values)
    for place in sorted({_removable(left, wrong["loc"]) for wrong in error.errors()}, key=_last_first):
        _remove(left, place)
    for attempt in (left, {}):
        try:
            return _valid(name, manifest, attempt)
        except ValidationError as again:
            error = again
    raise LoadFailure("config", f"its own defaults are not valid: {_said(error)}") from error


Place = tuple[int | str, ...]


def _removable(values: Any, place: Sequence[int | str]) -> Place:
    """Return the deepest part of `place` that exists; of a list the whole entry, for half a one is not what was written."""
    found: list[int | str] = []
    for part in place:
        if not _holds(values, part):
            break
        found.append(part)
        values = values[part]
        if isinstance(part, int):
            break
    return tuple(found or place[:1])


def _holds(values: Any, part: int | str) -> bool:
    if isinstance(values, dict):
        return part in values
    return isinstance(values, list) and isinstance(part, int) and part < len(values)


def _last_first(place: Place) -> tuple[str, int]:
    """Sort so that removing one entry of a list does not move those that are removed after it."""
    numbers = [part for part in place if isinstance(part, int)]
    return (".".join(str(part) for part in place if isinstance(part, str)), -numbers[0] if numbers else 0)


def _remove(values: Any, place: Place) -> None:
    """Remove what stands at `place`, if it is there."""
    for part in place[:-1]:
        values = values[part]
    if place and _holds(values, place[-1]):
        del values[place[-1]]


def _failure(path: str, place: Sequence[int | str], text: str, config: ConfigReader) -> LoadFailure:
    dotted = ".".join([path, *(str(part) for part in place)])
    origin = None
    for length in range(len(place), -1, -1):
        origin = origin or config.origin(".".join([path, *(str(part) for part in place[:length])]))
    file, line = getattr(origin, "file", None) or "", getattr(origin, "line", None) or 0
    return LoadFailure("config", f"{dotted}: {text}", file=str(file), line=line, hint=f"moryflow config explain {dotted}")


def _said(error: ValidationError) -> str:
    first = error.errors()[0]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{first['msg']}, not {first['input']!r:.80}{more}"

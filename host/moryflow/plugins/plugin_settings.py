"""A plugin's own settings, checked against its ``config_model``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from moryflow_sdk import freeze
from moryflow_sdk.support.secrets import hide, know, masked, names_secret, secret_values
from moryflow_sdk.support.settings import Settings, not_valid

from moryflow.hooks.plugin_set import ConfigReader, LoadFailure

from .manifest import Manifest

if TYPE_CHECKING:
    from pydantic import ValidationError


def settings_of(name: str, tier: str, manifest: Manifest, config: ConfigReader) -> tuple[Any, LoadFailure | None]:
    """Return a plugin's settings, and what is wrong with them though the plugin can go on.

    A built-in goes on without the wrong values, for without it the host would be less safe; any other plugin fails.

    :raises LoadFailure: a value is wrong, with the file and line that hold it.
    """
    path = manifest.config_path or f"plugins.{name}"
    given: Any = config.section(path) or {}
    if not isinstance(given, Mapping):
        failure = _failure(path, (), f"must be an object, not {given!r}", config)
        if tier != "builtin":
            raise failure
        return _what_holds(name, manifest, path, config), failure
    values = cast("Mapping[str, Any]", given)
    know(secret_values(values, [manifest.config_model]))
    try:
        return _valid(name, manifest, values), None
    except not_valid() as error:
        first = error.errors()[0]
        failure = _failure(path, first["loc"], _said(error, manifest.config_model), config, missing=first["type"] == "missing")
        if tier != "builtin":
            raise failure from error
        return _what_holds(name, manifest, path, config), failure


def _valid(name: str, manifest: Manifest, values: Mapping[str, Any]) -> Any:
    model = manifest.config_model
    if model is None:
        return freeze(values)
    if not _is_model(model):
        raise LoadFailure("config", f"config_model of {name!r} is not a pydantic model")
    try:
        return model.model_validate(values)
    except not_valid():
        raise
    except Exception as error:  # a validator of the plugin's own may raise anything
        raise LoadFailure("config", f"config_model failed: {type(error).__name__}: {hide(str(error))}") from error


def _is_model(model: Any) -> bool:
    if not isinstance(model, type):
        return False
    if issubclass(model, Settings):
        return True
    from pydantic import BaseModel

    return issubclass(model, BaseModel)


def _what_holds(name: str, manifest: Manifest, path: str, config: ConfigReader) -> Any:
    """Return the settings without what is wrong: a key has the value of the next layer that gives it a good one."""
    model = manifest.config_model
    kept = config.checked(((path, model),)).section(path) if model is not None else {}
    try:
        return _valid(name, manifest, kept)
    except not_valid():
        pass  # what is good by itself is not good together
    try:
        return _valid(name, manifest, {})
    except not_valid() as error:
        raise LoadFailure("config", f"its own defaults are not valid: {_said(error)}") from error


def _failure(path: str, place: Sequence[int | str], text: str, config: ConfigReader, *, missing: bool = False) -> LoadFailure:
    dotted = ".".join([path, *(str(part) for part in place)])
    origin = None
    for length in range(len(place), -1, -1):
        origin = origin or config.origin(".".join([path, *(str(part) for part in place[:length])]))
    file, line = getattr(origin, "file", None) or "", getattr(origin, "line", None) or 0
    hint = f"moryflow config set {dotted} VALUE" if missing else f"moryflow config explain {dotted}"
    if missing and names_secret(dotted) and path.startswith("plugins."):
        hint = f"moryflow plugin key set {path.removeprefix('plugins.')} {dotted.removeprefix(f'{path}.')}"
    return LoadFailure("config", f"{dotted}: {text}", file=str(file), line=line, hint=hint)


def _said(error: ValidationError, model: Any = None) -> str:
    first = error.errors()[0]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "missing":
        return f"it is needed and is not set{more}"
    shown = _shown(first["loc"], first["input"], model)
    return f"{hide(first['msg'])}, not {shown!r:.80}{more}"


def _shown(place: Sequence[int | str], value: Any, model: Any) -> Any:
    """Return what was given at a place, without secrets."""
    for name in reversed(place):
        value = {name: value} if isinstance(name, str) else [value]
    shown = masked(value, [model])
    for name in place:
        shown = shown[name] if isinstance(name, str) else shown[0]
    return shown

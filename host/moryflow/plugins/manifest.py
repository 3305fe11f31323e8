"""A plugin's manifest, from ``plugin.toml``, which is read without importing code, or from attributes of its module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from moryflow_sdk import API, APIS, freeze
from moryflow_sdk.services import SERVICES
from moryflow_sdk.support.own_files import open_regular
from moryflow_sdk.support.secrets import hide, know, masked, names_secret, secret_values
from moryflow_sdk.support.settings import Settings, not_valid
from moryflow_sdk.support.texts import nearest

from moryflow.hooks.plugin_set import LoadFailure, PluginSet

if TYPE_CHECKING:
    from pydantic import ValidationError

    from moryflow.config.schema import Known


# The attributes of a plugin's module that belong to its manifest.
ATTRIBUTES = ("version", "api", "requires_moryflow", "services", "gate", "config_path", "config_model")


class ConfigReader(Protocol):
    """The part of the configuration that loading needs."""

    def section(self, dotted: str) -> Mapping[str, Any]: ...

    def origin(self, dotted: str) -> Any:
        """Return an object with the ``file`` and ``line`` that set a value, or ``None``."""
        ...

    def checked(self, known: Iterable[tuple[str, Any]]) -> ConfigReader:
        """Return the configuration without the values that `known`, models by dotted path, do not accept."""
        ...


class Manifest(NamedTuple):
    """The checked manifest of a plugin.

    :param gate: whether every call must at least be asked about while this plugin is not loaded.
    :param config_path: dotted path of its settings; empty means ``plugins.<name>``.
    """

    version: str = ""
    services: tuple[str, ...] = ()
    gate: bool = False
    config_model: Any = None
    config_path: str = ""


def read_manifest(file: Path, name: str) -> Manifest:
    """Return the manifest in a ``plugin.toml``.

    :param name: the name the plugin was found under; a ``name`` in the manifest must be the same.
    :raises LoadFailure: the file cannot be read or parsed, or has an invalid value.
    """
    import tomllib

    try:
        with open_regular(file) as stream:  # opening a named pipe would block the host forever
            text = stream.read().decode("utf-8")
        values = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LoadFailure("manifest", f"the manifest cannot be read: {reason}", file=str(file)) from error
    except (ValueError, RecursionError) as error:  # also for numbers of thousands of digits and endless nesting
        raise LoadFailure("manifest", f"the manifest is not valid TOML: {error}", file=str(file)) from error
    try:
        return manifest_in(values, name)
    except LoadFailure as error:
        line = _line_of(text, error.message)
        raise LoadFailure("manifest", error.message, file=str(file), line=line, hint=error.hint) from None


def manifest_in(values: Mapping[str, Any], name: str) -> Manifest:
    """Return the manifest of the parsed content of a ``plugin.toml``.

    :raises LoadFailure: a value is invalid.
    """
    declared = values.get("name", name)
    if declared != name:
        raise LoadFailure("manifest", f"the manifest says name = {declared!r}, but the plugin was found as {name!r}")
    hooks = values.get("hooks", ())
    if not isinstance(hooks, list | tuple):
        raise LoadFailure("manifest", f"`hooks` must be a list of hook names, not {hooks!r:.100}")
    return _manifest({**values, "gate": values.get("gate", "tool_gate" in hooks)})


def manifest_of(plugin: Any, base: Manifest | None) -> Manifest:
    """Return the manifest of a loaded plugin from its attributes; if it has a ``plugin.toml``, `base`, that overrides them.

    :raises LoadFailure: an attribute has an invalid value.
    """
    given = {name: getattr(plugin, name, None) for name in ATTRIBUTES}
    # A submodule or a function may have the name of an attribute, and is not part of the manifest.
    other = (ModuleType, FunctionType, MethodType)
    attributes = {name: value for name, value in given.items() if value is not None and not isinstance(value, other)}
    model = attributes.pop("config_model", None)
    if base is not None:
        return base._replace(config_model=model, config_path=base.config_path or str(attributes.get("config_path", "")))
    return _manifest(attributes)._replace(config_model=model)


def _manifest(values: Mapping[str, Any]) -> Manifest:
    api = values.get("api", API)
    if api not in APIS or isinstance(api, bool):
        raise LoadFailure(
            "manifest",
            f"api = {api!r}: it was written for another version of the SDK; this host speaks api = {_listed(APIS)}",
            hint="update the plugin or moryflow",
        )
    _check_host(values.get("requires_moryflow", ""))
    gate, path = values.get("gate", False), values.get("config_path", "")
    if not isinstance(gate, bool):
        raise LoadFailure("manifest", f"`gate` must be true or false, not {gate!r}")
    if not isinstance(path, str):
        raise LoadFailure("manifest", f"`config_path` must be text, not {path!r}")
    version = values.get("version", "")
    return Manifest(str(version), _services(values.get("services", ())), gate, None, path)


def _listed(apis: Sequence[int]) -> str:
    return " and ".join(map(str, apis))


def _check_host(wanted: Any) -> None:
    if wanted == "":
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    from moryflow import __version__

    try:
        fits = SpecifierSet(wanted).contains(__version__, prereleases=True)
    except (InvalidSpecifier, TypeError, AttributeError) as error:
        problem = f'`requires_moryflow` must say which versions, such as ">=0.1", not {wanted!r:.100}'
        raise LoadFailure("manifest", problem) from error
    if not fits:
        hint = "update moryflow, or ask the plugin's author for a version that fits"
        raise LoadFailure("manifest", f"requires_moryflow = {wanted!r}, and this is Moryflow {__version__}", hint=hint)


def _services(value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        value = [name for name, wanted in cast("Mapping[str, Any]", value).items() if wanted]
    if not isinstance(value, list | tuple):
        raise LoadFailure("manifest", f"`services` must be a list of service names, not {value!r}")
    names = [str(item) for item in cast("list[Any]", value)]
    for name in names:
        if name not in SERVICES:
            raise LoadFailure("manifest", f"unknown service {name!r}", hint=nearest_or_all(name, SERVICES))
    return tuple(dict.fromkeys(names))


def nearest_or_all(name: str, known: Any) -> str:
    """Return a hint with the name in `known` nearest to `name`, or with all of them."""
    close = nearest(name, known, 0.5)
    return f"did you mean {close!r}?" if close else "there are: " + ", ".join(known)


def _line_of(text: str, message: str) -> int:
    lines = text.splitlines()
    for key in ("name", "api", "requires_moryflow", "services", "gate", "hooks", "config_path"):
        if key not in message.split(":")[0].replace("service ", "services "):
            continue
        for number, line in enumerate(lines, 1):
            if line.replace(" ", "").startswith((f"{key}=", f"[{key}]")):
                return number
    return 0


def settings_of(name: str, tier: str, manifest: Manifest, config: ConfigReader) -> tuple[Any, LoadFailure | None]:
    """Return a plugin's settings, and the failure that a built-in tolerates, or ``None``.

    A built-in is loaded without the invalid values, because the host would be less safe without it; any other plugin fails.

    :raises LoadFailure: a value is invalid; the error has the file and line that set it.
    """
    path = manifest.config_path or f"plugins.{name}"
    given: Any = config.section(path) or {}
    if not isinstance(given, Mapping):
        failure = _failure(path, (), f"must be an object, not {given!r}", config)
        if tier != "builtin":
            raise failure
        return _without_invalid(name, manifest, path, config), failure
    values = cast("Mapping[str, Any]", given)
    know(secret_values(values, [manifest.config_model]))
    try:
        return _validated(name, manifest, values), None
    except not_valid() as error:
        first = error.errors()[0]
        failure = _failure(
            path, first["loc"], _error_text(error, manifest.config_model), config, missing=first["type"] == "missing"
        )
        if tier != "builtin":
            raise failure from error
        return _without_invalid(name, manifest, path, config), failure


def _validated(name: str, manifest: Manifest, values: Mapping[str, Any]) -> Any:
    model = manifest.config_model
    if model is None:
        return freeze(values)
    if not _is_model(model):
        raise LoadFailure("config", f"config_model of {name!r} is not a pydantic model")
    try:
        return model.model_validate(values)
    except not_valid():
        raise
    except Exception as error:  # the plugin's own validators may raise anything
        raise LoadFailure("config", f"config_model failed: {type(error).__name__}: {hide(str(error))}") from error


def _is_model(model: Any) -> bool:
    if not isinstance(model, type):
        return False
    if issubclass(model, Settings):
        return True
    from pydantic import BaseModel

    return issubclass(model, BaseModel)


def _without_invalid(name: str, manifest: Manifest, path: str, config: ConfigReader) -> Any:
    """Return the settings without invalid values: each key has the value of the next layer with a valid one."""
    model = manifest.config_model
    kept = config.checked(((path, model),)).section(path) if model is not None else {}
    try:
        return _validated(name, manifest, kept)
    except not_valid():
        pass  # each value is valid by itself, but not all together
    try:
        return _validated(name, manifest, {})
    except not_valid() as error:
        raise LoadFailure("config", f"its own defaults are not valid: {_error_text(error)}") from error


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


def _error_text(error: ValidationError, model: Any = None) -> str:
    first = error.errors()[0]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "missing":
        return f"it is needed and is not set{more}"
    shown = _masked_input(first["loc"], first["input"], model)
    message = hide(first["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"{message}, not {shown!r:.80}{more}"


def _masked_input(place: Sequence[int | str], value: Any, model: Any) -> Any:
    for name in reversed(place):
        value = {name: value} if isinstance(name, str) else [value]
    shown = masked(value, [model])
    for name in place:
        shown = shown[name] if isinstance(name, str) else shown[0]
    return shown


def settings_of_plugins(plugin_set: PluginSet) -> tuple[Known, ...]:
    """Return the configuration path and the settings model of every loaded plugin that declares its settings."""
    declared = ((plugin, type(plugin.config)) for plugin in plugin_set.plugins.values())
    return tuple(
        (getattr(plugin.object, "config_path", "") or f"plugins.{plugin.name}", model)
        for plugin, model in declared
        if hasattr(model, "model_fields")
    )

"""What a plugin says about itself: ``plugin.toml``, read without importing code, or attributes of its module."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, cast

from moryflow_sdk import API
from moryflow_sdk.services import SERVICES

from moryflow.hooks.plugin_set import LoadFailure

ATTRIBUTES = ("version", "api", "services", "gate", "config_path", "config_model")
"""What a plugin's module may say about itself."""


class Manifest(NamedTuple):
    """A plugin's own words, checked.

    :param gate: losing this plugin must raise the floor.
    :param config_path: where its settings live; empty means ``plugins.<name>``.
    """

    version: str = ""
    services: tuple[str, ...] = ()
    gate: bool = False
    config_model: Any = None
    config_path: str = ""


def read_manifest(file: Path, name: str) -> Manifest:
    """Return the manifest in a ``plugin.toml``.

    :param name: the name the plugin was found under; the manifest may not say another.
    :raises LoadFailure: it cannot be read, does not parse, or says something wrong.
    """
    import tomllib

    try:
        text = file.read_text("utf-8")
        values = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise LoadFailure("manifest", f"the manifest cannot be read: {error}", file=str(file)) from error
    except (ValueError, RecursionError) as error:  # more than TOMLDecodeError: numbers of thousands of digits, endless nesting
        raise LoadFailure("manifest", f"the manifest is not valid TOML: {error}", file=str(file)) from error
    try:
        said = values.get("name", name)
        if said != name:
            raise LoadFailure("manifest", f"the manifest says name = {said!r}, but the plugin was found as {name!r}")
        hooks = values.get("hooks", ())
        if not isinstance(hooks, list | tuple):
            raise LoadFailure("manifest", "`hooks` must be a list of hook names")
        return _checked({**values, "gate": values.get("gate", "tool_gate" in hooks)})
    except LoadFailure as error:
        line = _line_of(text, error.message)
        raise LoadFailure("manifest", error.message, file=str(file), line=line, hint=error.hint) from None


def declared(plugin: Any, base: Manifest | None) -> Manifest:
    """Return what attributes of a loaded plugin say; `base`, its ``plugin.toml``, has the last word where it speaks.

    :raises LoadFailure: an attribute says something wrong.
    """
    said = {name: value for name in ATTRIBUTES if not _is_no_word(value := getattr(plugin, name, None))}
    model = said.pop("config_model", None)
    if base is not None:
        return base._replace(config_model=model, config_path=base.config_path or str(said.get("config_path", "")))
    return _checked(said)._replace(config_model=model)


def _is_no_word(value: Any) -> bool:
    """Whether an attribute says nothing: a submodule or a method may have the name of one."""
    return value is None or isinstance(value, ModuleType | FunctionType | MethodType)


def _checked(values: Mapping[str, Any]) -> Manifest:
    api = values.get("api", API)
    if api != API:
        raise LoadFailure(
            "manifest",
            f"api = {api!r}: it was written for another version of the SDK; this host speaks api = {API}",
            hint="update the plugin or moryflow",
        )
    gate, path = values.get("gate", False), values.get("config_path", "")
    if not isinstance(gate, bool):
        raise LoadFailure("manifest", f"`gate` must be true or false, not {gate!r}")
    if not isinstance(path, str):
        raise LoadFailure("manifest", f"`config_path` must be text, not {path!r}")
    version = values.get("version", "")
    return Manifest(str(version), _services(values.get("services", ())), gate, None, path)


def _services(value: Any) -> tuple[str, ...]:
    """Accept a list of names, or a table in which each used service is set to something true."""
    if isinstance(value, Mapping):
        value = [name for name, wanted in cast("Mapping[str, Any]", value).items() if wanted]
    if not isinstance(value, list | tuple):
        raise LoadFailure("manifest", f"`services` must be a list of service names, not {value!r}")
    names = tuple(str(item) for item in cast("list[Any]", value))
    for name in names:
        if name not in SERVICES:
            raise LoadFailure("manifest", f"unknown service {name!r}", hint=did_you_mean(name, SERVICES))
    return tuple(dict.fromkeys(names))


def did_you_mean(name: str, known: Any) -> str:
    """Return a hint that names what is nearest to `name`, or all there is."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "there are: " + ", ".join(known)


def _line_of(text: str, message: str) -> int:
    """Return the line of the key a message is about, 0 when it cannot be told."""
    lines = text.splitlines()
    for key in ("name", "api", "services", "gate", "hooks", "config_path"):
        if key not in message.split(":")[0].replace("service ", "services "):
            continue
        for number, line in enumerate(lines, 1):
            if line.replace(" ", "").startswith((f"{key}=", f"[{key}]")):
                return number
    return 0

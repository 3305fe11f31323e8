"""``moryflow plugin key``: give a plugin a key without showing it; it is kept apart from the configuration."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.open_host import from_host
from moryflow.cli.options import Flags, asking_options, document_options, noun
from moryflow.cli.terminal.text import plain, show

if TYPE_CHECKING:
    from moryflow.config import Config
    from moryflow.config.schema import Known
    from moryflow.hooks.plugin_set import LoadRecord
    from moryflow.runtime.host import Host

_LONGEST = 64 * 1024
_NEEDED = re.compile(r"(?<=\.)[^:]+(?=: it is needed)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


key = noun("key", "Set and remove the secrets of plugins. They are never shown.")


@key.command("set")
@click.argument("name")
@click.argument("setting", metavar="[KEY]", required=False)
@asking_options
def set_key(flags: Flags, name: str, setting: str | None) -> None:
    """Read a secret without echo, or from standard input, and keep it for the plugin NAME.

    KEY is its setting, for example api_key; where the plugin has one secret alone, it need not be named. It is written to
    secrets.json in Moryflow's folder, which only you can read and no tool, and holds over config.jsonc.
    """
    from moryflow_sdk import ConfigError
    from moryflow_sdk.support.secrets import know

    from moryflow.base.paths import home_folder
    from moryflow.config import load_config
    from moryflow.config.edit import set_value
    from moryflow.config.load import SECRETS
    from moryflow.config.values import check_value

    config, known, names = _settings_of(flags, name)
    setting = setting or _only_one(name, names)
    path = f"plugins.{name}.{setting}"
    secret = _read(path)
    know([secret])
    if any(place == f"plugins.{name}" for place, _ in known):
        import json

        check_value(known, path, json.dumps(secret))
    home = home_folder(None, os.environ)
    file = home / SECRETS
    if file.exists():
        file.chmod(0o600)
    changed = set_value(file, path, secret)
    won = load_config(home, inline=flags.config, environ=os.environ).origin(path)
    if won.source in ("environment", "inline", "flag"):
        click.echo(plain(f"moryflow: {won.source} {won.file or ''} gives another one, which is used"), err=True)
    elif won.file != str(file):
        problem = "it was stored, but is not used: the file cannot be used"
        raise ConfigError(problem, where=str(file), next_step="moryflow config check")
    own = [origin for _, origin in config.setters(path) if origin.source == "user"]
    if own:
        click.echo(plain(f"moryflow: {own[0].file}:{own[0].line} has one too: moryflow config unset {path}"), err=True)
    text = f"{path} is set ({file}, which only you can read)" if changed else f"{path} is that already ({file})"
    show(flags, {"key": path, "changed": changed, "file": str(file)}, plain(text))


@key.command("remove")
@click.argument("name")
@click.argument("setting", metavar="KEY")
@asking_options
def remove(flags: Flags, name: str, setting: str) -> None:
    """Remove a secret that was set with `plugin key set`."""
    from moryflow.base.paths import home_folder
    from moryflow.config.edit import unset
    from moryflow.config.load import SECRETS

    file = home_folder(None, os.environ) / SECRETS
    path = f"plugins.{name}.{setting}"
    changed = file.exists() and unset(file, path)
    text = f"{path} is removed ({file})" if changed else f"{path} is not in {file}"
    show(flags, {"key": path, "changed": changed, "file": str(file)}, plain(text))


@key.command("list")
@document_options
def list_keys(flags: Flags) -> None:
    """List which secrets are set, without their values."""
    from moryflow.base.paths import home_folder
    from moryflow.config import load_config

    config = load_config(home_folder(None, os.environ), environ={})
    found = [path for layer in config.layers if layer.source == "secrets" for path in _leaves(layer.value)]
    show(flags, [{"key": path} for path in found], plain("\n".join(found) or "no key is set"))


def _leaves(value: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, item in value.items():
        path = f"{above}.{name}".removeprefix(".")
        if isinstance(item, Mapping):
            yield from _leaves(item, path)
        else:
            yield path


def _settings_of(flags: Flags, name: str) -> tuple[Config, tuple[Known, ...], list[str]]:
    """Return configuration and models, and the settings of a plugin that hold secrets, as far as they are known.

    :raises ConfigError: there is no such plugin, or its settings are not below ``plugins``.
    """
    from moryflow_sdk import ConfigError
    from moryflow_sdk.support.secrets import is_secret_type, names_secret
    from moryflow_sdk.support.texts import did_you_mean

    from moryflow.config.schema import host_models
    from moryflow.runtime.generation import settings_of_plugins

    def read(host: Host) -> tuple[Config, tuple[Known, ...], list[LoadRecord]]:
        return host.config, settings_of_plugins(host.plugin_set), list(host.plugin_set.records)

    config, known, records = from_host(flags, read, quiet=True)
    record = next((record for record in records if record.name == name), None)
    if record is None:
        hint = did_you_mean(name, [record.name for record in records])
        raise ConfigError(f"there is no plugin {name!r}{hint}", next_step="moryflow plugin list")
    if record.tier == "builtin":
        problem = f"{name} is built in, and its settings are not below plugins.{name}"
        raise ConfigError(problem, next_step="moryflow config set, or the variable of the service, as in moryflow doctor")
    model = next((model for path, model in known if path == f"plugins.{name}"), None)
    fields: Iterable[tuple[str, Any]] = model.model_fields.items() if model is not None else ()
    secret = [each.alias or field for field, each in fields if names_secret(field) or is_secret_type(each.annotation)]
    needed = _NEEDED.findall(record.error) if record.stage == "config" else []
    return config, (*host_models(), *known), secret or [field.removeprefix(f"{name}.") for field in needed]


def _only_one(name: str, names: list[str]) -> str:
    """Return the one setting that can be meant.

    :raises ConfigError: it has to be named.
    """
    from moryflow_sdk import ConfigError

    if len(names) == 1:
        return names[0]
    which = f"{name} has {', '.join(names)}" if names else f"{name} does not say which of its settings is a secret"
    raise ConfigError(f"{which}: name one", next_step=f"moryflow plugin key set {name} {names[0] if names else 'KEY'}")


def _read(path: str) -> str:
    """Return what is typed without echo, or all of standard input; a line end behind it does not count.

    :raises ConfigError: there is nothing, or it is not the text of a key.
    """
    from moryflow_sdk import ConfigError

    from moryflow.cli.terminal.stdin import discard_typed

    if sys.stdin.isatty():
        discard_typed()
        given = click.prompt(path, hide_input=True, err=True, default="", show_default=False, prompt_suffix=" (not shown): ")
    else:
        given = sys.stdin.read(_LONGEST + 1)
    secret = given.strip("\r\n").replace("\r\n", "\n")
    if not secret.strip():
        name = Path(path).suffix.removeprefix(".")
        hint = f"type it at a terminal, or: moryflow plugin key set {path.split('.')[1]} {name} < FILE"
        raise ConfigError("no key was given; nothing was changed", next_step=hint)
    if len(secret) > _LONGEST or _CONTROL.search(secret):
        problem = "this is no key: it is too long, or holds control characters; nothing was changed"
        raise ConfigError(problem, next_step="give the key alone, as text")
    return secret


__all__ = ["key"]

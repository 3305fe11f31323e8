"""``moryflow plugin``: the group; `list` and `info`, which load no plugin; and `key`, which keeps the secrets of plugins apart
from the configuration and never shows them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import ConfigError

from moryflow.cli.found_plugins import FoundPlugins
from moryflow.cli.open_host import drift_notices, from_host
from moryflow.cli.options import Flags, asking_options, document_options, noun
from moryflow.cli.terminal import columns, first_line, plain, say, show
from moryflow.runtime.documents import plugin_json

from . import plugin_marketplace
from .plugin_check import check
from .plugin_install import disable, enable, install, sync, uninstall, update

if TYPE_CHECKING:
    from moryflow.config import Config
    from moryflow.config.schema import Known
    from moryflow.hooks.plugin_set import LoadRecord
    from moryflow.packages.inventory import Row
    from moryflow.runtime.host import Host


command = noun("plugin", "Install, list, check and switch plugins; a broken one can always be listed, disabled and removed.")

for verb in (install, uninstall, enable, disable, update, check, sync, plugin_marketplace.command):
    command.add_command(verb)


@command.command("list")
@document_options
def list_plugins(flags: Flags) -> int:
    """List every plugin that was found and the result of its last load. Loads none."""
    plugins = FoundPlugins(flags)
    rows = plugins.rows()
    table = columns((row.name, row.record.version or "-", row.record.tier, row.record.status, _remark(row)) for row in rows)
    for notice in () if flags.quiet else drift_notices(plugins.home, content=True):
        click.echo(notice, err=True)
    show(flags, [plugin_json(row) for row in rows], table)
    failed = any(row.record.status == "failed" for row in rows)
    return 6 if failed and (flags.strict or plugins.config.get("strict")) else 0


def _remark(row: Row) -> str:
    record = row.record
    if record.notes and not record.reason:
        return first_line(f"{len(record.notes)} left out: {record.notes[0]}", 200)
    if record.status == "loaded" and not record.error:
        return " ".join([*record.hooks, *(f"+{name}" for name in record.tools)])
    if record.error:
        return first_line(f"{record.place}: {record.error}" if record.place else record.error, 200)
    declared = " ".join([*record.hooks, *(f"+{name}" for name in record.tools)])
    return first_line(f"{record.reason} {f'[{declared}]' if declared and record.status == 'pending' else ''}".strip(), 200)


@command.command("info")
@click.argument("name")
@document_options
def info(flags: Flags, name: str) -> None:
    """Show one plugin: hooks, tools, services, import time, errors."""
    from moryflow.packages.lock import Lockfile, plugin_named

    plugins = FoundPlugins(flags)
    rows = plugins.found(name, plugins.rows())
    name = rows[0].name
    entry = plugin_named(Lockfile(plugins.home).read(), name)
    lock = entry._asdict() if entry else None
    documents = [{**plugin_json(row), "lock": lock} for row in rows]
    text = "\n\n".join(columns(_lines(row, lock)) for row in rows)
    head = f"{len(rows)} plugins have the name {name!r}; the first one is loaded\n\n" if len(rows) > 1 else ""
    document = documents[0] if len(documents) == 1 else {**documents[0], "same_name": documents[1:]}
    show(flags, document, plain(head + text))


def _lines(row: Row, lock: dict[str, Any] | None) -> list[tuple[str, Any]]:
    record, card = row.record, row.card
    lines: list[tuple[str, Any]] = [
        ("name", record.name),
        ("version", record.version),
        ("tier", record.tier),
        ("status", record.status),
        ("reason", record.reason),
        *_errors(record),
        ("hint", record.hint),
        ("source", record.source),
        ("file", record.place),
        ("hash", record.hash),
        ("hooks", ", ".join(record.hooks)),
        ("tools", ", ".join(record.tools)),
        ("services", ", ".join(record.services)),
        ("capabilities", f"{_capabilities(card.capabilities)} (declared, not enforced)" if card and card.capabilities else ""),
        ("judges calls", "yes" if record.gate else ""),
        ("import", f"{record.import_ms:.1f} ms" if row.known else ""),
        ("last loaded", row.known.at if row.known else ""),
        ("agreed to", f"{lock['version'] or lock['name']} from {lock['origin']}, {lock['hash'] or 'editable'}" if lock else ""),
    ]
    return [(key, value) for key, value in lines if value]


def _errors(record: LoadRecord) -> list[tuple[str, str]]:
    """Return the rows for a plugin's errors; each item that it had to leave out has a row of its own."""
    if record.notes and record.error == "; ".join(record.notes):
        return [("left out", note) for note in record.notes]
    return [("error", f"{record.stage}: {record.error}" if record.stage and record.error else record.error)]


def _capabilities(declared: Mapping[str, object]) -> str:
    words = {True: "yes", False: "no"}
    return ", ".join(f"{name}: {words[value] if isinstance(value, bool) else value}" for name, value in declared.items())


# ---------------------------------------------------------------- Keys


_LONGEST = 64 * 1024
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


key = noun("key", "Set the secrets of plugins. They are never shown.")
command.add_command(key)


@key.command("set")
@click.argument("name")
@click.argument("setting", metavar="KEY")
@asking_options
def set_key(flags: Flags, name: str, setting: str) -> None:
    """Read a secret without echo, or from standard input, and keep it for the plugin NAME.

    KEY is its setting, for example api_key. It is written to secrets.json in Moryflow's folder, which only you can read and
    no tool, and holds over config.jsonc.
    """
    from moryflow_sdk.support.secrets import know

    from moryflow.config import load_config
    from moryflow.config.load import SECRETS
    from moryflow.config.values import check_value, set_value

    plugins = FoundPlugins(flags)
    config, known = _settings_of(plugins, name)
    path = f"plugins.{name}.{setting}"
    secret = _read(path)
    know([secret])
    if any(place == f"plugins.{name}" for place, _ in known):
        check_value(known, path, json.dumps(secret))
    file = plugins.home / SECRETS
    if file.exists():
        file.chmod(0o600)
    changed = set_value(file, path, secret)
    won = load_config(plugins.home, inline=flags.config, environ=os.environ).origin(path)
    if won.source in ("environment", "inline", "flag"):
        say(f"moryflow: {won.source} {won.file or ''} is used instead")
    elif won.file != str(file):
        problem = "it was stored, but is not used: the file cannot be read"
        raise ConfigError(problem, where=str(file), next_step="moryflow config check")
    own = [origin for _, origin in config.setters(path) if origin.source == "user"]
    if own:
        say(f"moryflow: {own[0].file}:{own[0].line} has one too: moryflow config unset {path}")
    text = f"{path} is set ({file}, which only you can read)" if changed else f"{path} has that value already ({file})"
    show(flags, {"key": path, "changed": changed, "file": str(file)}, plain(text))


def _settings_of(plugins: FoundPlugins, name: str) -> tuple[Config, tuple[Known, ...]]:
    from moryflow.config.schema import host_models
    from moryflow.plugins.manifest import settings_of_plugins

    def read(host: Host) -> tuple[Config, tuple[Known, ...], list[LoadRecord]]:
        return host.config, settings_of_plugins(host.plugin_set), list(host.plugin_set.records)

    config, known, records = from_host(plugins.flags, read, quiet=True)
    record = next((record for record in records if record.name == name), None)
    if record is None:
        raise plugins.unknown(name, [record.name for record in records])
    if record.tier == "builtin":
        problem = f"{name} is built in, and its settings are not below plugins.{name}"
        raise ConfigError(problem, next_step="moryflow config set, or the variable of the service, as in moryflow doctor")
    return config, (*host_models(), *known)


def _read(path: str) -> str:
    """Return the secret that is typed without echo, or all of standard input, without line ends around it."""
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

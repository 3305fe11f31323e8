"""``moryflow plugin marketplace``: lists of plugins of Claude Code and Codex that the user added."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from moryflow_sdk import ConfigError
from moryflow_sdk.support.texts import did_you_mean

from moryflow.cli.found_plugins import FoundPlugins
from moryflow.cli.options import Flags, asking_options, document_options, noun
from moryflow.cli.terminal import columns, plain, say, show

command = noun("marketplace", "Add marketplaces of Claude Code and Codex, list them, and search their plugins.")


@command.command("add")
@click.argument("source", metavar="PATH|OWNER/REPO|URL")
@asking_options
def add(flags: Flags, source: str) -> None:
    """Add a marketplace: a folder, or a repository with .claude-plugin/marketplace.json. Nothing of it is installed."""
    from moryflow.base.atomic_write import write_atomically
    from moryflow.base.paths import make_folder
    from moryflow.packages.claude import MARKETS, market_plugins, markets, read_market
    from moryflow.packages.lock import FOLDER

    plugins = FoundPlugins(flags)
    address = _address(source)
    with tempfile.TemporaryDirectory(prefix="moryflow-") as folder:
        root = _root(address, Path(folder, "market"), plugins)
        found, count = read_market(root), len(market_plugins(root))
    if not count:
        raise ConfigError("it lists no plugins in .claude-plugin/marketplace.json", where=source, next_step="check the address")
    name = str(found.get("name") or Path(address).name)
    make_folder(plugins.home / FOLDER)
    known = {**markets(plugins.home), name: address}
    write_atomically(plugins.home / FOLDER / MARKETS, json.dumps(known, indent=2).encode())
    text = f"{name}: {count} plugins; moryflow plugin marketplace search WORDS, moryflow plugin install claude:PLUGIN@{name}"
    show(flags, {"name": name, "source": address, "plugins": count}, text)


@command.command("list")
@document_options
def list_markets(flags: Flags) -> None:
    """List the marketplaces that you added."""
    from moryflow.packages.claude import markets

    known = markets(FoundPlugins(flags).home)
    text = columns(known.items()) if known else "none; moryflow plugin marketplace add OWNER/REPO"
    show(flags, [{"name": name, "source": source} for name, source in known.items()], text)


@command.command("search")
@click.argument("words", nargs=-1)
@document_options
def search(flags: Flags, words: tuple[str, ...]) -> None:
    """Search names and descriptions in all marketplaces; without words, list every plugin."""
    from moryflow.packages.claude import markets

    plugins = FoundPlugins(flags)
    known = markets(plugins.home)
    if not known:
        raise ConfigError("there is no marketplace", next_step="moryflow plugin marketplace add OWNER/REPO")
    found = [row for name, source in known.items() for row in _rows(name, source, plugins)]
    wanted = [word.casefold() for word in words]
    rows = [row for row in found if all(word in f"{row['name']} {row['description']}".casefold() for word in wanted)]
    table = columns((f"{row['name']}@{row['marketplace']}", row["description"]) for row in rows)
    near = did_you_mean(words[0], [row["name"] for row in found]) if words else ""
    show(flags, rows, plain(table) or f"nothing fits{near}")


def _rows(market: str, source: str, plugins: FoundPlugins) -> Iterator[dict[str, str]]:
    from moryflow.packages.claude import market_plugins

    with tempfile.TemporaryDirectory(prefix="moryflow-") as folder:
        for entry in market_plugins(_root(source, Path(folder, "market"), plugins)):
            yield _row(market, entry)


def _row(market: str, entry: Mapping[str, Any]) -> dict[str, str]:
    about = {key: str(entry.get(key) or "") for key in ("name", "description", "version", "category")}
    return {**about, "marketplace": market}


def _root(address: str, folder: Path, plugins: FoundPlugins) -> Path:
    from moryflow.packages.claude import repository

    if not Path(address).expanduser().is_dir():
        say(f"moryflow: fetching {address}")
    return repository(address, folder, plugins.manager())[0]


def _address(source: str) -> str:
    path = Path(source).expanduser()
    if path.is_dir():
        return str(path.resolve())
    if source.count("/") == 1 and not source.startswith((".", "/", "~")):
        return f"https://github.com/{source}"
    if source.startswith(("https://", "ssh://", "git@", "file://")):
        return source
    raise ConfigError(f"{source!r} is neither a folder nor a repository", next_step="give a folder, OWNER/REPO or an address")

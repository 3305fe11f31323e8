"""``moryflow model``: the available models, the local model, and the default."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import click
from moryflow_sdk import ConfigError, ModelError
from moryflow_sdk.support.texts import hung, stdout_width

from moryflow.cli.open_host import from_host, with_host
from moryflow.cli.options import Flags, asking_options, document_options, noun
from moryflow.cli.terminal import at_terminal, columns, fitting, folded, is_dumb, plain, say, show, terminal_width
from moryflow.cli.terminal.stdin import confirm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moryflow_sdk import ModelInfo

    from moryflow.runtime.host import Host


command = noun("model", "List models, install the local one, choose a default.")


@command.command("list")
@document_options
def list_models(flags: Flags) -> None:
    """List the models worth naming; the one in use is marked with *. A provider may know many more."""
    from moryflow.runtime.documents import models_json

    rows = with_host(flags, models_json)
    lines = (f"{'*' if row['in_use'] else ' '}  {line}" for row, line in zip(rows, model_lines(rows), strict=True))
    table = "\n".join(hung(line, stdout_width()) for line in lines)
    show(flags, rows, table or "no model is known here; moryflow doctor says what would help")


def model_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each model: its name, its context window, its price, and the note about it."""
    cells = ((row["id"], _window(row), _price(row), plain(row["note"])) for row in rows)
    return columns(cells, within=0).split("\n") if rows else []


def _window(row: Mapping[str, Any]) -> str:
    return f"{row['context_window'] // 1000}k" if row["context_window"] else "-"


def _price(row: Mapping[str, Any]) -> str:
    if row["input_price"] is None or row["output_price"] is None:
        return "-"
    return f"${row['input_price']:g}/${row['output_price']:g}"


@command.command("install")
@click.argument("name", default="local")
@asking_options
def install(flags: Flags, name: str) -> None:
    """Install what a model needs on this machine; by default the small local one."""

    async def work(host: Host) -> str:
        provider = provider_of(host, name)
        if provider.installed():
            return name
        confirm(f"{name} is {_download(host, provider)}. Install it?", flags, default=True)
        return await fetch(host, provider, name, flags)

    done = with_host(flags, work)
    text = f"{done} is installed; moryflow run -m {done} …"
    show(flags, {"model": done, "installed": True}, text)


@command.command("use")
@click.argument("name")
@document_options
def use(flags: Flags, name: str) -> None:
    """Make a model the default (model in the configuration)."""
    from moryflow.config.values import set_value

    from .config import tell_overridden

    model, config = from_host(flags, lambda host: (host.models(host.plugin_set).choose(name)[1].id, host.config))
    path = config.path
    set_value(path, "model", model)
    show(flags, {"model": model, "file": str(path)}, f"{model} is the default from now on ({path})")
    tell_overridden(config, "model", flags)


@runtime_checkable
class _Installable(Protocol):
    """A provider whose models are downloaded before they can answer."""

    def install(self, progress: Callable[[str, int, int], None]) -> object: ...
    def installed(self) -> bool: ...
    def download_size(self) -> int: ...
    async def available(self) -> Sequence[ModelInfo]: ...


async def offer_model(host: Host, agent: str | None, flags: Flags) -> None:
    """If no model is configured and no key is found, offer the user at a terminal to install a model that needs no key.

    After a no, the error that follows names the variables for keys.
    """
    named = host.config.get("model") or host.agent(agent).model
    if named or host.models(host.plugin_set).default() or not at_terminal():
        return
    for provider in host.plugin_set.providers:
        if isinstance(provider, _Installable) and not provider.installed():
            [info] = await provider.available()
            say(f"No key was found. A model that needs none can be installed here: {info.name},")
            say(f"{_download(host, provider)}. It is {info.note.rpartition('; ')[2]}.")
            if flags.yes or click.confirm("Install it now?", err=True, default=True):
                await fetch(host, provider, info.id, flags)
            return


def _download(host: Host, provider: _Installable) -> str:
    return f"{provider.download_size() / 1e6:.0f} MB to download, into {host.home}"


async def ensure_model(host: Host, wish: str | None, flags: Flags) -> str | None:
    """Install what the chosen model still needs, if it is one that can be installed.

    :returns: `wish`, or the model that takes its place if it can no longer be had.
    :raises ConfigError: the installation was refused, or nobody could be asked.
    """
    name = wish or host.config.get("model")
    for provider in host.plugin_set.providers if name else ():
        if provider.find(name) is None:
            continue
        if isinstance(provider, _Installable) and not provider.installed():
            text = f"The model {name!r} is not installed yet: {_download(host, provider)}. Install it now?"
            if not flags.yes and not (sys.stdin.isatty() and click.confirm(folded(text), err=True, default=True)):
                message = f"the model {name!r} is not installed ({provider.download_size() / 1e6:.0f} MB)"
                raise ConfigError(message, next_step=f"moryflow model install {name}, or add -y")
            return await fetch(host, provider, name, flags)
        return wish
    return wish


def provider_of(host: Host, name: str) -> _Installable:
    """Return the provider that can install the model `name`.

    :raises ConfigError: no provider knows the model, or it needs no installation.
    """
    for provider in host.plugin_set.providers:
        if provider.find(name) is not None:
            if not isinstance(provider, _Installable):
                raise ConfigError(f"the model {name!r} needs no installation", next_step=f"moryflow run -m {name} …")
            return provider
    raise ConfigError(f"unknown model {name!r}", next_step="moryflow model list")


async def fetch(host: Host, provider: _Installable, name: str, flags: Flags) -> str:
    """Run a provider's installation with a progress bar on standard error.

    :returns: the model that is installed: `name`, or the one that takes its place if it can no longer be had.
    """
    quiet = flags.quiet
    if not quiet:
        say(f"installing {name!r}: {_download(host, provider)}")
        if origin := getattr(provider, "origin", ""):
            say(f"  {origin}")
    bar = ProgressBar() if terminal_width() and not is_dumb() and not quiet else None

    phases: list[str] = []

    def progress(text: str, done: int, total: int) -> None:
        if bar:
            bar.show(text, done, total)
        elif not quiet and text not in phases:
            phases.append(text)
            click.echo(f"  {text}", err=True)

    try:
        await asyncio.to_thread(provider.install, progress)
    except ModelError as error:
        instead = getattr(provider, "instead", "")
        if error.code != "withheld" or not instead:
            raise
        other = provider_of(host, instead)
        [info] = await other.available()
        say(f"{name!r} cannot be had: {error.message}")
        say(f"{instead!r} takes its place: {info.note.rpartition('; ')[2]}")
        return instead if other.installed() else await fetch(host, other, instead, flags)
    finally:
        if bar:
            bar.end()
    if not quiet:
        click.echo(f"installed {name!r}", err=True)
    return name


class ProgressBar:
    """One line, as wide at most as the terminal is at the moment: a line that wraps could not be erased."""

    def show(self, text: str, done: int, total: int) -> None:
        """Draw the share that is done, in MB if the total is known, and `text`, the current step."""
        room = terminal_width() - 1
        share = min(done / total, 1.0) if total else 0.0
        figures = f" {share:4.0%} {f'{done / 1e6:.0f} of {total / 1e6:.0f} MB ' if total else ''}"
        width = max(4, min(30, room - len(figures) - len(text)))
        line = "█" * round(share * width) + " " * (width - round(share * width)) + figures + text
        sys.stderr.write(f"\r\x1b[K{fitting(line, room)}")
        sys.stderr.flush()

    def end(self) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

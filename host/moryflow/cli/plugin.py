"""``moryflow plugin``: what was found, what loaded, what failed and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from .group import NounGroup
from .options import document_options, flags_of
from .text import columns, first_line, plain, show


@click.group("plugin", cls=NounGroup)
@document_options
def command() -> None:
    """List plugins and what they bring; switch one off or on."""


@command.command("list")
@document_options
@click.pass_context
def list_plugins(ctx: click.Context) -> None:
    """List every plugin that was found, and what became of it."""
    from .hosting import with_host

    async def work(host: Any) -> list[Any]:
        return list(host.plugin_set.records)

    records = with_host(ctx, work, quiet=True)
    table = columns((row.name, row.version or "-", row.tier, row.status, _remark(row)) for row in records)
    show(flags_of(ctx), [asdict(row) for row in records], table)


def _remark(record: Any) -> str:
    if record.status == "loaded" and not record.error:
        return " ".join([*record.hooks, *(f"+{name}" for name in record.tools)])
    place = f"{record.file}:{record.line}: " if record.file and record.line else f"{record.file}: " if record.file else ""
    return first_line(f"{place}{record.error or record.reason}", 200)


@command.command("info")
@click.argument("name")
@document_options
@click.pass_context
def info(ctx: click.Context, name: str) -> None:
    """Show one plugin: where it comes from, its hooks, tools and services, and its error if it has one."""
    from .hosting import with_host

    async def work(host: Any) -> Any:
        return _find(host.plugin_set.records, name)

    record = asdict(with_host(ctx, work, quiet=True))
    rows = [(key, ", ".join(value) if isinstance(value, list | tuple) else value) for key, value in record.items() if value]
    show(flags_of(ctx), record, plain(columns(rows)))


def _find(records: Any, name: str) -> Any:
    from difflib import get_close_matches

    from moryflow_sdk import ConfigError

    for record in records:
        if record.name == name:
            return record
    near = get_close_matches(name, [record.name for record in records], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"there is no plugin {name!r}{hint}", next_step="moryflow plugin list")


@command.command("disable")
@click.argument("name")
@document_options
@click.pass_context
def disable(ctx: click.Context, name: str) -> None:
    """Do not load a plugin from now on (disabledPlugins in the configuration)."""
    _switch(ctx, name, off=True)


@command.command("enable")
@click.argument("name")
@document_options
@click.pass_context
def enable(ctx: click.Context, name: str) -> None:
    """Load a plugin again that was disabled."""
    _switch(ctx, name, off=False)


def _switch(ctx: click.Context, name: str, *, off: bool) -> None:
    from moryflow.config.edit import set_value

    from .hosting import with_host

    async def work(host: Any) -> tuple[list[str], Any, bool]:
        listed: list[str] = list(host.config.get("disabledPlugins") or ())
        record = None if name in listed else _find(host.plugin_set.records, name)
        return listed, host.config.path, bool(record and record.gate)

    listed, path, gate = with_host(ctx, work, quiet=True)
    if off == (name in listed):
        show(flags_of(ctx), {"disabled": listed}, f"{name} is {'disabled' if off else 'not disabled'} already")
        return
    changed = [*listed, name] if off else [item for item in listed if item != name]
    set_value(path, "disabledPlugins", changed)
    if off and gate:
        click.echo(f"moryflow: {name} judges calls; without it nothing does what it did", err=True)
    show(flags_of(ctx), {"disabled": changed}, f"{name} is {'disabled' if off else 'enabled'} from the next start on ({path})")

"""Open a host for a command, run its work on one loop, close everything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from moryflow.host import Host, open_host

from .options import Flags, flags_of

T = TypeVar("T")


def with_host(ctx: click.Context, work: Callable[[Host], Awaitable[T]], **flags: Any) -> T:
    """Open a host as the common flags say, run `work`, and return what it returns.

    :param flags: the flag layer of the configuration, by dotted key; ``None`` values are left out.
    """

    async def hosted() -> T:
        async with await host_for(flags_of(ctx), flags) as host:
            return await work(host)

    return asyncio.run(hosted())


async def host_for(given: Flags, flags: dict[str, Any] | None = None) -> Host:
    """Open a host as the common flags say, and say on standard error what is wrong with it."""
    host = await open_host(
        config=given.config,
        flags={key: value for key, value in (flags or {}).items() if value is not None},
        safe_mode=given.safe_mode or None,
        strict=given.strict or None,
        profile=given.profile,
    )
    warn(host, given)
    return host


def warn(host: Host, given: Flags) -> None:
    """Say on standard error what is wrong with configuration or plugins, in one line each."""
    if given.quiet:
        return
    for problem in host.config.problems:
        click.echo(f"moryflow: {problem}", err=True)
    for record in host.plugin_set.records:
        if record.status == "failed":
            place = f" ({record.file}:{record.line})" if record.file else ""
            click.echo(f"moryflow: plugin {record.name} failed{place}: {record.error}", err=True)

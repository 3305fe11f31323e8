"""``moryflow worker``: take turns from a store in PostgreSQL; and see who does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import ConfigError

from moryflow.cli.findings import FOLDERS, notes_on, say_about
from moryflow.cli.open_host import with_host, with_store
from moryflow.cli.options import Flags, NounGroup, document_options
from moryflow.cli.terminal import columns, say, show
from moryflow.cli.terminal.interrupts import stop_on_signals

if TYPE_CHECKING:
    from moryflow.runtime.host import Host
    from moryflow.store import Store
    from moryflow.store.postgres.inbox import Inbox


@click.group("worker", cls=NounGroup, invoke_without_command=True)
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Take this queue (default: default, and volumes).")
@click.option("--concurrency", type=click.IntRange(1, 100), default=4, show_default=True, help="Sessions at once.")
@document_options
@click.pass_context
def command(ctx: click.Context, flags: Flags, queues: tuple[str, ...], concurrency: int) -> int:
    """Take turns from a store in PostgreSQL: what `serve` and schedules ask for, on any number of machines.

    A worker takes the sessions of its queues, whose folders it must have. Ctrl-C or SIGTERM hands over between two steps.
    """
    if ctx.invoked_subcommand:
        return 0
    return with_host(flags, lambda host: _work(host, flags, queues or _own_queues(host), concurrency))


def _own_queues(host: Host) -> tuple[str, ...]:
    return ("default", *host.config.volumes)


async def _work(host: Host, flags: Flags, queues: tuple[str, ...], concurrency: int) -> int:
    from moryflow.cluster.queue import ProcrastinateQueue
    from moryflow.cluster.worker import TurnWorker
    from moryflow.config import store_url
    from moryflow.plugins.reload import Reloader
    from moryflow.store.postgres.session_lock import worker_name

    inbox = the_inbox(host.store)
    say_about(host, notes_on(host, *FOLDERS), quiet=flags.quiet)
    stopping = asyncio.Event()
    stop_on_signals(stopping.set)
    url = store_url(host.home) or host.config.get("store.url") or ""
    worker = TurnWorker(
        host, inbox, ProcrastinateQueue(url), worker_name(), queues, concurrency, lambda text: say(f"moryflow: {text}")
    )
    if not flags.quiet:
        click.echo(f"takes turns of {', '.join(queues)}, {concurrency} at once; Ctrl-C hands over", err=True)
    reloader = Reloader(host)
    reloader.start()
    try:
        await worker.run(stopping)
    finally:
        await reloader.aclose()
    if not flags.quiet:
        click.echo(f"the worker has ended after {worker.turns} turns", err=True)
    return 0


@command.command("status")
@document_options
def status(flags: Flags) -> None:
    """Show the workers, and by queue how many prompts wait and for how long."""

    async def work(store: Store) -> Any:
        inbox = the_inbox(store)
        return await inbox.workers(), await inbox.depth(), await inbox.limits()

    workers, depth, limits = with_store(work)
    rows = [
        (
            row.name,
            ", ".join(row.queues),
            f"{row.running} of {row.concurrency}",
            f"{row.seen:.0f} s ago" + ", drains" * row.drain,
        )
        for row in workers
    ]
    waiting = [f"{queue}: {count} waiting, the oldest for {oldest:.0f} s" for queue, (count, oldest) in sorted(depth.items())]
    waiting += [_limit(*row) for row in limits]
    text = "\n".join([columns(rows) if rows else "no worker has reported within the last minute", *waiting])
    queues = {queue: {"waiting": count, "oldest": oldest} for queue, (count, oldest) in depth.items()}
    show(flags, {"workers": [row._asdict() for row in workers], "queues": queues, "limits": limits}, text)


@command.command("drain")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@document_options
def drain(flags: Flags, names: tuple[str, ...]) -> None:
    """Let workers end once their turns are handed over; all of them, or those that are named."""

    async def work(store: Store) -> int:
        return await the_inbox(store).drain(names)

    count = with_store(work)
    show(flags, {"draining": count}, f"{count} worker{'s' * (count != 1)} will end within ten seconds")


@command.command("limit")
@click.argument("provider")
@click.option("--requests", type=click.FloatRange(min=0, min_open=True), help="Requests a minute.")
@click.option("--tokens", type=click.FloatRange(min=0, min_open=True), help="Tokens a minute, asked and answered.")
@document_options
def limit(flags: Flags, provider: str, requests: float | None, tokens: float | None) -> None:
    """Limit what PROVIDER is asked for in a minute by all workers together; without options the limit ends."""

    async def work(store: Store) -> None:
        await the_inbox(store).set_limit(provider, requests, tokens)

    with_store(work)
    show(flags, {"provider": provider, "requests": requests, "tokens": tokens}, _limit(provider, requests, tokens))


def _limit(provider: str, requests: float | None, tokens: float | None) -> str:
    parts = [f"{value:g} {name}" for name, value in (("requests", requests), ("tokens", tokens)) if value is not None]
    return f"{provider}: at most {' and '.join(parts)} a minute" if parts else f"{provider} has no limit"


def the_inbox(store: Store) -> Inbox:
    """Return the inbox of a store in PostgreSQL.

    :raises ConfigError: it is a file.
    """
    from moryflow.store import inbox_of

    if (inbox := inbox_of(store)) is None:
        message = "workers and schedules need a store in PostgreSQL; this one is a file of this machine"
        raise ConfigError(message, next_step="moryflow config set store.url postgresql://USER@HOST/NAME, or MORYFLOW_STORE")
    return inbox

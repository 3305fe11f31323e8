"""``moryflow serve tokens``: one token per user of a shared store."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import click
from moryflow_sdk import ConfigError

from moryflow.cli.open_host import with_store
from moryflow.cli.options import Flags, document_options, noun
from moryflow.cli.terminal import columns, show
from moryflow.cli.terminal.streams import stdout

from .worker import the_inbox

if TYPE_CHECKING:
    from moryflow.store import Store

tokens = noun("tokens", "Give each user of a shared store a token of their own.")


@tokens.command("add")
@click.argument("name")
@document_options
def add(flags: Flags, name: str) -> None:
    """Make a token for the user NAME, in place of an older one, and print it this once.

    With it a user sees and changes only their own sessions. What their agents do, the workers' account does.
    """
    from moryflow.server.owners import token_hash

    if not name.isprintable() or not name.strip() or len(name) > 100:
        raise ConfigError("a name is up to 100 printable characters", next_step="moryflow serve tokens add ada")
    token = secrets.token_urlsafe(32)

    async def work(store: Store) -> bool:
        return await the_inbox(store).add_user(name, token_hash(token))

    if with_store(work) and not flags.quiet:
        click.echo(f"moryflow: the older token of {name} is no longer valid", err=True)
    if flags.as_json:
        show(flags, {"name": name, "token": token}, "")
    else:
        click.echo(token, file=stdout())


@tokens.command("list")
@document_options
def list_tokens(flags: Flags) -> None:
    """List the users, when their tokens were made, and how many sessions each has."""

    async def work(store: Store) -> list[tuple[str, str, str]]:
        return [(name, f"{made:%Y-%m-%d}", f"{count} sessions") for name, made, count in await the_inbox(store).users()]

    rows = with_store(work)
    document = [{"name": name, "created": made, "sessions": int(count.split()[0])} for name, made, count in rows]
    show(flags, document, columns(rows) if rows else "no user has a token; moryflow serve tokens add NAME")


@tokens.command("revoke")
@click.argument("name")
@document_options
def revoke(flags: Flags, name: str) -> None:
    """Make the token of NAME invalid, within five seconds; the sessions stay."""

    async def work(store: Store) -> bool:
        return await the_inbox(store).revoke(name)

    if not with_store(work):
        raise ConfigError(f"no user {name!r} has a token", next_step="moryflow serve tokens list")
    show(flags, {"revoked": name}, f"{name} has no token any more")

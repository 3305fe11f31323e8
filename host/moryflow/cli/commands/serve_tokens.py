"""``moryflow serve tokens``: who may use the server: browsers, scripts, and the users of a shared store."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import ConfigError

from moryflow.cli.open_host import own_home, with_store
from moryflow.cli.options import Flags, document_options, noun
from moryflow.cli.terminal import columns, show
from moryflow.cli.terminal.streams import stdout

if TYPE_CHECKING:
    from moryflow.server.tokens import Tokens
    from moryflow.store import Store

tokens = noun("tokens", "List and revoke the tokens of browsers, and give others one of their own.")


def _own_tokens() -> Tokens:
    from moryflow.server.service import tokens_of

    return tokens_of(own_home())


@tokens.command("add")
@click.argument("name")
@document_options
def add(flags: Flags, name: str) -> None:
    """Make a token for NAME, in place of an older one, and print it this once.

    NAME is a program, which may do what the server's own token may; in a shared store it is a user, who sees and changes only
    their own sessions. What their agents do, the workers' account does.
    """
    if not name.isprintable() or not name.strip() or len(name) > 100:
        raise ConfigError("a name is up to 100 printable characters", next_step="moryflow serve tokens add ada")

    own = _own_tokens()

    async def work(store: Store) -> tuple[str, bool]:
        from moryflow.server.tokens import token_hash
        from moryflow.store import inbox_of

        if (inbox := inbox_of(store)) is None:
            older = [own.revoke(row.id) for row in own.all() if row.name == name]
            return own.add(name), bool(older)
        token = secrets.token_urlsafe(32)
        return token, await inbox.add_user(name, token_hash(token))

    token, replaced = with_store(work)
    if replaced and not flags.quiet:
        click.echo(f"moryflow: the older token of {name} is no longer valid", err=True)
    if flags.as_json:
        show(flags, {"name": name, "token": token}, "")
    else:
        click.echo(token, file=stdout())


@tokens.command("list")
@document_options
def list_tokens(flags: Flags) -> None:
    """List the browsers and programs that have a token and when they used it; in a shared store the users too."""

    async def work(store: Store) -> list[tuple[str, str, int]]:
        from moryflow.store import inbox_of

        inbox = inbox_of(store)
        return [(name, f"{made:%Y-%m-%d}", count) for name, made, count in await inbox.users()] if inbox else []

    users, own = with_store(work), _own_tokens().all()
    document: list[dict[str, Any]] = [{"name": name, "created": made, "sessions": count} for name, made, count in users]
    document += [row._asdict() for row in own]
    rows = [(name, "", made, f"{count} sessions") for name, made, count in users]
    rows += [(row.name, row.id, row.created[:10], f"used {row.used[:10]}") for row in own]
    show(flags, document, columns(rows) if rows else "nobody has a token; moryflow serve --link lets a browser in")


@tokens.command("revoke")
@click.argument("name")
@document_options
def revoke(flags: Flags, name: str) -> None:
    """Make the token of NAME, or of an ID of the list, invalid: at once, that of a user within five seconds. Sessions stay."""

    async def work(store: Store) -> bool:
        from moryflow.store import inbox_of

        inbox = inbox_of(store)
        return inbox is not None and await inbox.revoke(name)

    if not with_store(work) and _own_tokens().revoke(name) is None:
        raise ConfigError(f"nobody called {name!r} has a token", next_step="moryflow serve tokens list")
    show(flags, {"revoked": name}, f"{name} has no token any more")

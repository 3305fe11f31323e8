"""``moryflow mcp``: the configured servers, what was accepted of each, and whether they have changed since."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from moryflow_sdk import CommandContext, ConfigError, Turn
from moryflow_sdk.support.processes import refuse_inside_tool
from moryflow_sdk.support.settings import ServerSettings
from moryflow_sdk.support.texts import visible

from .helper import token_file
from .lock import Pin, Server, digest, note_withheld, store_pin
from .prompts import offered_prompts, usage_of
from .review import (
    Listing,
    accepted,
    ask_server,
    difference_text,
    fault_of,
    find_server,
    listing_text,
    server_text,
    servers_now,
    settings_now,
)

# How long the user may take to log in.
LOGIN_SECONDS = 600.0
# How long a server that is tested may take to start, as in a call; a shorter `timeout` of its entry applies.
TEST_SECONDS = 60.0


@click.group("mcp")
def group() -> None:
    """Add, review and test MCP servers: programs and addresses that bring tools."""


@group.command("add")
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", help="The address of a server that is not started here.")
@click.option(
    "--env", multiple=True, metavar="NAME", help="Give it this variable of your environment; NAME=VALUE writes it down."
)
@click.option(
    "--header",
    multiple=True,
    metavar="NAME=VALUE",
    help="Send this with every request; ${NAME} is taken from your environment.",
)
@click.option("--cwd", help="The folder of the vault to run it in.")
@click.pass_obj
def add(
    context: CommandContext,
    name: str,
    command: Sequence[str],
    url: str | None,
    env: Sequence[str],
    header: Sequence[str],
    cwd: str | None,
) -> None:
    """Add a server: NAME -- COMMAND ARGUMENTS, or NAME --url URL. It is shown and started once, and its tools are shown."""
    refuse_inside_tool("moryflow mcp add")
    entry: dict[str, Any] = {}
    if command:
        entry = {"command": command[0], "args": list(command[1:])}
    if url is not None:
        entry["url"] = url
    if env:
        entry["env"] = dict(_pair(text, f"${{{text}}}") for text in env)
    if header:
        entry["headers"] = dict(_pair(text, "") for text in header)
    if cwd:
        entry["cwd"] = cwd
    if fault := fault_of(name, entry):
        raise ConfigError(f"MCP server {name!r}: {fault}", next_step="moryflow mcp add NAME -- COMMAND, or --url URL")
    if name in context.run(settings_now).servers:
        raise ConfigError(f"there is a server {name!r} already", next_step=f"moryflow mcp remove {name}")
    server = ServerSettings(**{**entry, "args": tuple(entry.get("args", ()))})
    question = f"{server_text(name, server)}\nAdd it, and start it once to see its tools?"
    _confirm(context, question, "the same command with -y before NAME")
    try:
        _review(context, name, server, None, "", entry)
    except ConfigError as error:
        if getattr(error.__cause__, "code", "") == "mcp_login":  # that command needs the entry
            context.configure(("mcp", "servers", name), entry)
            raise
        said = f"{name} was not added: {error.message.removeprefix(f'{name}: ')}"
        raise ConfigError(said, next_step="mend the command, then add it again") from error


@group.command("list")
@click.pass_obj
def list_servers(context: CommandContext) -> None:
    """List the servers: what is offered of each, and about how many tokens that costs."""
    servers = context.run(servers_now)
    rows = [_row(server) for server in servers]
    total = sum(row["tokens"] for row in rows)
    limit = context.run(settings_now).search_above
    lines = [f"{row['name']:<20} {row['state']:<9} {row['says']:<34} {row['how']}" for row in rows]
    more = f"about {total} tokens in all; above {limit} the tools are found with tool_search"
    text = "\n".join(map(visible, [*lines, more])) if rows else "no server is configured; moryflow mcp add NAME -- COMMAND"
    context.print(rows, text=text)


@group.command("show")
@click.argument("name")
@click.pass_obj
def show(context: CommandContext, name: str) -> None:
    """Show how a server is reached, and of each tool whether it is offered, or why not."""
    server = find_server(context, name)
    tools = _tool_rows(server)
    about = visible(server_text(name, server.settings), keep="\n")
    lines = [f"state: {server.state}"]
    if server.pin is not None:
        said = server.pin.server
        lines.append(f"it says that it is {said.get('name')} {said.get('version')}, protocol {said.get('protocol')}")
    for row in tools:
        said = "offered" if row["offered"] else f"withheld: {row['why']}"
        lines.append(f"  {row['name']:<32} {row['tokens']:>6}  {said}")
    prompts = [f"/{name}:{each['name']} {usage_of(each)}".rstrip() for each in offered_prompts(server)]
    lines += [f"  {each}" for each in prompts]
    if server.pin is not None and server.pin.beyond:
        lines.append(f"  {server.pin.beyond} more tools are not offered: there are too many")
    drifted = server.pin is not None and bool(server.pin.withheld)
    lines += [f"next: moryflow mcp review {name}"] if server.state in ("new", "changed") or drifted else []
    context.print({**_row(server), "tools": tools, "prompts": prompts}, text="\n".join([about, *map(visible, lines)]))


@group.command("review")
@click.argument("name")
@click.option("--accept", metavar="HASH", default="", help="Accept without a question, if what is shown has this hash.")
@click.pass_obj
def review(context: CommandContext, name: str, accept: str) -> None:
    """Start a server, show what it is and what is new, and offer its tools if you agree."""
    refuse_inside_tool("moryflow mcp review")
    server = find_server(context, name)
    _review(context, name, server.settings, server.pin, accept)


@group.command("test")
@click.argument("names", nargs=-1)
@click.pass_obj
@click.pass_context
def test(ctx: click.Context, context: CommandContext, names: Sequence[str]) -> None:
    """Start servers and compare them with what was accepted; exit code 3 when one differs or does not work."""
    chosen = [find_server(context, name) for name in names] or [
        each for each in context.run(servers_now) if each.settings.enabled
    ]
    rows = [_test_row(context, server) for server in chosen]
    context.print(rows, text="\n\n".join(visible(row["says"], keep="\n") for row in rows) or "no server is configured")
    ctx.exit(0 if all(row["ok"] for row in rows) else 3)


@group.command("remove")
@click.argument("name")
@click.pass_obj
def remove(context: CommandContext, name: str) -> None:
    """Remove a server from the configuration, and what was accepted of it."""
    refuse_inside_tool("moryflow mcp remove")
    find_server(context, name)
    context.configure(("mcp", "servers", name), None)
    store_pin(context.home, name, None)
    forget_tokens(context, name)
    context.print({"name": name, "removed": True}, text=f"removed {name}")


@group.command("login")
@click.argument("name")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port on 127.0.0.1 that the browser comes back to.")
@click.option("--browser/--no-browser", default=True, help="Open the address, or only show it.")
@click.pass_obj
def login(context: CommandContext, name: str, port: int, browser: bool) -> None:
    """Log in to a server that is an address, in your browser; the tokens are stored where only you can read them."""
    refuse_inside_tool("moryflow mcp login")
    server = find_server(context, name)
    if server.settings.url is None:
        raise ConfigError(f"{name} is a program, and has no login", next_step=f"moryflow mcp show {name}")

    def show(url: str) -> None:
        click.echo(f"{name} wants you to log in at:\n{visible(url)}", err=True)
        if browser and sys.stderr.isatty():
            click.launch(url)

    more = {"connect_seconds": LOGIN_SECONDS, "port": port}
    done = ask_server(context, name, server.settings, {"do": "login"}, more, show)
    outcome = f"logged in to {name}" if done["needed"] else f"{name} wants no login"
    step = "" if server.state == "reviewed" else f"\nnext: moryflow mcp review {name}"
    context.print({"name": name, **done}, text=f"{outcome}{step}")


@group.command("logout")
@click.argument("name")
@click.pass_obj
def logout(context: CommandContext, name: str) -> None:
    """Forget the tokens of a server."""
    refuse_inside_tool("moryflow mcp logout")
    find_server(context, name)
    there = forget_tokens(context, name)
    text = f"logged out of {name}" if there else f"nobody was logged in to {name}"
    context.print({"name": name, "removed": there}, text=text)


def forget_tokens(context: CommandContext, name: str) -> bool:
    """Remove the tokens of a server, and return whether there were any."""

    async def work(turn: Turn) -> bool:
        file = token_file(turn.data_dir, name)
        there = file.exists()
        file.unlink(missing_ok=True)
        return there

    return bool(context.run(work))


# ---------------------------------------------------------------- what the commands share


def _pair(text: str, default: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    return name, value if separator else default


def _confirm(context: CommandContext, question: str, command: str) -> None:
    click.echo(visible(question, keep="\n"), err=True)
    if context.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("nobody can be asked here, so nothing was accepted", next_step=command)
    click.confirm("Yes?", err=True, abort=True)


def _row(server: Server) -> dict[str, Any]:
    total = len(server.pin.tools) if server.pin else 0
    offered = len(server.offered)
    withheld = total - offered
    says = "" if server.state == "off" else f"moryflow mcp review {server.name}"
    if server.state == "reviewed":
        says = f"{offered} tools, about {server.tokens} tokens" + (f", {withheld} withheld" if withheld else "")
    settings = server.settings
    how = settings.url or shlex.join([settings.command or "", *settings.args])
    return {
        "name": server.name, "state": server.state, "tools": total, "offered": offered, "withheld": withheld,
        "tokens": server.tokens, "says": says, "how": how,
    }  # fmt: skip


def _tool_rows(server: Server) -> list[dict[str, Any]]:
    if server.pin is None:
        return []
    general = "" if server.state == "reviewed" else f"the server is {server.state}"
    rows = [(each["name"], each.get("tokens", 0), general or server.pin.why_withheld(each)) for each in server.pin.tools]
    rows += [(name, 0, why) for name, why in server.pin.withheld.items() if name not in server.pin.by_name]
    return [{"name": name, "tokens": tokens, "offered": not why, "why": why} for name, tokens, why in rows]


def _review(
    context: CommandContext,
    name: str,
    server: ServerSettings,
    pin: Pin | None,
    accept: str,
    entry: Mapping[str, Any] | None = None,
) -> None:
    """Pin what the server lists now, if the user agrees, and first write the `entry` of a new server."""
    listing = Listing(ask_server(context, name, server, {"do": "list"}))
    fresh = accepted(name, server, listing)
    shown = "\n".join(
        part for part in (server_text(name, server), difference_text(pin, listing), listing_text(listing)) if part
    )
    hash = digest([shown, [each["hash"] for each in listing.tools]])
    fresh = fresh._replace(shown=hash)
    if accept and not hash.startswith(accept):
        raise ConfigError(
            f"what {name} shows now has the hash {hash[:12]}, not {accept[:64]}", next_step=f"moryflow mcp review {name}"
        )
    if accept:
        click.echo(visible(shown, keep="\n"), err=True)
    else:
        _confirm(context, f"{shown}\nOffer these tools? (hash {hash[:12]})", f"moryflow mcp review {name} --accept {hash[:12]}")
    if entry is not None:
        context.configure(("mcp", "servers", name), entry)
    store_pin(context.home, name, fresh)
    row = _row(Server(name, server, fresh))
    context.print({**row, "hash": hash}, text=f"{name}: {row['says']}")


def _test_row(context: CommandContext, server: Server) -> dict[str, Any]:
    """Return whether a server works and is what was accepted; what has changed is recorded."""
    name, pin = server.name, server.pin
    seconds = min(TEST_SECONDS, server.settings.timeout or TEST_SECONDS)
    row = {"name": name, "ok": False, "drift": {}}
    try:
        listing = Listing(ask_server(context, name, server.settings, {"do": "list"}, {"connect_seconds": seconds}))
    except ConfigError as error:
        step = f"moryflow mcp show {name}" if error.next_step == f"moryflow mcp test {name}" else error.next_step
        return {**row, "says": f"{error.message}\nnext: {step}"}
    works = f"{name}: it works: {listing.server.get('name')} {listing.server.get('version')}, {len(listing.tools)} tools"
    step = f"next: moryflow mcp review {name}"
    if pin is None or server.state == "changed":
        why = "it was not reviewed yet" if pin is None else "it is configured differently than when it was reviewed"
        return {**row, "says": f"{works}; {why}\n{step}"}
    changes = {**pin.withheld, **listing.changes(pin)}
    if not changes:
        return {**row, "ok": True, "says": f"{works}, all as they were accepted"}
    note_withheld(context.home, name, changes)
    lines = [f"  {visible(each)}: {visible(why)}" for each, why in sorted(changes.items())]
    return {**row, "drift": changes, "says": "\n".join([f"{works}; not what was accepted", *lines, step])}

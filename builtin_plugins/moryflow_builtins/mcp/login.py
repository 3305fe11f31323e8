"""``moryflow mcp login`` and ``logout``: the flow runs in the helper process, the person's browser is opened here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click
from moryflow_sdk import CommandContext, ConfigError, Turn
from moryflow_sdk.support.processes import refuse_inside_tool
from moryflow_sdk.support.texts import visible

from .helper import token_file
from .queries import ask_server, find_server

LOGIN_SECONDS = 600.0
"""For a person to log in."""


@click.command("login")
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

    async def show(question: Mapping[str, Any]) -> Mapping[str, Any]:
        url = str(question["login"])
        click.echo(f"{name} wants you to log in at:\n{visible(url)}", err=True)
        if browser and sys.stderr.isatty():
            click.launch(url)
        return {}

    more = {"connect_seconds": LOGIN_SECONDS, "port": port}
    done = ask_server(context, name, server.settings, {"do": "login"}, more, show)
    said = f"logged in to {name}" if done["needed"] else f"{name} wants no login"
    step = "" if server.state == "reviewed" else f"\nnext: moryflow mcp review {name}"
    context.print({"name": name, **done}, text=f"{said}{step}")


@click.command("logout")
@click.argument("name")
@click.pass_obj
def logout(context: CommandContext, name: str) -> None:
    """Forget the tokens of a server."""
    refuse_inside_tool("moryflow mcp logout")
    find_server(context, name)
    there = forget_tokens(context, name)
    context.print(
        {"name": name, "removed": there}, text=f"logged out of {name}" if there else f"nobody was logged in to {name}"
    )


def forget_tokens(context: CommandContext, name: str) -> bool:
    """Remove the tokens of a server; return whether there were any."""

    async def work(turn: Turn) -> bool:
        file = token_file(turn.data_dir, name)
        there = file.exists()
        file.unlink(missing_ok=True)
        return there

    return bool(context.run(work))

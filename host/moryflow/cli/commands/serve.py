"""``moryflow serve``: the page and the HTTP API of this machine's sessions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import ConfigError

from moryflow.cli.findings import FOLDERS, notes_on, say_about
from moryflow.cli.open_host import own_home, with_host
from moryflow.cli.options import MODE, Flags, NounGroup, asking_options
from moryflow.cli.terminal import as_json, show
from moryflow.cli.terminal.interrupts import stop_on_signals
from moryflow.cli.terminal.streams import stdout

from .serve_tokens import tokens

if TYPE_CHECKING:
    from moryflow.runtime.host import Host
    from moryflow.server.listener import ServeOptions
    from moryflow.server.service import Service


@click.group("serve", cls=NounGroup, invoke_without_command=True)
@click.option("--host", "address", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8427, show_default=True, help="0 takes a free one.")
@click.option("--socket", type=click.Path(path_type=Path), help="Listen on a Unix socket instead.")
@click.option("--open", "browse", is_flag=True, help="Open the page in a browser.")
@click.option("--link", is_flag=True, help="Print another link to the server that runs, and end.")
@click.option("--insecure", is_flag=True, help="Let other machines reach it; what is sent can be read on the way.")
@click.option("-m", "--model", help="The model of new sessions that name none.")
@click.option("--agent", help="The agent of new sessions that name none.")
@click.option("--mode", type=MODE, help="The mode of new sessions that name none.")
@asking_options
@click.pass_context
def command(ctx: click.Context, flags: Flags, link: bool, browse: bool, address: str, **given: Any) -> int:
    """Serve the page and the HTTP API: every session of this machine, in a browser.

    Ctrl-C ends the server. The link holds for ten minutes and for one browser; --link prints another.
    """
    if ctx.invoked_subcommand:
        return 0
    if link:
        return _another_link(flags)
    from moryflow.server.listener import ServeOptions

    options = ServeOptions(host=address, **given)
    return with_host(flags, lambda host: _serve(host, flags, options, browse))


command.add_command(tokens)


async def _serve(host: Host, flags: Flags, options: ServeOptions, browse: bool) -> int:
    from moryflow.base.paths import readable_vault
    from moryflow.server.listener import serve

    from .run import confirm_mode

    confirm_mode(options.mode, flags)
    say_about(host, notes_on(host, *FOLDERS), quiet=flags.quiet)
    stopping = asyncio.Event()
    stop_on_signals(stopping.set)

    def ready(service: Service) -> None:
        _tell(flags, service)
        if browse:
            click.launch(_link(service))

    await serve(host, readable_vault(flags.vault), options, ready, stopping)
    if not flags.quiet:
        click.echo("the server has ended; what its turns did is kept", err=True)
    return 0


def _link(service: Service) -> str:
    return f"{service.address}/#code={service.codes.new()}"


def _tell(flags: Flags, service: Service) -> None:
    from moryflow.server.service import FOLDER, TOKEN

    file = service.host.home / FOLDER / TOKEN
    page = service.address.startswith("http")
    if flags.as_json:
        document = {"url": service.address, "token_file": str(file), "vault": str(service.vault)}
        click.echo(as_json({**document, "link": _link(service) if page else None}, indent=None), file=stdout())
    else:
        click.echo(f"moryflow serves {service.address}; the token is in {file}", file=stdout())
        if page:
            click.echo(f"open {_link(service)}", file=stdout())
    stdout().flush()


def _another_link(flags: Flags) -> int:
    from urllib.error import URLError
    from urllib.request import Request, urlopen

    from moryflow.server.service import running, token_of

    home = own_home()
    url = running(home).get("url", "")
    try:
        if not url.startswith("http"):
            raise URLError("no address")
        headers = {"Authorization": f"Bearer {token_of(home)}"}
        with urlopen(Request(f"{url}/codes", data=b"", headers=headers, method="POST"), timeout=10) as reply:
            link = json.load(reply)["link"]
    except (URLError, OSError) as error:
        raise ConfigError("no server of this home answers", where=str(home), next_step="moryflow serve") from error
    show(flags, {"link": link}, link)
    return 0

"""``moryflow acp``: the agent of an editor, over the Agent Client Protocol."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import click

from moryflow.cli.findings import FOLDERS, notes_on, say_about
from moryflow.cli.open_host import with_host
from moryflow.cli.options import MODE, Flags, asking_options
from moryflow.cli.terminal.interrupts import stop_on_signals
from moryflow.cli.terminal.streams import restore, stdout, use

if TYPE_CHECKING:
    from moryflow.runtime.host import Host
    from moryflow.runtime.selection import NewSession


@click.command("acp")
@click.option("--setup", is_flag=True, help="Say which model answers, or offer one that needs no key, and end.")
@click.option("-m", "--model", help="The model of new sessions.")
@click.option("--agent", help="The agent of new sessions.")
@click.option("--mode", type=MODE, help="What new sessions may do.")
@asking_options
def command(flags: Flags, setup: bool, model: str | None, agent: str | None, mode: str | None) -> int:
    """Speak the Agent Client Protocol on standard input and output. Editors start this; see docs/editors.md."""
    from moryflow.runtime.selection import NewSession

    options = NewSession(agent, model, mode)
    if setup:
        return with_host(flags, lambda host: _setup(host, flags, options))
    protocol = _take_streams()
    return with_host(flags, lambda host: _serve(host, flags, options, protocol))


def _take_streams() -> tuple[int, int]:
    """Return descriptors that the protocol alone uses: other code reads nothing, and its output goes to standard error."""
    sys.stdout.flush()
    ours = os.dup(sys.stdin.fileno()), os.dup(sys.stdout.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    use(sys.stderr, sys.stderr)
    restore()
    return ours


async def _serve(host: Host, flags: Flags, options: NewSession, protocol: tuple[int, int]) -> int:
    from moryflow.acp.agent import EditorAgent

    from .run import confirm_mode

    confirm_mode(options.mode, flags)
    say_about(host, notes_on(host, *FOLDERS), quiet=flags.quiet)
    stopping = asyncio.Event()
    stop_on_signals(stopping.set)
    await EditorAgent(host, options).run(*protocol, stopping)
    return 0


async def _setup(host: Host, flags: Flags, options: NewSession) -> int:
    from .model import offer_model

    await offer_model(host, options.agent, flags)
    await host.refresh()
    model = host.models(host.plugin_set).choose(options.model, host.agent(options.agent).model, host.config.get("model"))[1]
    click.echo(f"{model.id} answers; the editor can begin a session now", file=stdout())
    return 0

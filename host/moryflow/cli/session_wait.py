"""``--wait``: stand in line for a session that another process works in."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import click

from .terminal.signals import catch_signals
from .terminal.text import plain


async def take_turn(host: Any, session: Any, seconds: float, *, quiet: bool) -> None:
    """Hold `session` as soon as nobody else does, for the rest of this command. Of several that wait, any may be next.

    What was saved meanwhile holds, a rule for example; code that has appeared waits for a person's yes.

    :raises SessionBusy: not within `seconds`.
    :raises click.Abort: the person gave up, or the process was told to end.
    """
    from moryflow.store import SessionBusy

    try:
        await session.keep()
    except SessionBusy as error:
        at_most = "" if math.isinf(seconds) else f" for at most {seconds:g} s"
        await _unless_stopped(session, seconds, "" if quiet else f"{error.message}; waiting{at_most} (Ctrl-C gives up)")
        host.hold_new_code()
        await host.refresh()


async def _unless_stopped(session: Any, seconds: float, told: str) -> None:
    waiting = asyncio.ensure_future(session.keep(wait=seconds))
    restore = catch_signals(("SIGINT", "SIGTERM", "SIGHUP"), lambda _: waiting.cancel(), leave_at=2)
    try:
        if told:
            click.echo(plain(f"moryflow: {told}"), err=True)
        await waiting
    except asyncio.CancelledError:
        if told:
            click.echo("moryflow: gave up waiting; nothing was begun", err=True)
        raise click.Abort from None
    finally:
        restore()

"""``moryflow schedule``: prompts that run at times."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import TYPE_CHECKING

import click
from moryflow_sdk import ConfigError

from moryflow.cli.open_host import with_store
from moryflow.cli.options import Flags, document_options, noun
from moryflow.cli.terminal import columns, first_line, show

from .worker import the_inbox

if TYPE_CHECKING:
    from moryflow.store import Store
    from moryflow.store.postgres.inbox import Schedule

command = noun("schedule", "Run prompts at times, in a store that workers serve.")

# Without workers there is nobody who could begin a turn, but every system has something that can.
TIMER = """\
schedules need a store in PostgreSQL and a worker. On one machine the system runs a prompt at times:

  crontab -e, and add:
    {cron} {command}
  or with systemd: systemd-run --user --on-calendar='…' {command}
"""


@command.command("add")
@click.argument("cron")
@click.argument("prompt")
@click.option("-m", "--model", help="The model (default: that of the worker).")
@click.option("--agent", help="The agent (default: that of the worker).")
@click.option("--queue", default="", help="The workers that take it (default: those of the folder).")
@document_options
def add(flags: Flags, cron: str, prompt: str, model: str | None, agent: str | None, queue: str) -> None:
    """Run PROMPT at the times of CRON ('0 7 * * 1-5', in UTC), each time in a new session of --vault."""
    from moryflow.base.paths import is_workspace, readable_vault
    from moryflow.cluster.schedules import add_schedule
    from moryflow.store import inbox_of

    vault = str(flags.vault) if is_workspace(flags.vault) else str(readable_vault(flags.vault))

    async def work(store: Store) -> Schedule:
        if inbox_of(store) is None:
            again = shlex.join(["moryflow", "--vault", vault, "run", prompt])
            next_step = "for a store of several machines: moryflow config set store.url postgresql://USER@HOST/NAME"
            raise ConfigError(TIMER.format(cron=cron, command=again).strip(), next_step=next_step)
        return await add_schedule(the_inbox(store), cron, prompt, vault, agent=agent, model=model, queue=queue)

    schedule = with_store(work)
    show(flags, _json(schedule), f"{schedule.id} runs at {_time(schedule.next)} for the first time")


@command.command("list")
@document_options
def list_schedules(flags: Flags) -> None:
    """List the schedules, with when each runs next and ran last."""

    async def work(store: Store) -> list[Schedule]:
        return await the_inbox(store).schedules()

    rows = with_store(work)
    cells = [
        (row.id, row.cron, _time(row.next), row.last_session or "has not run yet", row.vault, first_line(row.prompt))
        for row in rows
    ]
    show(flags, [_json(row) for row in rows], columns(cells) if cells else "there is no schedule")


@command.command("remove")
@click.argument("id")
@document_options
def remove(flags: Flags, id: str) -> None:
    """Remove a schedule; the sessions it began stay."""

    async def work(store: Store) -> bool:
        return await the_inbox(store).remove_schedule(id)

    if not with_store(work):
        raise ConfigError(f"there is no schedule {id!r}", next_step="moryflow schedule list")
    show(flags, {"removed": id}, f"{id} is removed")


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _json(schedule: Schedule) -> dict[str, object]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in schedule._asdict().items()}

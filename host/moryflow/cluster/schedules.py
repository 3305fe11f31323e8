"""Prompts that run at times: a row each, which any worker begins when it is due."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from moryflow_sdk import ConfigError

from moryflow.runtime.session import new_turn_id
from moryflow.store.postgres.inbox import Inbox, Schedule

if TYPE_CHECKING:
    from moryflow.runtime.host import Host


def next_time(cron: str, after: datetime) -> datetime:
    """Return the next time that a line of five cron fields names, in the same time zone.

    :raises ConfigError: it is no such line.
    """
    from croniter import CroniterError, croniter

    try:
        if len(cron.split()) != 5:
            raise ValueError
        return croniter(cron, after).get_next(datetime)
    except (CroniterError, ValueError, KeyError) as error:
        next_step = "five fields: minute, hour, day, month, weekday, for example '0 7 * * 1-5'"
        raise ConfigError(f"{cron!r} is not a time as cron writes it", next_step=next_step) from error


async def add_schedule(
    inbox: Inbox, cron: str, prompt: str, vault: str, *, agent: str | None, model: str | None, queue: str, owner: str = ""
) -> Schedule:
    """Store a schedule and return it.

    :raises ConfigError: `cron` is not a time.
    """
    first = next_time(cron, datetime.now(UTC))
    schedule = Schedule(secrets.token_hex(4), cron, prompt, vault, agent, model, owner, queue, first)
    await inbox.add_schedule(schedule)
    return schedule


async def begin_due(inbox: Inbox, host: Host) -> None:
    """Begin a session for each schedule that is due. Of several workers one begins it; a time that was missed comes once."""
    for schedule in await inbox.due(lambda cron: next_time(cron, datetime.now(UTC))):
        agent = schedule.agent or host.agent(None).id
        row = await host.store.create(vault=schedule.vault, agent=agent, mode="agent", model=schedule.model or "")
        queue = schedule.queue or host.config.queue_of(schedule.vault) or "default"
        await inbox.set_queue(row.id, queue, schedule.owner)
        body = {"prompt": {"text": schedule.prompt}, "options": {"on_ask": "prompt"}}
        await inbox.add(row.id, new_turn_id(), body, owner=schedule.owner)
        await inbox.began(schedule.id, row.id)

"""``moryflow audit``: show recorded decisions, for diagnosis."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
from moryflow_sdk import CommandContext
from moryflow_sdk.support.texts import hung, moment, stdout_width, visible

from . import Wanted, files, select


@click.group(invoke_without_command=True)
@click.option("--denied", is_flag=True, help="Only calls that were refused.")
@click.option("--since", metavar="T", help="Only since then: 30m, 2h, 7d, or a date or time (ISO 8601).")
@click.option("--session", metavar="ID", help="Only this session; the beginning of its id is enough.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1_000_000_000),
    help="At most this many, the newest. [default: 100, with --since all]",
)
@click.pass_context
def audit(context: click.Context, denied: bool, since: str | None, session: str | None, limit: int | None) -> None:
    """Show past decisions, oldest first."""
    if context.invoked_subcommand is not None:
        if denied or since or session or limit:
            raise click.UsageError("--denied, --since, --session and -n come after the subcommand, if it takes them", context)
        return
    start = _moment(since) if since else None
    obj: CommandContext = context.obj
    records = select(files(obj.home, session), Wanted(denied, start, limit or (None if since else 100)))
    obj.print(records, text="\n".join(map(_line, records)) or "no decisions are recorded")


@audit.command()
@click.option(
    "-n", "--limit", default=20, show_default=True, type=click.IntRange(1, 1_000_000_000), help="How many to start with."
)
@click.option("--session", metavar="ID", help="Only this session.")
@click.pass_obj
def tail(context: CommandContext, limit: int, session: str | None) -> None:
    """Show the newest decisions."""
    for record in select(files(context.home, session), Wanted(limit=limit)):
        context.print(record, text=_line(record))


def _moment(text: str) -> datetime:
    try:
        return moment(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error


def _line(record: dict[str, Any]) -> str:
    when = str(record.get("timestamp", ""))[:19].replace("T", " ")
    if record.get("type") == "mode":
        return visible(f"{when}  mode   {record.get('from') or '-'} -> {record.get('to')}  by {record.get('by')}")
    if record.get("type") == "rule":
        what = f"{record.get('decision')} {record.get('permissionDomain')} {record.get('rulePattern')}"
        folder = f" in {record['folder']}" if record.get("folder") else ""
        return visible(f"{when}  rule   {record.get('change')}  {what}{folder}  ({record.get('scope')})")
    targets = ", ".join(map(str, record.get("targets") or ())) or "-"
    rule = record.get("rulePattern")
    why = f"{record.get('ruleSource')} rule {rule}" if rule else str(record.get("cause"))
    place = f"{record.get('decision'):<5}  {record.get('mode')}  by {record.get('by')}"
    place += f" ({record['reply']})" if record.get("reply") else ""
    folder = f" in {record['folder']}" if record.get("folder", "vault:/") != "vault:/" else ""
    return hung(visible(f"{when}  {place}  {record.get('tool')}  {targets[:200]}{folder}  ({why})"), stdout_width())

"""``moryflow session undo`` and ``redo``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
from moryflow_sdk import ConfigError, Turn

from .showing import document, overwritten, shown, visible
from .undoing import Plan, carry_out, plan_redo, plan_undo


@click.command("undo")
@click.argument("session", required=False)
@click.option("--step", is_flag=True, help="Only the last step that called tools, not the whole turn.")
@click.option("--force", is_flag=True, help="Also overwrite files that someone else has changed since.")
@click.option("--keep", is_flag=True, help="Leave files alone that someone else has changed since.")
@click.option("--dry-run", is_flag=True, help="Show what would change and do nothing.")
@click.pass_obj
def undo(context: Any, session: str | None, step: bool, force: bool, keep: bool, dry_run: bool) -> None:
    """Take back the last turn: the conversation continues from before it, and the files it changed are restored.

    The diff is shown first. A file that you changed since is named and asked about. Nothing is deleted: redo, or
    moryflow session switch, brings the messages back.
    """
    _run(context, session, lambda turn: plan_undo(turn, step=step), how=How(force, keep, dry_run))


@click.command("redo")
@click.argument("session", required=False)
@click.option("--force", is_flag=True, help="Also overwrite files that someone else has changed since.")
@click.option("--keep", is_flag=True, help="Leave files alone that someone else has changed since.")
@click.option("--dry-run", is_flag=True, help="Show what would change and do nothing.")
@click.pass_obj
def redo(context: Any, session: str | None, force: bool, keep: bool, dry_run: bool) -> None:
    """Restore what the last undo took back, including files."""
    _run(context, session, plan_redo, how=How(force, keep, dry_run))


class How(NamedTuple):
    """What to do with files that someone else has changed since, and whether to do anything at all."""

    force: bool
    keep: bool
    dry_run: bool


def _run(context: Any, session: str | None, make: Any, *, how: How) -> None:
    async def work(turn: Turn) -> tuple[dict[str, Any], str]:
        plan: Plan = await make(turn)
        if how.keep:
            plan = plan.without_foreign()
        text = await shown(turn, plan)
        if how.dry_run:
            return document(plan, None), text
        click.echo(text, err=True)
        _agree(plan, yes=context.yes, force=how.force)
        done = await carry_out(turn, plan)
        for line in overwritten(done):
            click.echo(line, err=True)
        return document(plan, done.touched), _said(plan, done.touched)

    found, text = context.change(work, session=session)
    context.print(found, text=text)


def _agree(plan: Plan, *, yes: bool, force: bool) -> None:
    """Ask, unless ``-y`` was given; what somebody else changed needs ``--force`` or a yes of its own.

    :raises ConfigError: nobody can be asked.
    :raises click.Abort: the answer was no.
    """
    names = ", ".join(visible(change.path) for change in plan.foreign)
    if yes and (force or not names):
        return
    if not sys.stdin.isatty():
        reason = f"{names} changed since, not by the agent" if names else "nobody can be asked here"
        again = f"moryflow session {plan.verb} {plan.session} -y"
        ways = f"{again} --keep leaves that, {again} --force overwrites it" if names else again
        raise ConfigError(f"nothing was done: {reason}", next_step=ways)
    question = f"{names} changed since, not by the agent. Overwrite?" if names else f"{plan.verb.capitalize()}?"
    click.confirm(question, err=True, abort=True)


def _said(plan: Plan, touched: Sequence[str]) -> str:
    count = f"{len(touched)} file{'s' if len(touched) != 1 else ''} restored"
    return visible(f"{'undone' if plan.verb == 'undo' else 'done again'}: {plan.title or '(no text)'}; {count}")

"""``moryflow session undo`` and ``redo``, ``/undo`` and ``/redo``, and the plan that the user sees before confirming."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from functools import partial
from typing import Any

import click
from moryflow_sdk import ConfigError, SlashResult, Turn
from moryflow_sdk.support import texts

from .recorder import shadow_of
from .undo import Plan, UndoChange, carry_out, plan_redo, plan_undo

# How many lines of the diff are shown; the rest is counted.
_LINES = 200

visible = partial(texts.visible, keep="\t")


async def describe(turn: Turn, plan: Plan) -> str:
    """Return the plan in words, with the diff of the files that it would change."""
    lines = [visible(f"{plan.verb}: {plan.title or '(no text)'}")]
    changes = [change for change in plan.changes if change.now != change.then]
    if not changes:
        return "\n".join([*lines, "no files change", *_left_out(plan)])
    hashes = [change.then.hash for change in changes if change.then]
    contents = await asyncio.to_thread(shadow_of(turn).contents, hashes) if hashes else {}
    lines += [visible(f"{_mark(change)} {change.path}{'  (changed since)' if change.foreign else ''}") for change in changes]
    lines += _left_out(plan)
    diff = [visible(line) for change in changes for line in _diff(change, contents)]
    rest = [f"… {len(diff) - _LINES} more lines"] if len(diff) > _LINES else []
    return "\n".join([*lines, "", *diff[:_LINES], *rest])


def document(plan: Plan, touched: Sequence[str] | None) -> dict[str, Any]:
    """Return the plan as JSON; `touched` are the files that were restored, ``None`` if nothing was done."""
    return {
        "session": plan.session,
        "active": plan.target if touched is not None else plan.source,
        "done": touched is not None,
        "files": [change.path for change in plan.changes],
        "restored": list(touched or ()),
        "changed_since": [*plan.foreign, *plan.others],
        "notes": list(plan.notes),
    }


def _left_out(plan: Plan) -> list[str]:
    """Return a line for each file that is left alone, and for each note."""
    lines = [f"left alone: {path} was changed since" for path in plan.others]
    return [visible(line) for line in (*lines, *(f"not included: {note}" for note in plan.notes))]


def _mark(change: UndoChange) -> str:
    if change.then is None:
        return "-"
    return "+" if change.now is None else "~"


def _diff(change: UndoChange, contents: dict[str, bytes]) -> Iterator[str]:
    old = _text(change.content)
    new = _text(contents[change.then.hash] if change.then else b"")
    if old is None or new is None:
        yield f"binary file {change.path} differs"
        return
    from_name = change.path if change.now else "/dev/null"
    to_name = change.path if change.then else "/dev/null"
    yield from unified_diff(old.splitlines(), new.splitlines(), from_name, to_name, lineterm="")


def _text(content: bytes) -> str | None:
    if b"\0" in content[:8000]:
        return None
    return content.decode(errors="replace")


async def slash(verb: str, rest: str, turn: Turn) -> SlashResult:
    """Show the plan of ``/undo`` or ``/redo``, or carry it out; files changed since need ``keep``."""
    words = set(rest.split())
    plan = await plan_redo(turn) if verb == "redo" else await plan_undo(turn, step="step" in words)
    if "keep" in words:
        plan = plan.without_foreign()
    if plan.foreign or not words & {"yes", "y", "keep"}:
        step = "step " if "step" in words else ""
        choices = (
            {"[k]eep what changed since, and the rest": f"{step}keep"}
            if plan.foreign
            else {f"[{verb[0]}]{verb[1:]}": f"{step}yes"}
        )
        if verb == "undo" and not step:
            choices["[l]ast step only"] = "step"
        return SlashResult(await describe(turn, plan), choices=choices)
    return SlashResult(_summary(plan, await carry_out(turn, plan)))


@click.command("undo")
@click.argument("session", required=False)
@click.option("--step", is_flag=True, help="Only the last step that called tools, not the whole turn.")
@click.option("--keep", is_flag=True, help="Leave files alone that were changed since, and take back the rest.")
@click.option("--dry-run", is_flag=True, help="Show what would change and do nothing.")
@click.pass_obj
def undo(context: Any, session: str | None, step: bool, **how: bool) -> None:
    """Take back the last turn: the conversation continues from before it, and the files it changed are restored.

    The diff is shown first. If a file was changed since, nothing is done without --keep. Nothing is deleted: redo, or
    moryflow session switch, brings the messages back.
    """
    _run(context, session, lambda turn: plan_undo(turn, step=step), **how)


@click.command("redo")
@click.argument("session", required=False)
@click.option("--keep", is_flag=True, help="Leave files alone that were changed since, and take back the rest.")
@click.option("--dry-run", is_flag=True, help="Show what would change and do nothing.")
@click.pass_obj
def redo(context: Any, session: str | None, **how: bool) -> None:
    """Restore what the last undo took back, including files."""
    _run(context, session, plan_redo, **how)


def _run(context: Any, session: str | None, make: Any, *, keep: bool, dry_run: bool) -> None:
    async def work(turn: Turn) -> tuple[dict[str, Any], str]:
        plan: Plan = await make(turn)
        if keep:
            plan = plan.without_foreign()
        text = await describe(turn, plan)
        if dry_run:
            return document(plan, None), text
        click.echo(text, err=True)
        again = f"moryflow session {plan.verb} {plan.session} -y"
        if plan.foreign:
            names = visible(", ".join(plan.foreign))
            raise ConfigError(f"nothing was done: {names} changed since", next_step=f"{again} --keep takes back the rest")
        if not context.yes:
            if not sys.stdin.isatty():
                raise ConfigError("nothing was done: nobody can be asked here", next_step=again)
            click.confirm(f"{plan.verb.capitalize()}?", err=True, abort=True)
        touched = await carry_out(turn, plan)
        return document(plan, touched), _summary(plan, touched)

    found, text = context.change(work, session=session)
    context.print(found, text=text)


def _summary(plan: Plan, touched: Sequence[str]) -> str:
    count = f"{len(touched)} file{'s' if len(touched) != 1 else ''} restored"
    return visible(f"{'undone' if plan.verb == 'undo' else 'redone'}: {plan.title or '(no text)'}; {count}")

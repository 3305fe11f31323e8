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
from .undo import Plan, UndoChange, UndoResult, carry_out, plan_redo, plan_undo

_LINES = 200
"""How many lines of the diff are shown; the rest is counted."""

visible = partial(texts.visible, keep="\t")


async def describe(turn: Turn, plan: Plan) -> str:
    """Return the plan in words, with the diff of the files that it would change."""
    lines = [visible(f"{plan.verb}: {plan.title or '(no text)'}")]
    changes = [change for change in plan.changes if change.now != change.then]
    if not changes:
        return "\n".join([*lines, "no files change", *_left_out(plan)])
    hashes = [change.then.hash for change in changes if change.then]
    contents = await asyncio.to_thread(shadow_of(turn).contents, hashes) if hashes else {}
    lines += [visible(f"{_mark(change)} {change.path}{_since(change)}") for change in changes]
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
        "changed_since": [change.path for change in plan.foreign],
        "changed_by_others": list(plan.others),
        "not_included": [{"path": path, "reason": reason} for path, reason in plan.missing],
        "notes": list(plan.notes),
    }


def overwritten_files(done: UndoResult) -> list[str]:
    """Return the commands that show the contents which were overwritten although someone else had changed them."""
    return [visible(f"what was overwritten is kept: {command}") for command in done.kept]


def _left_out(plan: Plan) -> list[str]:
    """Return a line for each file that is left alone or not included, and for each note."""
    others = [f"left alone: {path} was changed by somebody else while the agent worked" for path in plan.others]
    missing = [f"not included: {path}: {reason}" for path, reason in plan.missing]
    return [visible(line) for line in (*others, *missing, *(f"not included: {note}" for note in plan.notes))]


def _mark(change: UndoChange) -> str:
    if change.then is None:
        return "-"
    return "+" if change.now is None else "~"


def _since(change: UndoChange) -> str:
    if change.foreign:
        return "  (changed since, not by the agent)"
    return f"  (while {', '.join(change.commands)} ran; by it, or by you)" if change.commands else ""


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


_YES = frozenset({"yes", "y", "force", "keep"})


async def slash(verb: str, rest: str, turn: Turn) -> SlashResult:
    """Show the plan of ``/undo`` or ``/redo``, or carry it out; files changed since need ``force`` or ``keep``."""
    words = set(rest.split())
    plan = await plan_redo(turn) if verb == "redo" else await plan_undo(turn, step="step" in words)
    if not words & _YES:
        scope = " step" if "step" in words else ""
        how = f"/{verb}{scope} yes does it"
        if plan.foreign:
            how = f"/{verb}{scope} keep does it and leaves alone what changed since; /{verb}{scope} force overwrites that too"
        return SlashResult(f"{await describe(turn, plan)}\n\n{how}")
    if "keep" in words:
        plan = plan.without_foreign()
    if plan.foreign and "force" not in words:
        names = visible(", ".join(change.path for change in plan.foreign))
        return SlashResult(
            f"nothing was done: {names} changed since, not by the agent; /{verb} keep leaves that, /{verb} force overwrites it"
        )
    finished = await carry_out(turn, plan)
    done = {"undo": "undone", "redo": "redone"}[verb]
    files = f"; restored {', '.join(finished.touched)}" if finished.touched else ""
    return SlashResult("\n".join([visible(f"{done}: {plan.title}{files}"), *overwritten_files(finished)]))


@click.command("undo")
@click.argument("session", required=False)
@click.option("--step", is_flag=True, help="Only the last step that called tools, not the whole turn.")
@click.option("--force", is_flag=True, help="Also overwrite files that someone else has changed since.")
@click.option("--keep", is_flag=True, help="Leave files alone that someone else has changed since.")
@click.option("--dry-run", is_flag=True, help="Show what would change and do nothing.")
@click.pass_obj
def undo(context: Any, session: str | None, step: bool, **how: bool) -> None:
    """Take back the last turn: the conversation continues from before it, and the files it changed are restored.

    The diff is shown first. A file that you changed since is named and asked about. Nothing is deleted: redo, or
    moryflow session switch, brings the messages back.
    """
    _run(context, session, lambda turn: plan_undo(turn, step=step), **how)


@click.command("redo")
@click.argument("session", required=False)
@click.option("--force", is_flag=True, help="Also overwrite files that someone else has changed since.")
@click.option("--keep", is_flag=True, help="Leave files alone that someone else has changed since.")
@click.option("--dry-run", is_flag=True, help="Show what would change and do nothing.")
@click.pass_obj
def redo(context: Any, session: str | None, **how: bool) -> None:
    """Restore what the last undo took back, including files."""
    _run(context, session, plan_redo, **how)


def _run(context: Any, session: str | None, make: Any, *, force: bool, keep: bool, dry_run: bool) -> None:
    async def work(turn: Turn) -> tuple[dict[str, Any], str]:
        plan: Plan = await make(turn)
        if keep:
            plan = plan.without_foreign()
        text = await describe(turn, plan)
        if dry_run:
            return document(plan, None), text
        click.echo(text, err=True)
        _agree(plan, yes=context.yes, force=force)
        done = await carry_out(turn, plan)
        for line in overwritten_files(done):
            click.echo(line, err=True)
        return document(plan, done.touched), _summary(plan, done.touched)

    found, text = context.change(work, session=session)
    context.print(found, text=text)


def _agree(plan: Plan, *, yes: bool, force: bool) -> None:
    """Ask unless ``-y`` was given; to overwrite files that someone else changed, ask unless ``--force`` was given too.

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


def _summary(plan: Plan, touched: Sequence[str]) -> str:
    count = f"{len(touched)} file{'s' if len(touched) != 1 else ''} restored"
    return visible(f"{'undone' if plan.verb == 'undo' else 'redone'}: {plan.title or '(no text)'}; {count}")

"""``moryflow approval``: open questions, answered from a shell (D65)."""

from __future__ import annotations

from typing import Any

import click

from .group import NounGroup
from .options import document_options, flags_of
from .text import columns, plain, show


@click.group("approval", cls=NounGroup)
@document_options
def command() -> None:
    """List open questions and answer them."""


@command.command("list")
@click.option("--session", help="Only of this session.")
@click.option("--all", "answered", is_flag=True, help="Answered and expired ones too.")
@document_options
@click.pass_context
def list_approvals(ctx: click.Context, session: str | None, answered: bool) -> None:
    """List the questions that wait for an answer, oldest first."""
    from .hosting import with_store

    async def work(store: Any) -> list[Any]:
        row = await store.session(session) if session else None
        return await store.approvals(session=row.id if row else None, state=None if answered else "pending")

    rows = with_store(work)
    table = columns((row.id, row.session, _asking(row), _subject(row), _state(row)) for row in rows)
    show(flags_of(ctx), [_as_json(row) for row in rows], table or "no question is open")


def _as_json(row: Any) -> dict[str, Any]:
    from moryflow_sdk import thaw

    return {**row._asdict(), "request": thaw(row.request)}


def _asking(row: Any) -> str:
    """Return who asks, for which tool (D66)."""
    return plain(f"{row.request.get('agent', '')}: {row.request.get('tool', '')}".removeprefix(": "))


def _subject(row: Any) -> str:
    targets = ", ".join(row.request.get("targets", ()))
    return plain(f"{targets}: {row.request.get('reason', '')}")[:120]


def _state(row: Any) -> str:
    return f"{row.state} {row.reply or ''}".strip()


@command.command("reply")
@click.argument("approval")
@click.argument("reply", type=click.Choice(["once", "always", "reject", "stop"]))
@click.option("--message", default="", help="For the model, with reject.")
@document_options
@click.pass_context
def reply(ctx: click.Context, approval: str, reply: str, message: str) -> None:
    """Answer a question. The first answer stands; a turn that waits elsewhere goes on."""
    from .hosting import with_store

    async def work(store: Any) -> tuple[Any, str]:
        row = await store.reply(await _called(store, approval), reply, message=message)
        session = await store.session(row.session)
        while session.parent:  # a sub-agent goes on with the session that began it
            session = await store.session(session.parent)
        return row, session.id

    row, goes_on = with_store(work)
    if row.state == "expired":
        raise lapsed(row)
    if row.reply != reply:
        text = f"{row.id} was answered before: {row.reply} by {row.by}; the first answer stands"
    else:
        text = f"{row.id}: {row.reply}; if no turn waits for it: moryflow run -r {goes_on}"
    show(flags_of(ctx), _as_json(row), text)


def lapsed(row: Any) -> Exception:
    """Return what tells a person that an answer comes too late."""
    from moryflow_sdk import ConfigError

    what = "its call went on without an answer, or something else is asked about it by now"
    return ConfigError(f"{row.id} is no longer open: {what}", next_step="moryflow approval list")


async def _called(store: Any, name: str) -> str:
    """Return the id that `name` means: an id or the unique beginning of one."""
    found = [row.id for row in await store.approvals() if row.id.startswith(name)]
    return found[0] if len(found) == 1 else name

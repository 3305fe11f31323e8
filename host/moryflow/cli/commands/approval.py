"""``moryflow approval``: list open questions, and answer them from a shell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from moryflow_sdk import ConfigError
from moryflow_sdk.support.texts import hung, stdout_width, visible

from moryflow.cli.open_host import with_store
from moryflow.cli.options import Flags, document_options, noun
from moryflow.cli.terminal import columns, first_line, plain, show, terminal_width
from moryflow.cli.terminal.question_text import preview_lines, question
from moryflow.runtime.documents import approval_json

if TYPE_CHECKING:
    from moryflow.store import ApprovalRow, Store

# The rows of a question's preview that the list shows.
BRIEF = 6


command = noun("approval", "List open questions and answer them.")


@command.command("list")
@click.option("--session", help="Only of this session.")
@click.option("--all", "answered", is_flag=True, help="Include answered and expired ones.")
@document_options
def list_approvals(flags: Flags, session: str | None, answered: bool) -> None:
    """List the questions that wait for an answer, oldest first."""

    async def work(store: Store) -> list[ApprovalRow]:
        row = await store.session(session) if session else None
        return await store.approvals(session=row.id if row else None, state=None if answered else "pending")

    rows = with_store(work)
    show(flags, [approval_json(row) for row in rows], open_questions(rows))


@command.command("show")
@click.argument("approval")
@document_options
def show_approval(flags: Flags, approval: str) -> None:
    """Show a whole question: what will happen, why you are asked, what "always" would store."""

    async def work(store: Store) -> ApprovalRow:
        return await store.approval(await _approval_id(store, approval))

    row = with_store(work)
    show(flags, approval_json(row), f"{whole_question(row).strip()}\n  {_state(row)}")


def open_questions(rows: Sequence[ApprovalRow]) -> str:
    """Return a line for each question, and below it the beginning of its preview."""
    cells = ((row.id, row.session, _asking(row), _subject(row), _state(row)) for row in rows)
    lines = columns(cells, within=0).splitlines()
    width = terminal_width() or 100
    shown: list[str] = []
    for line, row in zip(lines, rows, strict=True):
        shown.append(hung(line, stdout_width()))
        if row.state == "pending":
            shown += preview_lines(str(row.request.get("preview") or ""), width, BRIEF, "")
    return "\n".join(shown) or "no question is open"


def whole_question(row: ApprovalRow) -> str:
    return question(row.request, f"{row.request['agent']}: " if row.request.get("agent") else "").whole


def _asking(row: ApprovalRow) -> str:
    return visible(f"{row.request.get('agent', '')}: {row.request.get('tool', '')}".removeprefix(": "))


def _subject(row: ApprovalRow) -> str:
    targets = ", ".join(row.request.get("targets", ()))
    return visible(f"{targets}: {row.request.get('reason', '')}")[:120]


def _state(row: ApprovalRow) -> str:
    return f"{row.state} {row.reply or ''}".strip()


@command.command("reply")
@click.argument("approval")
@click.argument("words", nargs=-1, required=True, metavar="once|always|reject|stop|REASON")
@click.option("--message", default="", help="For the model, with reject.")
@document_options
def reply(flags: Flags, approval: str, words: tuple[str, ...], message: str) -> None:
    """Answer a question. The first answer counts; a turn that waits in another terminal goes on.

    "reject" refuses the call and lets the model go on ("no" and "deny" mean the same); "stop" ends the turn; any other text
    refuses the call with that text as the reason.
    """
    from moryflow.approvals import OFFERED, answer_of

    answer = answer_of(" ".join(words))
    if answer is None or (answer.message and message):
        problem = "the answer is empty" if answer is None else "the reason is given twice"
        raise click.UsageError(f"{problem}; moryflow approval reply {approval} {OFFERED}, or why not")

    async def work(store: Store) -> tuple[ApprovalRow, str]:
        row = await store.reply(await _approval_id(store, approval), answer.reply, message=answer.message or message)
        session = await store.session(row.session)
        while session.parent:  # a sub-agent continues together with the session that started it
            session = await store.session(session.parent)
        return row, session.id

    row, goes_on = with_store(work)
    if row.state == "expired":
        raise too_late_error(row)
    if row.reply != answer.reply:
        text = f"{row.id} was answered before: {row.reply} by {row.by}; the first answer stands"
    else:
        why = f" ({first_line(row.message, 60)})" if row.message else ""
        text = f"{row.id}: {row.reply}{why}; if no turn waits for it: moryflow run -r {goes_on}"
    show(flags, approval_json(row), plain(text))


def too_late_error(row: ApprovalRow) -> Exception:
    what = "its call went on without an answer, or something else is asked about it by now"
    return ConfigError(f"{row.id} is no longer open: {what}", next_step="moryflow approval list")


async def _approval_id(store: Store, name: str) -> str:
    found = [row.id for row in await store.approvals() if row.id.startswith(name)]
    return found[0] if len(found) == 1 else name

"""``memory_write``: a child session, the writer, carries out one confirmed proposal; nothing else writes to the bank.

A grant exists only while ``memory_write`` waits for that child. It is never stored, so that no resumed or imported session,
and no agent that just has the writer's name, can have one. At the end the change is compared with the proposal; any other
change is taken back.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from moryflow_sdk import Agent, Ask, ToolContext, ToolError, ToolResult, Turn, redact

from . import MARKERS, READ_TOOLS, USER_PLACEHOLDER, WRITER, as_text, page_of_skill, problem_of, split
from .proposals import Proposal, answer_to, difference_of, load, newest_of, plain_line, prompts, save

PLUGIN = "memory_bank"


def writer_agent() -> Agent:
    """Return the writer. Its id gives it no rights; only the grant of its session does."""
    return Agent(
        id=WRITER,
        name="Memory bank writer",
        description="Carries out one confirmed proposal.",
        mode="subagent",
        prompt=page_of_skill("writer.md"),
        tools=(*READ_TOOLS, "write", "edit", "multiedit", "apply_patch"),
        hidden=True,
        max_steps=12,
        source=PLUGIN,
    )


@dataclass
class Grant:
    """The right of one child session to write a proposal.

    :param child: the session that first used the grant; no other session may use it after that.
    :param original: the content of the target when the child began, ``None`` for a new file; `current`: its content now.
    """

    token: str
    proposal: Proposal
    vault: str
    parent: str
    child: str = ""


_live: dict[str, Grant] = {}


@contextmanager
def hold_grant(proposal: Proposal, turn: Turn) -> Iterator[Grant]:
    """Create a grant that is valid while the block runs."""
    grant = Grant(secrets.token_hex(16), proposal, str(turn.vault), turn.session)
    _live[grant.token] = grant
    try:
        yield grant
    finally:
        del _live[grant.token]


def grant_of(turn: Turn) -> Grant | None:
    """Return the grant of a turn that the kernel started for this plugin, with a valid token; else ``None``."""
    spawned = turn.spawned
    if spawned is None or spawned.plugin != PLUGIN:
        return None
    grant = _live.get(str(spawned.metadata.get("grant", "")))
    if grant is None or grant.parent != turn.parent or grant.vault != str(turn.vault):
        return None
    grant.child = grant.child or turn.session
    return grant if grant.child == turn.session else None


_STAMP = re.compile(r"(last )?updated:? \d{4}-\d{2}-\d{2}\Z", re.IGNORECASE)
_SETEXT = re.compile(r"[-=|: ]+\Z")


def difference(before: bytes | None, after: bytes | None, proposal: Proposal) -> str:
    """Return why the change from `before` to `after` is not the proposed one; empty if it is."""
    if after is None:
        return "the file is gone"
    old, new = as_text(before or b""), as_text(after)
    if new is None or old is None:
        return "it is not UTF-8 text any more"
    wrong = problem_of(new)
    if wrong is not None:
        return wrong[0]
    blocks, earlier = split(new), split(old)
    assert blocks is not None
    if earlier is not None and blocks.around != earlier.around:
        return "only the machine block may change; the user's block and what is around them stay as they are"
    if earlier is None and not set(_lines(blocks.user)) <= {plain_line(USER_PLACEHOLDER)}:
        return "the user's block of a new file is empty"
    return _lines_differ(old, new, proposal)


def _lines_differ(old: str, new: str, proposal: Proposal) -> str:
    before, after = Counter(_lines(old)), Counter(_lines(new))
    agreed = " ".join(plain_line(line) for line in proposal.draft.splitlines())
    replaced = Counter(_lines(proposal.replaces))
    for line in after - before:
        if line not in agreed and not _STAMP.match(line) and line != plain_line(USER_PLACEHOLDER):
            return f"the line {line[:80]!r} is not in the draft"
        if redact(line) != line:
            return "it holds what looks like a secret"
    for line, count in (before - after).items():
        if count > replaced[line] and not _STAMP.match(line):
            return f"the line {line[:80]!r} was not to be replaced"
    return ""


def _lines(text: str) -> list[str]:
    """Return the lines with content, without Markdown marks and without the markers of blocks."""
    found = [plain_line(line) for line in text.splitlines() if line.strip() not in MARKERS]
    return [line for line in found if line and not _SETEXT.match(line)]


LIMIT = 4 * 1024 * 1024


async def write(ctx: ToolContext, proposal: str) -> ToolResult:
    """Let the writer carry out a proposal that the user's last message confirms; if none does, ask the user.

    :raises ToolError: the proposal is not confirmed, or was written or declined before, or the writer did something else.
    """
    proposals = load(ctx.session_state)
    chosen = await _confirmed_proposal(ctx, proposals, proposal)
    before = _content(ctx, chosen.target)
    wrong = ""
    try:
        with hold_grant(chosen, ctx) as grant:
            result = await ctx.spawn(
                writer_agent(), _task(chosen, before), metadata={"grant": grant.token}, title=f"write {chosen.target}"
            )
    finally:  # also if it is stopped
        after = _content(ctx, chosen.target)
        if after != before and (wrong := difference(before, after, chosen)):
            target = ctx.files.resolve(chosen.target, domain="edit")
            if before is not None:
                ctx.files.write(target, before)
            elif target.identity is not None:
                ctx.files.remove(target)
    wrong = wrong or ("nothing was changed" if after == before else "")
    last_prompt = prompts(await ctx.history.path())[-1].node
    proposals[chosen.id] = replace(chosen, state="failed" if wrong else "written", written_after="" if wrong else last_prompt)
    save(ctx.session_state, proposals)
    ctx.emit("written", id=chosen.id, target=chosen.target, session=result.session, problem=wrong)
    if wrong:
        step = "tell the user, who can say mb:write again"
        raise ToolError(f"{chosen.target} was not written: {wrong} ({result.end_reason})", code="not_written", next_step=step)
    metadata = {"proposal": chosen.id, "target": chosen.target, "session": result.session}
    title = f"wrote {chosen.target}"
    return ToolResult(output=f"{chosen.target} was written as proposed in {chosen.id}.", title=title, metadata=metadata)


async def _confirmed_proposal(ctx: Any, proposals: dict[str, Proposal], wanted: str) -> Proposal:
    """Return the proposal to carry out; only the user's own messages and answers in this session count as confirmation."""
    typed = prompts(await ctx.history.path()) if ctx.parent is None else []
    newest = newest_of(proposals, typed)
    answers = {item.id: answer_to(item, typed, item.id in newest) for item in proposals.values()}
    confirmed = [id for id, answer in answers.items() if answer == "confirmed" and not proposals[id].written_in(typed)]
    unanswered = [id for id in newest if not answers[id] and not proposals[id].written_in(typed)]
    chosen = wanted.strip().lower() or next((ids[0] for ids in (confirmed, unanswered) if len(ids) == 1), "")
    if chosen and chosen not in proposals:
        known = ", ".join(proposals) or "none"
        raise ToolError(f"there is no proposal {chosen!r}; there are: {known}", code="unknown_proposal", next_step="name one")
    if not chosen and len(confirmed) + len(unanswered) > 1:
        many = f"there are several: {', '.join([*confirmed, *unanswered])}"
        raise ToolError(many, code="not_unique", next_step="call memory_write once for each, with its id")
    if not chosen or not proposals[chosen].made_in(typed):
        step = "propose the change with memory_propose"
        raise ToolError("there is no proposal that the user could confirm", code="not_confirmed", next_step=step)
    if proposals[chosen].written_in(typed):
        raise ToolError(f"{chosen} was written already", code="written", next_step="go on")
    if answers[chosen] == "declined":
        raise ToolError(f"the user has declined {chosen}", code="declined", next_step="go on without it")
    if chosen not in confirmed:
        await ctx.ask(Ask(f"write this to the memory bank?\n{difference_of(proposals[chosen])}", bypass="never"))
    return proposals[chosen]


def _content(ctx: Any, name: str) -> bytes | None:
    target = ctx.files.resolve(name, domain="read")
    if target.error or target.text != f"vault:/{name}":
        raise ToolError(f"{name} is reached through a link", code="outside", next_step="moryflow memory-bank check")
    return None if target.identity is None else ctx.files.read(target, limit=LIMIT)


def _task(proposal: Proposal, before: bytes | None) -> str:
    mark = proposal.id
    state = "It is a new file: make it with both blocks." if before is None else "It is there: edit its machine block."
    parts = [f"Carry out proposal {mark}.", f"Target: {proposal.target}. {state}"]
    if proposal.replaces:
        parts.append(f"<replaces {mark}>\n{proposal.replaces}\n</replaces {mark}>")
    return "\n\n".join([*parts, f"<draft {mark}>\n{proposal.draft}\n</draft {mark}>"])

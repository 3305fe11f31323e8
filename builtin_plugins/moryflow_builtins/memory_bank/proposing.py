"""The body of ``memory_propose``: nothing is written, a person is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from moryflow_sdk import ToolContext, ToolError, ToolResult, redact
from moryflow_sdk.sensitive import sensitive

from .bank import FOLDER, as_text, named, usable_bank
from .blocks import MARKERS, problem_of
from .proposals import Proposal, answered, load, newest_of, plain_line, proposal_id, save
from .settings import MemoryBankSettings
from .words import Prompt, commands_in, prompts


async def propose(ctx: ToolContext, target: str, draft: str, replaces: str, why: str) -> ToolResult:
    """Keep a proposal and return what the person shall be shown.

    :raises ToolError: it may not be made; the message says why and what to do.
    """
    if usable_bank(ctx) is None:
        raise ToolError(f"there is no {FOLDER}/ here", code="no_bank", next_step="moryflow memory-bank init")
    typed = prompts(await ctx.history.path())
    _refuse_here(ctx, typed)
    name = _checked_target(ctx, target)
    _checked_draft(ctx, draft)
    text = _current(ctx, name)
    _checked_replaces(replaces, text, name)
    proposals = load(ctx.session_state)
    made = Proposal(proposal_id(name, draft, replaces), name, draft.strip("\n"), replaces.strip("\n"), typed[-1].node)
    _refuse_repeated(made, proposals, typed, text)
    proposals[made.id] = made
    save(ctx.session_state, proposals)
    ctx.emit("proposal", id=made.id, target=name, draft=made.draft, replaces=made.replaces)
    ctx.emit("notice", text=f"{_difference(made)}\n`mb:write {made.id}` keeps it, `mb:no {made.id}` drops it")
    metadata = {"proposal": made.id, "target": name}
    return ToolResult(output=_shown(made, why), title=f"proposal {made.id} for {name}", metadata=metadata)


def _refuse_here(ctx: Any, typed: Sequence[Prompt]) -> None:
    """Proposals are made to the person of this conversation, and not as an answer to a command."""
    if ctx.parent is not None or not typed:
        step = "say in your answer what should be kept"
        raise ToolError("only an agent that talks with a person can propose", code="no_person", next_step=step)
    if commands_in(typed[-1].text):
        step = "do what was asked: memory_write after mb:write, nothing after mb:no"
        raise ToolError("this message answers a proposal; it leads to no new one", code="command_guard", next_step=step)


def _checked_target(ctx: Any, target: str) -> str:
    """Return ``memory-bank/….md`` of what was asked for."""
    resolved = ctx.files.resolve(named(target), domain="edit")
    if resolved.error or not resolved.text.startswith(f"vault:/{FOLDER}/") or resolved.lexical not in (None, resolved.text):
        raise ToolError(f"{target} is not a file of {FOLDER}/", code="outside", next_step="name one, like details/patterns.md")
    name = resolved.text.removeprefix("vault:/")
    if PurePosixPath(name).suffix.lower() != ".md" or sensitive(name):
        raise ToolError(
            f"{target} is not a Markdown file of {FOLDER}/", code="not_markdown", next_step="name one ending in .md"
        )
    return name


def _checked_draft(ctx: Any, draft: str) -> None:
    settings: MemoryBankSettings = ctx.config
    if not draft.strip():
        raise ToolError("the draft is empty", code="empty", next_step="say what shall be kept")
    if len(draft) > settings.max_draft_characters:
        long = f"the draft has {len(draft):,} characters; the limit is {settings.max_draft_characters:,}"
        raise ToolError(long, code="too_large", next_step="keep the conclusion, its boundary and a pointer")
    if redact(draft) != draft:
        raise ToolError("the draft holds what looks like a secret", code="secret", next_step="say where it is kept instead")
    if any(marker in draft for marker in MARKERS) or "\0" in draft:
        raise ToolError("the draft holds a marker of the bank's own", code="marker", next_step="leave the markers out")


def _current(ctx: Any, name: str) -> str | None:
    """Return the target as it is, ``None`` if it is a new file.

    :raises ToolError: it is there and nothing can be added to it.
    """
    target = ctx.files.resolve(name, domain="read")
    if target.identity is None:
        return None
    text = as_text(ctx.files.read(target, limit=4 * 1024 * 1024))
    wrong = ("it is not UTF-8 text", 1) if text is None else problem_of(text)
    if wrong is not None:
        step = "tell the person to run `moryflow memory-bank check`"
        raise ToolError(
            f"nothing can be proposed for it: {wrong[0]}", code="blocks", where=f"{name}:{wrong[1]}", next_step=step
        )
    return text


def _checked_replaces(replaces: str, text: str | None, name: str) -> None:
    known = {plain_line(line) for line in (text or "").splitlines()}
    unknown = [line for line in replaces.splitlines() if line.strip() and plain_line(line) not in known]
    if unknown:
        raise ToolError(
            f"{name} has no line {unknown[0][:80]!r} to replace",
            code="not_found",
            next_step=f"read {name} and copy whole lines",
        )


def _refuse_repeated(made: Proposal, proposals: dict[str, Proposal], typed: Sequence[Prompt], text: str | None) -> None:
    """Nobody is asked twice for the same."""
    earlier = proposals.get(made.id)
    if earlier is not None and earlier.made_in(typed):
        said = answered(earlier, typed, earlier.id in newest_of(proposals, typed)) or "open"
        said = "written" if earlier.written_in(typed) else said
        raise ToolError(f"this was proposed before as {made.id} ({said})", code="repeat_guard", next_step="go on without it")
    known = " ".join(plain_line(line) for line in (text or "").splitlines())
    lines = [plain_line(line) for line in made.draft.splitlines() if line.strip()]
    if not made.replaces and all(line in known for line in lines):
        raise ToolError(f"{made.target} says this already", code="repeat_guard", next_step="go on without it")


def _difference(made: Proposal) -> str:
    """Return what would change, as the person sees it from the host itself, whatever the model says of it."""
    removed = [f"- {line}" for line in made.replaces.splitlines() if line.strip()]
    added = [f"+ {line}" for line in made.draft.splitlines()]
    return "\n".join([f"proposal {made.id} for {made.target}", *removed, *added])


def _shown(made: Proposal, why: str) -> str:
    head, _, change = _difference(made).partition("\n")
    reason = f"\nwhy: {why}" if why.strip() else ""
    return (
        f"{head}{reason}\n```diff\n{change}\n```\n"
        f"Nothing is written yet. Show this to the person and end your turn with: "
        f"reply `mb:write {made.id}` to keep it or `mb:no {made.id}` to drop it."
    )

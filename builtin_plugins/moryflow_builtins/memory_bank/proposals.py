"""``memory_propose``: proposals of the model for the memory bank, and the user's answers. Nothing is written here.

A proposal is JSON in the session's state, bound by its id to one target and one draft. Whether it was confirmed is
never stored: each time, that is read from the messages that the user typed after it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from moryflow_sdk import ToolContext, ToolError, ToolResult, redact
from moryflow_sdk.support.protected_files import sensitive

from . import FOLDER, MARKERS, as_text, bank_path, problem_of, usable_bank

_COMMAND = re.compile(r"(?<![\w/:.-])mb:(write|no)(?![\w-])", re.IGNORECASE)
_ANSWER = re.compile(
    r"^[ \t`]*mb:write(?![\w?-])(?:[ \t]+(p-[0-9a-f]{8})\b)?|(?<![\w/:.-])mb:no(?![\w-])(?:[ \t]+(p-[0-9a-f]{8})\b)?",
    re.IGNORECASE | re.MULTILINE,
)
_LASTING = re.compile(
    r"\b(remember (this|that|it)|from now on|for the record|in future,|going forward|we (have )?(decided|agreed)|"
    r"our convention|the convention is|always use|never use)\b|记住|以后(都|请|一律)|从现在起|我们决定|约定(是|为|：|:)|一律",
    re.IGNORECASE,
)
# Messages about a choice of technology, a new or shared module, architecture, refactoring or migration.
_DESIGN = re.compile(
    r"\b(architect(ure|ural)|refactor(ing)?|migrat(e|ing|ion)|redesign)\b"
    r"|\b(new|add an?|create an?) (\w+ )?(module|component|package|service|subsystem)\b"
    r"|\b(shared|common) (module|component|library|code|utilit(y|ies))\b"
    r"|\b(which|choose|pick|switch to|replace) (an? |the )?(\w+ )?(library|framework|database|tool|stack|technology)\b"
    r"|技术选型|选型|架构|重构|迁移|(新建|新增|创建|新的?)\S{0,6}(模块|组件)|(公共|共享)(模块|组件|库)",
    re.IGNORECASE,
)


def commands_in(text: str) -> bool:
    """Whether `text` contains ``mb:write`` or ``mb:no``; such a message never leads to a new proposal."""
    return _COMMAND.search(text) is not None


def parse_reply(text: str) -> tuple[str, str]:
    """Return the answer in `text` (``write``, ``no`` or empty) and the proposal's id in it, if there is one.

    ``mb:write`` is an answer at the beginning of a line, because elsewhere it may be mentioned or negated; ``mb:no`` is one
    anywhere, and counts more.
    """
    found = [("no", match[2]) if "no" in match[0].lower() else ("write", match[1]) for match in _ANSWER.finditer(text)]
    answer, id = next((item for item in found if item[0] == "no"), next(iter(found), ("", "")))
    return answer, (id or "").lower()


def means_to_last(text: str) -> bool:
    """Whether the user asks for something to be remembered."""
    return _LASTING.search(text) is not None and not commands_in(text)


def wants_patterns(text: str) -> bool:
    """Whether the words of a message suggest a topic of ``patterns.md``."""
    return _DESIGN.search(text) is not None and not commands_in(text)


@dataclass(frozen=True)
class Prompt:
    """A message that the user typed: its node and its text, without attached files and piped input."""

    node: str
    seq: int
    text: str


def prompts(path: Iterable[Any]) -> Sequence[Prompt]:
    """Return the messages that the user typed, in order: user nodes that the host did not write itself."""
    return [
        Prompt(node.id, node.seq, str(node.payload.get("text", ""))[: node.payload.get("typed")])
        for node in path
        if node.kind == "user" and not node.payload.get("synthetic")
    ]


MAX_KEPT = 100
MAX_DRAFT = 6000


@dataclass(frozen=True)
class Proposal:
    """One proposed change of the bank.

    :param target: ``memory-bank/….md``.
    :param draft: the Markdown to write there.
    :param replaces: lines of the target that the draft replaces.
    :param asked_after: id of the user's message during whose turn the proposal was made.
    :param state: ``open``, ``written`` or ``failed``.
    :param written_after: id of the user's message during whose turn it was written.
    """

    id: str
    target: str
    draft: str
    replaces: str
    asked_after: str
    state: str = "open"
    written_after: str = ""

    def made_in(self, typed: Sequence[Prompt]) -> bool:
        """Whether it was made on this path of the conversation, not on another branch or in an undone turn."""
        return any(prompt.node == self.asked_after for prompt in typed)

    def written_in(self, typed: Sequence[Prompt]) -> bool:
        """Whether it was written, and that was not undone."""
        return self.state == "written" and any(prompt.node == self.written_after for prompt in typed)


def proposal_id(target: str, draft: str, replaces: str) -> str:
    """Return the id that binds a proposal to its target and draft; equal proposals have equal ids."""
    words = "\0".join(" ".join(text.split()).casefold() for text in (target, draft, replaces))
    return f"p-{hashlib.sha256(words.encode('utf-8', 'replace')).hexdigest()[:8]}"


def load(state: Mapping[str, Any]) -> dict[str, Proposal]:
    """Return the proposals in a session's state by id; invalid entries are left out."""
    found: dict[str, Proposal] = {}
    for item in state.get("proposals", ()):
        try:
            proposal = Proposal(**item)
        except TypeError:
            continue
        if proposal.id == proposal_id(proposal.target, proposal.draft, proposal.replaces):
            found[proposal.id] = proposal
    return found


def save(state: dict[str, Any], proposals: Mapping[str, Proposal]) -> None:
    """Store the newest `proposals` in the session's state, at most :data:`MAX_KEPT`."""
    state["proposals"] = [asdict(proposal) for proposal in proposals.values()][-MAX_KEPT:]


def answer_to(proposal: Proposal, typed: Sequence[Prompt], newest: bool) -> str:
    """Return the user's answer to a proposal: ``confirmed``, ``declined`` or an empty text.

    :param typed: all messages that the user typed, oldest first.
    :param newest: whether it is one of the latest proposals, so that an answer without an id counts for it.
    """
    place = next((index for index, prompt in enumerate(typed) if prompt.node == proposal.asked_after), None)
    if place is None:
        return ""  # the proposal was made on another branch of the conversation
    ours = ("", proposal.id) if newest else (proposal.id,)
    replies = [parse_reply(prompt.text) for prompt in typed[place + 1 :]]
    said = [answer if id in ours else "" for answer, id in replies]
    if "no" in said:
        return "declined"
    return "confirmed" if said and said[-1] == "write" else ""


def newest_of(proposals: Mapping[str, Proposal], typed: Sequence[Prompt]) -> frozenset[str]:
    """Return the ids of the latest proposals: all that were made in the same turn."""
    places = {prompt.node: index for index, prompt in enumerate(typed)}
    made = {proposal.id: places.get(proposal.asked_after, -1) for proposal in proposals.values()}
    last = max(made.values(), default=-1)
    return frozenset(id for id, place in made.items() if place == last and place >= 0)


_MARKS = re.compile(r"^(?:[-*+>#]+\s+|\d+[.)]\s+|\[[ xX]\]\s+)+")


def plain_line(line: str) -> str:
    """Return a line of Markdown without list, quote and heading marks and with single spaces, for comparison."""
    return " ".join(_MARKS.sub("", line.strip()).split())


async def propose(ctx: ToolContext, target: str, draft: str, replaces: str, why: str) -> ToolResult:
    """Store a proposal and return the text to show to the user.

    :raises ToolError: the proposal is refused; the message says why and what to do.
    """
    if usable_bank(ctx) is None:
        raise ToolError(f"there is no {FOLDER}/ here", code="no_bank", next_step="moryflow memory-bank init")
    typed = prompts(await ctx.history.path())
    if ctx.parent is not None or not typed:
        step = "say in your answer what should be kept"
        raise ToolError("only an agent that talks with the user can propose", code="no_person", next_step=step)
    if commands_in(typed[-1].text):
        step = "do what was asked: memory_write after mb:write, nothing after mb:no"
        raise ToolError("this message answers a proposal; it leads to no new one", code="command_guard", next_step=step)
    name = _checked_target(ctx, target)
    if not draft.strip():
        raise ToolError("the draft is empty", code="empty", next_step="say what shall be kept")
    if len(draft) > MAX_DRAFT:
        long = f"the draft has {len(draft):,} characters; the limit is {MAX_DRAFT:,}"
        raise ToolError(long, code="too_large", next_step="keep the conclusion, its boundary and a pointer")
    if redact(draft) != draft:
        raise ToolError("the draft holds what looks like a secret", code="secret", next_step="say where it is kept instead")
    if any(marker in draft for marker in MARKERS) or "\0" in draft:
        raise ToolError("the draft holds a marker of the bank's own", code="marker", next_step="leave the markers out")
    text = _current(ctx, name)
    known = {plain_line(line) for line in (text or "").splitlines()}
    unknown = [line for line in replaces.splitlines() if line.strip() and plain_line(line) not in known]
    if unknown:
        raise ToolError(
            f"{name} has no line {unknown[0][:80]!r} to replace",
            code="not_found",
            next_step=f"read {name} and copy whole lines",
        )
    proposals = load(ctx.session_state)
    made = Proposal(proposal_id(name, draft, replaces), name, draft.strip("\n"), replaces.strip("\n"), typed[-1].node)
    _refuse_repeated(made, proposals, typed, text)
    proposals[made.id] = made
    save(ctx.session_state, proposals)
    ctx.emit("proposal", id=made.id, target=name, draft=made.draft, replaces=made.replaces)
    ctx.emit("notice", text=f"{difference_of(made)}\n`mb:write {made.id}` keeps it, `mb:no {made.id}` drops it")
    metadata = {"proposal": made.id, "target": name}
    return ToolResult(output=_proposal_text(made, why), title=f"proposal {made.id} for {name}", metadata=metadata)


def _checked_target(ctx: Any, target: str) -> str:
    resolved = ctx.files.resolve(bank_path(target), domain="edit")
    if resolved.error or not resolved.text.startswith(f"vault:/{FOLDER}/") or resolved.lexical not in (None, resolved.text):
        raise ToolError(f"{target} is not a file of {FOLDER}/", code="outside", next_step="name one, like details/patterns.md")
    name = resolved.text.removeprefix("vault:/")
    if PurePosixPath(name).suffix.lower() != ".md" or sensitive(name):
        raise ToolError(
            f"{target} is not a Markdown file of {FOLDER}/", code="not_markdown", next_step="name one ending in .md"
        )
    return name


def _current(ctx: Any, name: str) -> str | None:
    target = ctx.files.resolve(name, domain="read")
    if target.identity is None:
        return None
    text = as_text(ctx.files.read(target, limit=4 * 1024 * 1024))
    wrong = ("it is not UTF-8 text", 1) if text is None else problem_of(text)
    if wrong is not None:
        step = "tell the user to run `moryflow memory-bank check`"
        raise ToolError(
            f"nothing can be proposed for it: {wrong[0]}", code="blocks", where=f"{name}:{wrong[1]}", next_step=step
        )
    return text


def _refuse_repeated(made: Proposal, proposals: dict[str, Proposal], typed: Sequence[Prompt], text: str | None) -> None:
    """Refuse a proposal that was made before, or whose text is in the file already."""
    earlier = proposals.get(made.id)
    if earlier is not None and earlier.made_in(typed):
        said = answer_to(earlier, typed, earlier.id in newest_of(proposals, typed)) or "open"
        said = "written" if earlier.written_in(typed) else said
        raise ToolError(f"this was proposed before as {made.id} ({said})", code="repeat_guard", next_step="go on without it")
    known = " ".join(plain_line(line) for line in (text or "").splitlines())
    lines = [plain_line(line) for line in made.draft.splitlines() if line.strip()]
    if not made.replaces and all(line in known for line in lines):
        raise ToolError(f"{made.target} says this already", code="repeat_guard", next_step="go on without it")


def difference_of(made: Proposal) -> str:
    """Return the change as a diff. The host shows it to the user, so that it does not depend on the model's words."""
    removed = [f"- {line}" for line in made.replaces.splitlines() if line.strip()]
    added = [f"+ {line}" for line in made.draft.splitlines()]
    return "\n".join([f"proposal {made.id} for {made.target}", *removed, *added])


def _proposal_text(made: Proposal, why: str) -> str:
    head, _, change = difference_of(made).partition("\n")
    reason = f"\nwhy: {why}" if why.strip() else ""
    return (
        f"{head}{reason}\n```diff\n{change}\n```\n"
        f"Nothing is written yet. Show this to the user and end your turn with: "
        f"reply `mb:write {made.id}` to keep it or `mb:no {made.id}` to drop it."
    )

"""Proposals: what the model would like to keep, and what a person said about it.

A proposal is JSON in the session's state, bound by its id to one target and one draft. Whether it was confirmed is
never stored: it is read each time from what the person typed after it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .words import Prompt, Said, heard

MOST_KEPT = 100


@dataclass(frozen=True)
class Proposal:
    """One proposed change of the bank.

    :param target: ``memory-bank/….md``.
    :param draft: the Markdown that shall stand there.
    :param replaces: lines of the target that the draft takes the place of.
    :param asked_after: the person's message that was being answered when it was made.
    :param state: ``open``, ``written`` or ``failed``.
    :param written_after: the person's message that had it written.
    """

    id: str
    target: str
    draft: str
    replaces: str
    asked_after: str
    state: str = "open"
    written_after: str = ""

    def made_in(self, typed: Sequence[Prompt]) -> bool:
        """Whether it was made in this conversation, and not in what an undo took back or on another branch."""
        return any(prompt.node == self.asked_after for prompt in typed)

    def written_in(self, typed: Sequence[Prompt]) -> bool:
        """Whether it was written, and that was not taken back."""
        return self.state == "written" and any(prompt.node == self.written_after for prompt in typed)


def proposal_id(target: str, draft: str, replaces: str) -> str:
    """Return the id that binds a proposal to its target and draft; equal content has an equal id."""
    words = "\0".join(" ".join(text.split()).casefold() for text in (target, draft, replaces))
    return f"p-{hashlib.sha256(words.encode('utf-8', 'replace')).hexdigest()[:8]}"


def load(state: Mapping[str, Any]) -> dict[str, Proposal]:
    """Return the proposals of a session by id; what is not one is left out."""
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
    """Keep `proposals` in the session's state, the newest when there are too many."""
    state["proposals"] = [asdict(proposal) for proposal in proposals.values()][-MOST_KEPT:]


def answered(proposal: Proposal, typed: Sequence[Prompt], newest: bool) -> str:
    """Return what the person said about a proposal: ``confirmed``, ``declined`` or an empty text.

    :param typed: all that the person typed, oldest first.
    :param newest: it is among the last ones made, so that an answer without an id means it.
    """
    place = next((index for index, prompt in enumerate(typed) if prompt.node == proposal.asked_after), None)
    if place is None:
        return ""  # it was made on another branch of the conversation
    after = typed[place + 1 :]
    said = [_counts(heard(prompt.text), proposal, newest) for prompt in after]
    if "no" in said:
        return "declined"
    return "confirmed" if said and said[-1] == "write" else ""


def _counts(said: Said, proposal: Proposal, newest: bool) -> str:
    """Return the answer if it is one to this proposal; one without an id is to the newest."""
    if said.proposal:
        return said.answer if said.proposal == proposal.id else ""
    return said.answer if newest else ""


def newest_of(proposals: Mapping[str, Proposal], typed: Sequence[Prompt]) -> frozenset[str]:
    """Return the ids of the proposals that were made last: all of one turn."""
    places = {prompt.node: index for index, prompt in enumerate(typed)}
    made = {proposal.id: places.get(proposal.asked_after, -1) for proposal in proposals.values()}
    last = max(made.values(), default=-1)
    return frozenset(id for id, place in made.items() if place == last and place >= 0)


_MARKS = re.compile(r"^(?:[-*+>#]+\s+|\d+[.)]\s+|\[[ xX]\]\s+)+")


def plain_line(line: str) -> str:
    """Return a line of Markdown without list, quote and heading marks and with single spaces, for comparison."""
    return " ".join(_MARKS.sub("", line.strip()).split())

"""Whether what the writer wrote is what the person agreed to."""

from __future__ import annotations

import re
from collections import Counter

from moryflow_sdk import redact

from .bank import as_text
from .blocks import MARKERS, problem_of, split
from .proposals import Proposal, plain_line
from .template import USER_PLACEHOLDER

_STAMP = re.compile(r"(last )?updated:? \d{4}-\d{2}-\d{2}\Z", re.IGNORECASE)
_SETEXT = re.compile(r"[-=|: ]+\Z")


def difference(before: bytes | None, after: bytes | None, proposal: Proposal) -> str:
    """Return why the change from `before` to `after` is not the one that was proposed; an empty text when it is."""
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
        return "only the machine block may change; the person's block and what is around them stay as they are"
    if earlier is None and not set(_lines(blocks.user)) <= {plain_line(USER_PLACEHOLDER)}:
        return "the person's block of a new file is empty"
    return _lines_differ(old, new, proposal)


def _lines_differ(old: str, new: str, proposal: Proposal) -> str:
    before, after = Counter(_lines(old)), Counter(_lines(new))
    agreed = " ".join(plain_line(line) for line in proposal.draft.splitlines())
    replaced = Counter(_lines(proposal.replaces))
    for line in after - before:
        if line not in agreed and not _STAMP.match(line) and not _is_user_placeholder(line):
            return f"the line {line[:80]!r} is not in the draft"
        if redact(line) != line:
            return "it holds what looks like a secret"
    for line, count in (before - after).items():
        if count > replaced[line] and not _STAMP.match(line):
            return f"the line {line[:80]!r} was not to be replaced"
    return ""


def _is_user_placeholder(line: str) -> bool:
    return line == plain_line(USER_PLACEHOLDER)


def _lines(text: str) -> list[str]:
    """Return the lines that say something, without marks and markers."""
    found = [plain_line(line) for line in text.splitlines() if line.strip() not in MARKERS]
    return [line for line in found if line and not _SETEXT.match(line)]

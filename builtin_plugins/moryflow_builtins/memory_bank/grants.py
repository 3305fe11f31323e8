"""The one way to write in the bank: a child session that this plugin made for a confirmed proposal.

A grant lives only while ``memory_write`` waits for that child. It is in no file: nothing that is resumed, imported or
merely called like the writer can hold one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from moryflow_sdk import Turn

from .proposals import Proposal

PLUGIN = "memory_bank"


@dataclass
class Grant:
    """What one child may do.

    :param child: the session that uses it, once it has; no other one may from then on.
    :param original: the target as it was when the child began, ``None`` if there was none; `current` as it is now.
    """

    token: str
    proposal: Proposal
    vault: str
    parent: str
    original: bytes | None
    current: bytes | None
    child: str = ""


_live: dict[str, Grant] = {}


@contextmanager
def granted(proposal: Proposal, turn: Turn, original: bytes | None) -> Iterator[Grant]:
    """Hold a grant for as long as the block runs."""
    grant = Grant(secrets.token_hex(16), proposal, str(turn.vault), turn.session, original, original)
    _live[grant.token] = grant
    try:
        yield grant
    finally:
        del _live[grant.token]


def grant_of(turn: Turn) -> Grant | None:
    """Return the grant of the turn: it is one that the kernel started for this plugin, with a token that is alive."""
    spawned = turn.spawned
    if spawned is None or spawned.plugin != PLUGIN:
        return None
    grant = _live.get(str(spawned.metadata.get("grant", "")))
    if grant is None or grant.parent != turn.parent or grant.vault != str(turn.vault):
        return None
    grant.child = grant.child or turn.session
    return grant if grant.child == turn.session else None

"""What services give to plugins: entries of folders, stored outputs, the past of sessions, the results of children.

Exported by :mod:`moryflow_sdk.services`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._frozen import Frozen, FrozenMapping
from .messages import Usage


@dataclass(frozen=True)
class Entry:
    """A folder entry: its name, ``file``, ``dir``, ``link`` or ``other``, and its size in bytes.

    :param modified: seconds since 1970.
    """

    name: str
    kind: Literal["file", "dir", "link", "other"]
    size: int = 0
    modified: float = 0.0


class Artifact(Frozen):
    """A stored output. `state` is ``expired`` once its file is gone; the row stays.

    :param path: the absolute path of its file; `size` in bytes, `sha256` of its content.
    :param created: UTC, ISO 8601; `expires` likewise, ``None`` for one that stays.
    """

    id: str
    session: str
    call_id: str
    tool: str
    path: str
    size: int
    sha256: str
    created: str
    expires: str | None = None
    state: Literal["stored", "expired"] = "stored"


class NodeView(Frozen):
    """A node of the session tree, as plugins see it. Order is `seq` and nothing else.

    :param payload: by kind: ``user`` (`text`, `files`, `images`), ``assistant`` (`text`, `calls`, `usage`, `model`, `finish`),
        ``tool`` (`call_id`, `tool`, `status`, `output`), ``note`` (`text`, `title`), ``compaction`` (`summary`), ``marker``
        (what was chosen).
    :param parent: id of the node before it, ``None`` for the first.
    :param created: UTC, ISO 8601.
    """

    id: str
    session: str
    seq: int
    parent: str | None
    kind: Literal["user", "assistant", "tool", "compaction", "prune", "note", "marker"]
    payload: FrozenMapping
    created: str


class SessionView(Frozen):
    """A session, as plugins see it.

    :param parent: id of the session that started this one as its child.
    :param created: UTC, ISO 8601, as `updated`.
    :param purpose: ``main``, ``child`` or ``direct``.
    """

    id: str
    title: str
    vault: str
    agent: str
    mode: str
    parent: str | None
    created: str
    updated: str
    purpose: str = "main"


class StoredCall(Frozen):
    """A tool call of the past and how it was decided.

    :param state: ``pending``, ``waiting``, ``running``, ``completed``, ``error`` or ``interrupted``.
    :param decision: ``allow``, ``deny`` or ``stop``; ``None`` while nobody has decided; `cause` as in :class:`Ruling`.
    :param created: UTC, ISO 8601.
    """

    id: str
    session: str
    tool: str
    args: FrozenMapping
    state: str
    decision: str | None
    cause: str | None
    created: str


class Spawned(Frozen):
    """Why a turn runs in a child session: which plugin started it, and what it said then.

    Made by the kernel for the one turn that :class:`Spawn` runs. It is not stored and not read back, so neither a name, nor
    a resumed, forked or imported session can claim it.

    :param turn: the turn of ``turn.parent`` that started this one; `node` is the answer whose call did it.
    """

    plugin: str
    metadata: FrozenMapping = {}
    turn: str = ""
    node: str = ""


class SpawnResult(Frozen):
    """What a child session gave.

    :param end_reason: as of any turn; ``running`` for one that was started in the background.
    :param text: its last answer.
    :param denied: calls that were refused, as in the ``result`` of a turn.
    :param error: why it failed, where the end reason alone does not say it.
    """

    session: str
    text: str
    end_reason: str
    usage: Usage = Usage()
    cost: float | None = None
    steps: int = 0
    denied: tuple[FrozenMapping, ...] = ()
    error: str = ""

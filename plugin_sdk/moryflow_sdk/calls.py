"""A call of a tool and its result, as hooks see them."""

from __future__ import annotations

from typing import Literal

from ._frozen import Frozen, FrozenMapping
from .messages import Image
from .targets import Domain, Target

ResultStatus = Literal["ok", "error", "denied", "interrupted"]


class ToolCall(Frozen):
    """A call of a tool.

    In ``tool_before`` only `id`, `tool`, `args` and `step` count. From ``tool_gate`` on the value is final:
    `args` were validated, `targets` resolved, and `hash` is the SHA-256 of the canonical JSON of `args`.
    `effect` stands for what the call does: it is the same for calls that differ only in remarks (:func:`tool`), in defaults
    that are written out, and in how a path, a folder or a number is written.
    `source` is the file that the tool was taken from, for tools that a plugin found in files; `revision` tells its
    versions apart.
    """

    id: str
    tool: str
    args: FrozenMapping
    step: int = 0
    domain: Domain = "tool"
    targets: tuple[Target, ...] = ()
    hash: str = ""
    effect: str = ""
    source: str = ""
    revision: str = ""


class ToolResult(Frozen):
    """What a call gave.

    :param output: the text the model reads.
    :param code: for errors, a short stable reason (``invalid_args``, ``unknown_tool``, ``not_found`` …).
    :param title: one line for people, for example ``read notes.md (120 lines)``.
    :param metadata: JSON for hooks and clients, never sent to the model. A text `diff` in it, the path before it, is shown to
        a person after the call.
    :param spool: a file that holds the whole output when it was too large for memory (over 32 MiB).
    :param format: ``json`` when the body returned something other than text and the host wrote it as JSON.
    :param truncated: whether the model reads only a part; `output_id` then names the stored whole, `path` its file.
    :param images: what the model sees beside the text.
    """

    status: ResultStatus = "ok"
    output: str = ""
    code: str | None = None
    title: str = ""
    metadata: FrozenMapping = {}
    images: tuple[Image, ...] = ()
    truncated: bool = False
    output_id: str | None = None
    path: str | None = None
    spool: str | None = None
    format: Literal["text", "json"] = "text"

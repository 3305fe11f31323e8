"""What a model is sent and what it answers, and the plan by which older messages become a summary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ._frozen import Frozen, FrozenMapping

Role = Literal["system", "user", "assistant", "tool"]

SUMMARY_MARK = "【会话摘要】"
"""The first line of the message that stands for the older part of a conversation; its role is ``system``."""


class Image(Frozen):
    """An image in a message: base64 data and its media type, for example ``image/png``.

    :param width: pixels, as `height`; ``None`` where it is not known.
    """

    media_type: str
    data: str
    width: int | None = None
    height: int | None = None


class ToolRequest(Frozen):
    """A tool call as the model wrote it.

    :param arguments: the raw JSON text; it may be broken.
    :param problem: why it must not run, set by the provider: ``truncated`` (the answer hit its length limit),
        ``incomplete`` (the stream was cut), ``args_too_large``,
        ``invalid_args`` (its pieces do not say what belongs to it, or say two things).
    """

    id: str
    name: str
    arguments: str = ""
    problem: Literal["truncated", "incomplete", "args_too_large", "invalid_args"] | None = None


class Usage(Frozen):
    """Tokens of one model call. `input` includes the `cached` ones; `output` includes `reasoning`."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
            reasoning=self.reasoning + other.reasoning,
        )


class Message(Frozen):
    """One message of a request.

    :param node: id of the session node it was built from, empty for one that a hook added.
    :param call_id: for role ``tool``, the call it answers.
    :param reasoning: what the model thought aloud, where a provider wants it back.
    """

    # A slot beside the fields: it costs nothing until it is used, and a copy, which may differ, does not inherit it.
    __slots__ = ("_wires",)

    role: Role
    text: str = ""
    images: tuple[Image, ...] = ()
    tool_calls: tuple[ToolRequest, ...] = ()
    call_id: str = ""
    reasoning: str = ""
    node: str = ""

    def encoded(self, wire: str, encode: Callable[[Message], bytes]) -> bytes:
        """Return this message in the form a provider sends it, made once per `wire` name and kept.

        A step of a long session then costs what is new, not what is old.
        """
        kept: dict[str, bytes] | None = getattr(self, "_wires", None)
        if kept is None:
            kept = {}
            object.__setattr__(self, "_wires", kept)
        if wire not in kept:
            kept[wire] = encode(self)
        return kept[wire]


class SystemBlock(Frozen):
    """One named part of the system prompt. Blocks marked stable come first, so that prompt caches survive."""

    id: str
    text: str
    stable: bool = True
    plugin: str = ""


class SystemPrompt(Frozen):
    """The system prompt as ordered blocks; `text` joins them, stable ones first."""

    blocks: tuple[SystemBlock, ...] = ()

    @property
    def text(self) -> str:
        """The prompt as one string, blocks separated by an empty line."""
        ordered = [b for b in self.blocks if b.stable] + [b for b in self.blocks if not b.stable]
        return "\n\n".join(block.text for block in ordered if block.text)

    def append(self, block: SystemBlock) -> SystemPrompt:
        """Return a prompt with `block` at the end of its half."""
        return self.replace(blocks=(*self.blocks, block))


class ChatParams(Frozen):
    """Parameters of a model call; ``None`` means the model's own default.

    :param extra: fields passed to the provider as they are, for what the common set does not name.
    :param temperature: 0 to 2; `top_p` 0 to 1.
    :param max_tokens: of the answer.
    :param response_format: what the provider takes for structured answers, such as ``{"type": "json_object"}``.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    response_format: FrozenMapping | None = None
    extra: FrozenMapping = {}


class CompactionPlan(Frozen):
    """A compaction that is about to run.

    :param covered: ids of the nodes the summary will stand for, oldest first.
    :param first_kept: id of the first node that stays verbatim (inclusive).
    :param protect: ids of nodes that must stay verbatim although they are covered.
    :param instructions: the prompt of the summarizer.
    :param context: extra text it is given as data.
    :param summary: a ready summary; the summarizer is then not called.
    :param decline: a reason not to compact now; empty means go on.
    :param tokens_before: what the conversation takes now, estimated.
    :param previous_summary: the summary that the new one takes in.
    """

    covered: tuple[str, ...]
    first_kept: str
    tokens_before: int
    previous_summary: str = ""
    protect: tuple[str, ...] = ()
    instructions: str = ""
    context: tuple[str, ...] = ()
    summary: str | None = None
    decline: str = ""

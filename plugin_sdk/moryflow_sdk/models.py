"""Models: requests, answers, and the provider that the ``models`` hook contributes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

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
    :param reasoning: the model's reasoning, for providers that want it back.
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


Purpose = Literal["main", "child", "direct", "compact", "title", "complete"]
"""What a model call is for. ``chat_system`` and ``chat_messages`` run for main and child only."""


class ModelInfo(Frozen):
    """A model that a provider can serve.

    :param id: what a person types after ``-m``, for example ``openai/gpt-4.1`` or ``local``.
    :param name: what the provider is sent.
    :param family: ``gpt`` models are offered ``apply_patch`` instead of ``edit`` and ``write``.
    :param context_window: tokens of prompt and answer together, ``None`` when unknown.
    :param input_price: US dollars per million tokens, likewise the other prices; ``None`` when unknown.
    :param managed: limits come from the registry only, a user's ``customContext`` is ignored.
    """

    id: str
    name: str
    provider: str
    family: str = ""
    context_window: int | None = None
    max_output: int | None = None
    input_price: float | None = None
    output_price: float | None = None
    cached_price: float | None = None
    tools: bool = True
    images: bool = False
    managed: bool = False
    note: str = ""

    def cost(self, usage: Usage) -> float | None:
        """Price of `usage` in US dollars, or ``None`` when the prices are unknown."""
        if self.input_price is None or self.output_price is None:
            return None
        cached_price = self.input_price if self.cached_price is None else self.cached_price
        fresh = max(usage.input - usage.cached, 0)
        total = fresh * self.input_price + usage.cached * cached_price + usage.output * self.output_price
        return total / 1_000_000


class ToolSchema(Frozen):
    """A tool as it is described to a model; `parameters` is JSON Schema."""

    name: str
    description: str
    parameters: FrozenMapping


class ModelRequest(Frozen):
    """One call of a model. `tools` is empty when it may call none."""

    model: ModelInfo
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    params: ChatParams = ChatParams()
    purpose: Purpose = "main"
    session: str = ""


class TextDelta(Frozen):
    """A piece of the answer."""

    text: str


class ReasoningDelta(Frozen):
    """A piece of the model's reasoning."""

    text: str


class ToolInputDelta(Frozen):
    """A piece of the arguments of a tool call that is still coming. Optional: a host shows the calls of :class:`Finished`
    that had none.

    :param call: the call's id, the same as in :class:`Finished`.
    """

    call: str
    name: str
    text: str


class Status(Frozen):
    """Something a person should see while a model gets ready, for example a load or a download."""

    text: str


class Finished(Frozen):
    """The end of an answer; exactly one, last.

    :param reason: ``stop``, ``tool_calls``, ``length`` (hit its limit), ``content_filter`` (the service cut it),
        ``refusal`` (the model declined) or ``pause`` (ask again).
    """

    reason: Literal["stop", "tool_calls", "length", "content_filter", "refusal", "pause"] = "stop"
    tool_calls: tuple[ToolRequest, ...] = ()
    usage: Usage = Usage()


ModelEvent = TextDelta | ReasoningDelta | ToolInputDelta | Status | Finished
"""What :meth:`ModelProvider.stream` yields."""


@runtime_checkable
class ModelProvider(Protocol):
    """Serves models. Heavy imports belong in :meth:`stream`, not at module level."""

    name: str

    def find(self, model: str) -> ModelInfo | None:
        """Return the model called `model`, or ``None`` when it is not one of this provider's.

        Called in provider order until one answers; must be quick and must not use the network.
        """
        ...

    def default(self, environ: Mapping[str, str]) -> str | None:
        """Return the model to use when nobody chose one and the needed key is in `environ`, else ``None``."""
        ...

    async def available(self) -> Sequence[ModelInfo]:
        """Return the models worth listing, for ``moryflow model list``."""
        ...

    def prepare(self, model: ModelInfo) -> None:
        """Start loading what :meth:`stream` will need, without blocking; called as soon as the model is chosen."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Yield deltas, then one :class:`Finished`. Closing the iterator cancels the call.

        :raises ModelError: the call failed; partial text already yielded is kept by the host.
        """
        ...

    async def aclose(self) -> None:
        """Free connections and processes."""
        ...


@runtime_checkable
class Installable(Protocol):
    """A provider whose runtime is installed on demand (``moryflow model install``)."""

    def installed(self) -> bool:
        """Whether everything is there; looks at files only, imports nothing."""
        ...

    def download_size(self) -> int:
        """Return the bytes that :meth:`install` would download, to be said before it does."""
        ...

    def install(self, progress: Callable[[str, int, int], None]) -> None:
        """Install the runtime; blocks, so call it off the loop.

        :param progress: called with the phase, the bytes done and the bytes in all (0 when unknown).
        :raises ModelError: it did not work; the message says why and what to do.
        """
        ...


class BaseProvider:
    """The parts of :class:`ModelProvider` that most providers leave as they are.

    :ivar prefixes: what its model names begin with, for "did you mean" when a name is nearly right.
    """

    name: str = ""
    prefixes: tuple[str, ...] = ()

    def find(self, model: str) -> ModelInfo | None:
        """Knows no model; override."""
        return None

    def default(self, environ: Mapping[str, str]) -> str | None:
        """Never chosen by itself; override."""
        return None

    async def available(self) -> Sequence[ModelInfo]:
        """Lists nothing; override."""
        return ()

    def prepare(self, model: ModelInfo) -> None:
        """Has nothing to load; override."""

    async def aclose(self) -> None:
        """Holds nothing open; override."""

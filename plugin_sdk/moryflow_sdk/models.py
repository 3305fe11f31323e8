"""Models: requests, answers, and the provider that the ``models`` hook contributes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from ._frozen import Frozen, FrozenMapping

Role = Literal["system", "user", "assistant", "tool"]

SUMMARY_MARKS = {"en": "[Conversation summary]", "zh": "【会话摘要】"}
"""The first line of the message that stands for the older part of a conversation, by its language; its role is ``system``."""


class Image(Frozen):
    """An image in a message: base64 data and its media type, for example ``image/png``.

    :param width: in pixels, like `height`; ``None`` if it is not known.
    """

    media_type: str
    data: str
    width: int | None = None
    height: int | None = None


class ToolRequest(Frozen):
    """A tool call as the model wrote it.

    :param arguments: the raw JSON text; it may be broken.
    :param problem: why the call must not run, set by the provider: ``truncated`` (the answer hit its length limit),
        ``incomplete`` (the stream was cut), ``args_too_large``, ``invalid_args`` (the pieces contradict each other).
    :param extra: fields that the service added to the call, such as Gemini's ``extra_content``.
    """

    id: str
    name: str
    arguments: str = ""
    problem: Literal["truncated", "incomplete", "args_too_large", "invalid_args"] | None = None
    extra: FrozenMapping = {}


class Usage(Frozen):
    """Tokens of one model call. `input` includes `cached` tokens; `output` includes `reasoning` tokens."""

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

    :param node: id of the session node that it was built from; empty if a hook added it.
    :param call_id: for role ``tool``, the id of the call with this result.
    :param reasoning: the model's reasoning as text.
    :param extra: fields that the service added to its answer, such as signatures.
    :param origin: the service that the answer came from; ``extra`` is for that service alone.
    """

    # A slot and not a field: it costs nothing until it is used, and a copy, which may differ, does not inherit it.
    __slots__ = ("_wires",)

    role: Role
    text: str = ""
    images: tuple[Image, ...] = ()
    tool_calls: tuple[ToolRequest, ...] = ()
    call_id: str = ""
    reasoning: str = ""
    node: str = ""
    extra: FrozenMapping = {}
    origin: str = ""

    def encoded(self, wire: str, encode: Callable[[Message], bytes]) -> bytes:
        """Return this message in the form that a provider sends, encoded once per `wire` name and then kept.

        In a long session, a step therefore encodes only its new messages.
        """
        kept: dict[str, bytes] | None = getattr(self, "_wires", None)
        if kept is None:
            kept = {}
            object.__setattr__(self, "_wires", kept)
        if wire not in kept:
            kept[wire] = encode(self)
        return kept[wire]


class SystemBlock(Frozen):
    """One named part of the system prompt. Stable blocks come first, so that prompt caches stay valid."""

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
        """Return a prompt with `block` added: in `text` it is the last of the stable blocks, or the last of the others."""
        return self.replace(blocks=(*self.blocks, block))


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How long a model should reason before it answers. No service knows all words; what one refuses is left out, and said."""


class ChatParams(Frozen):
    """Parameters of a model call; ``None`` means the model's own default.

    :param extra: further fields, which are passed to the provider as they are.
    :param temperature: 0 to 2; `top_p` 0 to 1.
    :param max_tokens: the longest answer, in tokens.
    :param response_format: the provider's setting for structured answers, such as ``{"type": "json_object"}``.
    :param answer_schema: a JSON Schema that the last answer must fit. The prompt says it too, so a provider may ignore it.
    :param reasoning_effort: the provider sends it in the form that the service knows.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    response_format: FrozenMapping | None = None
    reasoning_effort: Effort | None = None
    answer_schema: FrozenMapping | None = None
    extra: FrozenMapping = {}


Purpose = Literal["main", "child", "direct", "compact", "title", "complete"]
"""The purpose of a model call. ``chat_system`` and ``chat_messages`` run for main and child only."""


class ModelInfo(Frozen):
    """A model that a provider can serve.

    :param id: what the user types after ``-m``, for example ``openai/gpt-4.1`` or ``local``.
    :param name: the name that is sent to the provider.
    :param family: ``gpt`` models are offered ``apply_patch`` instead of ``edit`` and ``write``.
    :param context_window: tokens of prompt and answer together, ``None`` if unknown.
    :param input_price: US dollars per million tokens, like the other prices; ``None`` if unknown.
    :param only_tools: for a small model: the only tools that it is offered, with the short system prompt; empty for all tools.
    :param managed: the limits come from the registry only; the setting ``customContext`` is ignored.
    :param reasoning_effort: for turns that ask for none.
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
    only_tools: tuple[str, ...] = ()
    images: bool = False
    managed: bool = False
    note: str = ""
    reasoning_effort: Effort | None = None

    def cost(self, usage: Usage) -> float | None:
        """Return the price of `usage` in US dollars, or ``None`` if the prices are unknown."""
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
    """One call of a model. `tools` is empty if the model may call none."""

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
    """A piece of the arguments of a tool call that the model is still writing. Optional.

    :param call: the call's id, the same as in :class:`Finished`.
    """

    call: str
    name: str
    text: str


class Status(Frozen):
    """Something that the user should see while a model gets ready.

    :param lasting: it is still true after the answer, such as a parameter that the service refused: the session keeps it.
    """

    text: str
    lasting: bool = False


class Finished(Frozen):
    """The end of an answer: exactly one event, the last.

    :param reason: ``stop``, ``tool_calls``, ``length`` (the answer hit its limit), ``content_filter`` (the service cut it),
        ``refusal`` (the model declined) or ``pause`` (call the model again).
    :param extra: like `origin`, what the next request returns in :class:`Message`.
    """

    reason: Literal["stop", "tool_calls", "length", "content_filter", "refusal", "pause"] = "stop"
    tool_calls: tuple[ToolRequest, ...] = ()
    usage: Usage = Usage()
    extra: FrozenMapping = {}
    origin: str = ""


ModelEvent = TextDelta | ReasoningDelta | ToolInputDelta | Status | Finished
"""What :meth:`ModelProvider.stream` yields."""


@runtime_checkable
class ModelProvider(Protocol):
    """A provider of models. Put heavy imports into :meth:`stream`, not at module level."""

    name: str

    def find(self, model: str) -> ModelInfo | None:
        """Return the model with the id `model`, or ``None`` if this provider does not have it.

        This must be quick and must not use the network.
        """
        ...

    def default(self, environ: Mapping[str, str]) -> str | None:
        """Return the id of the model to use if nobody chose one, or ``None`` if the key it needs is not in `environ`."""
        ...

    async def available(self) -> Sequence[ModelInfo]:
        """Return the models that ``moryflow model list`` shows."""
        ...

    def prepare(self, model: ModelInfo) -> None:
        """Start to load what :meth:`stream` will need, without blocking. Called as soon as the model is chosen."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Yield deltas, then one :class:`Finished`. Closing the iterator cancels the call.

        :raises ModelError: the call failed; the host keeps the text yielded so far.
        """
        ...

    async def aclose(self) -> None:
        """Free connections and processes."""
        ...


@runtime_checkable
class Installable(Protocol):
    """A provider whose runtime is installed on demand (``moryflow model install``)."""

    def installed(self) -> bool:
        """Whether the runtime is installed; looks at files only, imports nothing."""
        ...

    def download_size(self) -> int:
        """Return how many bytes :meth:`install` would download; the user sees the number before the download."""
        ...

    def install(self, progress: Callable[[str, int, int], None]) -> None:
        """Install the runtime; blocks, so call it off the loop.

        :param progress: called with the phase, the bytes done so far and the total bytes (0 if unknown).
        :raises ModelError: the installation failed. With the code ``withheld``, the host installs the model named in
            ``instead``.
        """
        ...


class BaseProvider:
    """Base class of providers, with a default for each method of :class:`ModelProvider` except ``stream``.

    :ivar prefixes: what the names of its models begin with, for "did you mean".
    :ivar origin: who made a model that is downloaded, and its licence; said before the download.
    :ivar instead: the model that takes its place if it can no longer be had.
    """

    name: str = ""
    prefixes: tuple[str, ...] = ()
    origin: str = ""
    instead: str = ""

    def find(self, model: str) -> ModelInfo | None:
        """Return ``None``: no model is known; override."""
        return None

    def default(self, environ: Mapping[str, str]) -> str | None:
        """Return ``None``: there is no default model; override."""
        return None

    def known(self) -> Iterable[str]:
        """Return no names; override, for "did you mean" when a model is named without its prefix. No service is asked."""
        return ()

    async def available(self) -> Sequence[ModelInfo]:
        """Return nothing to list; override."""
        return ()

    def prepare(self, model: ModelInfo) -> None:
        """Load nothing; override."""

    async def aclose(self) -> None:
        """Close nothing; override."""

"""Model providers: what the ``models`` hook contributes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from ._frozen import Frozen, FrozenMapping
from .messages import ChatParams, Message, ToolRequest, Usage

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
    """A tool as a model is told of it; `parameters` is JSON Schema."""

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
    """A piece of what the model thinks aloud."""

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
    """Serves models. Heavy imports belong into :meth:`stream`, not to module level."""

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

        :param progress: told the phase, the bytes done and the bytes in all (0 when unknown).
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

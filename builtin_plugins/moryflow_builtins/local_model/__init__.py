"""The model ``local``: a small instruct model on this machine, for people who have no key yet."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property
from string import ascii_uppercase
from typing import TYPE_CHECKING

from moryflow_sdk import (
    BaseProvider,
    Finished,
    ModelError,
    ModelEvent,
    ModelInfo,
    ModelProvider,
    ModelRequest,
    PluginContext,
    Status,
    TextDelta,
    hookimpl,
)

if TYPE_CHECKING:
    from moryflow_sdk.chat_completions import ChatClient

    from .runtime import Process, Runtime


SHOW_AFTER = 0.3
"""Seconds of loading after which a person sees why nothing happens."""

ENDS = ("\n#", *(f"\n\n{letter}" for letter in ascii_uppercase))
"""Stop texts: an answer ends before a heading, and before a second paragraph of prose. Without them, so small a model continues
the document of its prompt until it reaches its limit. A list or code after a blank line still belongs to the answer."""

LONGEST_ANSWER, USUAL_ANSWER = 256, 160
"""The most tokens of any answer, since so small a model may not end by itself; and of an answer without a limit that is not
a summary."""

LOCAL = ModelInfo(
    id="local",
    name="smollm2-135m-instruct",
    provider="local_model",
    context_window=8192,
    max_output=LONGEST_ANSWER,
    input_price=0,
    output_price=0,
    tools=False,
    note="a very small model on this machine: chat only, no tools, often wrong",
)


class LocalModel(BaseProvider):
    """Serves ``local`` from a separate process, if the model is installed."""

    name = "local_model"
    prefixes = ("local",)

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        """Keep a function that makes the runtime, because most starts never need it."""
        self._make_runtime = runtime
        self._process: Process | None = None
        self._client: ChatClient | None = None

    @cached_property
    def _runtime(self) -> Runtime:
        return self._make_runtime()

    def find(self, model: str) -> ModelInfo | None:
        """Return ``local``, whether or not it is installed."""
        return LOCAL if model == LOCAL.id else None

    def default(self, environ: Mapping[str, str]) -> str | None:
        """Return ``local`` if it is installed; providers with a key are asked before this one."""
        return LOCAL.id if self.installed() else None

    async def available(self) -> Sequence[ModelInfo]:
        """Return the model, with a note if it is not installed yet."""
        if self.installed():
            return (LOCAL,)
        size = round(self.download_size() / 1e6)
        return (LOCAL.replace(note=f"not installed; moryflow model install ({size} MB); {LOCAL.note}"),)

    def installed(self) -> bool:
        return self._runtime.installed()

    def download_size(self) -> int:
        return self._runtime.download_size()

    def install(self, progress: Callable[[str, int, int], None]) -> None:
        """Install runtime and weights into Moryflow's home.

        :raises ModelError: the installation failed.
        """
        from .runtime import install

        install(self._runtime, progress)

    def prepare(self, model: ModelInfo) -> None:
        """Start the process if the model is installed."""
        if self.installed():
            self._server().start()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        if not self.installed():
            raise ModelError("the local model is not installed", code="missing", next_step="moryflow model install")
        starting = asyncio.wrap_future(self._server().start())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(starting), SHOW_AFTER)
        if not starting.done():
            yield Status(text="loading the local model")
        client = await self._client_of_process(*await starting)
        params = request.params
        own_limit = params.max_tokens is None or params.max_tokens >= LONGEST_ANSWER
        if request.purpose != "compact":  # a summary has sections, each with a heading
            usual = USUAL_ANSWER if params.max_tokens is None else params.max_tokens
            params = params.replace(max_tokens=usual, extra={"stop": list(ENDS), **params.extra})
        chat_only = request.replace(tools=(), params=params)
        async with contextlib.aclosing(client.stream(chat_only, request.model.name)) as events:
            async for event in whole_sentences(events) if own_limit else events:
                yield event

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.stop)

    def _server(self) -> Process:
        from .runtime import Process

        if self._process is None:
            self._process = Process(self._runtime)
        return self._process

    async def _client_of_process(self, url: str, key: str) -> ChatClient:
        """Return a client for the running process; a restarted process has another address and key."""
        from moryflow_sdk.chat_completions import ChatClient, Endpoint

        if self._client is None or self._client.endpoint.key != key:
            if self._client is not None:
                await self._client.aclose()
            source = "the local model's process"
            self._client = ChatClient(Endpoint(f"{url}/v1", "local", key=key, key_source=source, url_source=source))
        return self._client


_SENTENCE_ENDS = tuple(".!?。！？")
_SENTENCE_END = re.compile(r"(?<!\d)[.!?。！？](?=\s)|\n")
"""Not after a digit, because ``6.`` begins an item of a list."""

SHORTEST_LOOP = 20
"""A repeated sentence of at least this many characters ends the answer; shorter ones may be repeated."""


async def whole_sentences(events: AsyncIterator[ModelEvent]) -> AsyncGenerator[ModelEvent]:
    """Yield `events`, but end the answer before a repeated sentence and, if it reached the model's own limit, after its last
    whole sentence.

    So small a model rarely ends by itself, so that the limit is a normal end of its answers. An answer without a whole
    sentence is passed on as it is.
    """
    held, any_sentence = "", False
    said: set[str] = set()
    async for event in events:
        if isinstance(event, TextDelta):
            held += event.text
            while end := _SENTENCE_END.search(held):
                sentence, held = held[: end.end()], held[end.end() :]
                if sentence.strip() in said:
                    yield Finished(reason="stop")
                    return
                any_sentence = True
                said |= {sentence.strip()} if len(sentence) >= SHORTEST_LOOP else set()
                yield event.replace(text=sentence)
            continue
        if isinstance(event, Finished):
            at_limit, held = event.reason == "length", held if held.strip() not in said else ""
            ends_here = held.endswith(_SENTENCE_ENDS) and not held[:-1].strip().isdigit()
            if held and (ends_here or not (at_limit and any_sentence)):
                yield TextDelta(text=held)
            if at_limit and (ends_here or any_sentence):
                event = event.replace(reason="stop")
        yield event


name = "local_model"


@hookimpl(after=("openai_compatible", "litellm_models"))
def models(ctx: PluginContext) -> list[ModelProvider]:
    """Offer ``local``."""

    def runtime() -> Runtime:
        from .runtime import Runtime

        return Runtime(ctx.home)

    return [LocalModel(runtime)]

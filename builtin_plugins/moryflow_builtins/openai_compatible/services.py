"""Well-known services: address, key and default model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple
from urllib.parse import urlsplit


class Service(NamedTuple):
    """A service that speaks chat completions.

    :param keys: environment variables that may hold the key, the first one is what errors name.
    :param addresses: environment variables that may hold another address.
    :param default: the model to use when nobody chose one; empty when only the server can say.
    :param local: runs on the user's machine and needs no key.
    :param system_messages: ``several`` where its models are known to take them.
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

    def key(self, environ: Mapping[str, str]) -> str:
        """Return the key, without the blanks and line ends that come with pasting."""
        return next((environ[name].strip() for name in self.keys if environ.get(name, "").strip()), "")

    def address(self, environ: Mapping[str, str]) -> tuple[str, str]:
        """Return ``(address, variable)`` when a variable sets another address, else ``("", "")``."""
        name = next((name for name in self.addresses if environ.get(name, "").strip()), "")
        return (_normal(environ[name].strip(), name), name) if name else ("", "")


def _normal(address: str, variable: str) -> str:
    """Return a base URL. ``OLLAMA_HOST`` may be ``0.0.0.0:11434``, which is where a server listens, not an address."""
    if variable != "OLLAMA_HOST":
        return address.rstrip("/")
    address = address if "://" in address else f"http://{address}"
    address = address.replace("://0.0.0.0", "://127.0.0.1").rstrip("/")
    return address if urlsplit(address).path else f"{address}/v1"


SERVICES: dict[str, Service] = {
    service.prefix: service
    for service in (
        Service(
            "openai",
            "https://api.openai.com/v1",
            ("OPENAI_API_KEY",),
            ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
            "gpt-4.1",
            output_field="max_completion_tokens",
            system_messages="several",
        ),
        Service("openrouter", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",), (), "openrouter/auto"),
        Service("deepseek", "https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",), (), "deepseek-flash"),
        Service("mistral", "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",), (), "mistral-medium-latest", short_ids=True),
        Service("groq", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",), (), "openai/gpt-oss-120b"),
        Service("xai", "https://api.x.ai/v1", ("XAI_API_KEY",), (), "grok-4.7"),
        Service("cerebras", "https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",), (), "gpt-oss-120b"),
        Service("moonshot", "https://api.moonshot.ai/v1", ("MOONSHOT_API_KEY",), (), "kimi-k3"),
        Service("zai", "https://api.z.ai/api/paas/v4", ("ZAI_API_KEY",), (), "glm-5.3"),
        Service("together", "https://api.together.xyz/v1", ("TOGETHER_API_KEY", "TOGETHERAI_API_KEY")),
        Service("fireworks", "https://api.fireworks.ai/inference/v1", ("FIREWORKS_API_KEY",)),
        Service("nvidia", "https://integrate.api.nvidia.com/v1", ("NVIDIA_API_KEY",)),
        Service("huggingface", "https://router.huggingface.co/v1", ("HF_TOKEN", "HUGGINGFACE_API_KEY")),
        Service("qwen", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", ("DASHSCOPE_API_KEY",)),
        Service("ollama", "http://127.0.0.1:11434/v1", ("OLLAMA_API_KEY",), ("OLLAMA_BASE_URL", "OLLAMA_HOST"), local=True),
        Service("lmstudio", "http://127.0.0.1:1234/v1", ("LMSTUDIO_API_KEY",), ("LMSTUDIO_BASE_URL",), local=True),
        Service("vllm", "http://127.0.0.1:8000/v1", ("VLLM_API_KEY",), ("VLLM_BASE_URL",), local=True),
        Service("llamacpp", "http://127.0.0.1:8080/v1", ("LLAMACPP_API_KEY",), ("LLAMACPP_BASE_URL",), local=True),
    )
}
"""In the order in which a key makes a service the default."""

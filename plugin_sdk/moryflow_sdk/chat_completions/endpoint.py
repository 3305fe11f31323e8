"""The server that a request goes to, and how it is told how long to reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from moryflow_sdk.models import Effort

EffortStyle = Literal["reasoning_effort", "reasoning", "thinking", "off_or_effort", "enable_thinking", "template"]
"""The form of the request.

``reasoning_effort``: OpenAI and most others. ``reasoning``: OpenRouter. ``thinking``: DeepSeek and GLM, a switch and an effort.
``off_or_effort``: Kimi, whose newest models know no switch. ``enable_thinking``: Qwen, a switch and a number of tokens.
``template``: vLLM and llama.cpp, arguments of the model's chat template.
"""

_BUDGETS: Mapping[Effort, int] = {
    "minimal": 512, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_768, "max": 81_920,
}  # fmt: skip
"""Tokens of Qwen's ``thinking_budget``; 81,920 is the longest reasoning of its models."""


def _thinking(effort: Effort) -> dict[str, Any]:
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled"}, "reasoning_effort": effort}


_FIELDS: Mapping[EffortStyle, Callable[[Effort], dict[str, Any]]] = {
    "reasoning_effort": lambda effort: {"reasoning_effort": effort},
    "reasoning": lambda effort: {"reasoning": {"effort": effort}},
    "thinking": _thinking,
    "off_or_effort": lambda effort: _thinking(effort) if effort == "none" else {"reasoning_effort": effort},
    "enable_thinking": lambda effort: {
        "enable_thinking": effort != "none",
        **({"thinking_budget": _BUDGETS[effort]} if effort != "none" else {}),
    },
    "template": lambda effort: {
        "chat_template_kwargs": {
            "enable_thinking": effort != "none",
            **({"reasoning_effort": effort} if effort != "none" else {}),
        }
    },
}


def effort_fields(style: EffortStyle, effort: Effort | None) -> dict[str, Any]:
    """Return the parameters that ask for `effort`; none if nobody asked."""
    return _FIELDS[style](effort) if effort else {}


_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


JsonMode = Literal["schema", "object", "alone"]
"""``schema``: ``json_schema``, also beside tools. ``object``: only ``json_object``. ``alone``: ``json_schema``, but not beside
tools, because the server would force every answer into the schema, or refuses both together."""


@dataclass(frozen=True)
class Endpoint:
    """A server that speaks chat completions.

    :param base_url: for example ``https://api.openai.com/v1``; ``/chat/completions`` is added if it is missing.
    :param label: the name of the server for the user, for example ``openai``; errors begin with it.
    :param key: sent as bearer token; empty for none.
    :param key_source: where the key is set, for error messages: ``the environment variable OPENAI_API_KEY``.
    :param url_source: where the address is set, likewise.
    :param output_field: the field for the output limit; OpenAI's newer models accept only ``max_completion_tokens``.
    :param short_ids: whether tool call ids must be nine letters or digits (Mistral).
    :param send_reasoning: whether to send earlier reasoning back. ``None``: as it came from this server; ``True``: also
        from sessions of an earlier version; ``False``: none.
    :param wants_reasoning: whether each answer in the history needs ``reasoning_content``, perhaps a blank one (DeepSeek,
        Kimi).
    :param wants_signature: whether each answer with calls needs a ``thought_signature`` (Gemini).
    :param system_messages: whether the server accepts ``several``; with ``one``, a summary is sent as a user message.
    :param effort: how it wants to be told how long to reason.
    :param json_mode: what it offers for answers that must fit a JSON Schema.
    :param service: what tells it from others with the same label, if it has no address.
    :param timeout: seconds without a byte until the call counts as stalled.
    """

    base_url: str
    label: str
    key: str = field(default="", repr=False)
    key_source: str = "the provider's configuration"
    url_source: str = "the provider's configuration"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    output_field: str = "max_tokens"
    short_ids: bool = False
    send_reasoning: bool | None = None
    wants_reasoning: bool = False
    wants_signature: bool = False
    system_messages: Literal["one", "several"] = "one"
    effort: EffortStyle = "reasoning_effort"
    json_mode: JsonMode = "alone"
    service: str = ""
    timeout: float = 300.0

    @cached_property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine, and so needs neither a proxy nor a key."""
        return (urlsplit(self.base_url).hostname or "") in _LOOPBACK

    @cached_property
    def origin(self) -> str:
        """The name under which answers of this server are stored: a digest of its address, which may be private."""
        import hashlib

        place = (
            self.public_url.rstrip("/").removesuffix("/chat/completions").lower()
            if self.base_url
            else self.service or self.label
        )
        return hashlib.sha256(place.encode()).hexdigest()[:16]

    @cached_property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.base_url.lower().startswith("https:")

    @cached_property
    def public_url(self) -> str:
        """The address without user name, password and query, for messages."""
        parts = urlsplit(self.base_url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", ""))

    def url(self, path: str) -> str:
        """Return the address of `path` (``/chat/completions``), with the base URL's query, such as Azure's ``api-version``."""
        parts = urlsplit(self.base_url)
        base = parts.path.rstrip("/").removesuffix("/chat/completions")
        return urlunsplit((parts.scheme, parts.netloc, base + path, parts.query, ""))

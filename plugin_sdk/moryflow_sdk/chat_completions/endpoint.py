"""A model service: its address, key and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Endpoint:
    """A server that speaks chat completions.

    :param base_url: for example ``https://api.openai.com/v1``; ``/chat/completions`` is added where it is missing.
    :param label: what people call it, for example ``openai``; errors begin with it.
    :param key: sent as bearer token; empty for none.
    :param key_source: where the key is set, for error messages: ``the environment variable OPENAI_API_KEY``.
    :param url_source: where the address is set, likewise.
    :param output_field: name of the output limit; OpenAI's own newer models take ``max_completion_tokens`` only.
    :param short_ids: tool call ids must be nine letters or digits (Mistral).
    :param send_reasoning: send earlier ``reasoning_content`` back (DeepSeek's thinking models want it between tool calls).
    :param system_messages: whether it takes ``several``; where ``one``, a summary goes as a user message.
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
    send_reasoning: bool = False
    system_messages: Literal["one", "several"] = "one"
    timeout: float = 300.0

    @cached_property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine: no proxy, no TLS set-up, and no key needed."""
        return (urlsplit(self.base_url).hostname or "") in _LOOPBACK

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
        """Return the address of `path` (``/chat/completions``), keeping a query such as Azure's ``api-version``."""
        parts = urlsplit(self.base_url)
        base = parts.path.rstrip("/").removesuffix("/chat/completions")
        return urlunsplit((parts.scheme, parts.netloc, base + path, parts.query, ""))
